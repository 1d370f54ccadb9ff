"""The producer ids that were given out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tiered.errors import Corrupt
from tiered.metadata.changes import ProducerIdsAllocated
from tiered.value import value


@value
class ProducerIdsImage:
    """All producer ids below `next_id` were given out."""

    KINDS = (ProducerIdsAllocated,)

    next_id: int = 0

    def apply(self, changes: Iterable[ProducerIdsAllocated]) -> ProducerIdsImage:
        """Returns the part after the changes."""
        next_id = self.next_id
        for change in changes:
            if change.first < next_id:
                raise Corrupt(f"producer ids from {change.first} on are given out already")
            next_id = change.first + change.count
        return ProducerIdsImage(next_id)

    def to_json(self) -> dict[str, Any]:
        """Returns the keys of the part in a snapshot."""
        return {"next_producer_id": self.next_id}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> ProducerIdsImage:
        """Returns the part of a snapshot."""
        return cls(body.get("next_producer_id", 0))

"""The controller, its epoch and its incarnation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tiered.errors import Corrupt
from tiered.metadata.changes import NO_LEADER, ControllerElected
from tiered.value import value


@value
class ControllersImage:
    """The newest controller. It cannot be reached until its incarnation is registered."""

    KINDS = (ControllerElected,)

    epoch: int = 0
    node_id: int = NO_LEADER
    incarnation: str = ""

    def apply(self, changes: Iterable[ControllerElected]) -> ControllersImage:
        """Returns the part after the changes."""
        newest = self
        for change in changes:
            if change.epoch <= newest.epoch:
                raise Corrupt(f"controller epoch {change.epoch} follows {newest.epoch}")
            newest = ControllersImage(change.epoch, change.node_id, change.incarnation)
        return newest

    def to_json(self) -> dict[str, Any]:
        """Returns the keys of the part in a snapshot."""
        return {"epoch": self.epoch, "controller": self.node_id, "controller_incarnation": self.incarnation}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> ControllersImage:
        """Returns the part of a snapshot."""
        return cls(body["epoch"], body["controller"], body.get("controller_incarnation", ""))

"""The client quotas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from tiered.metadata.changes import ClientQuotaRemoved, ClientQuotaSet, freeze
from tiered.quotas.entity import QuotaEntity
from tiered.value import value


@value
class ClientQuotasImage:
    """Client quotas by entity and key. Another object after each change."""

    KINDS = (ClientQuotaSet, ClientQuotaRemoved)

    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)

    def apply(self, changes: Iterable[ClientQuotaSet | ClientQuotaRemoved]) -> ClientQuotasImage:
        """Returns the part after the changes."""
        quotas = dict(self.quotas)
        for change in changes:
            kept = dict(quotas.get(change.entity, {}))
            if isinstance(change, ClientQuotaSet):
                kept[change.key] = change.value
            else:
                kept.pop(change.key, None)
            if kept:
                quotas[change.entity] = kept
            else:
                quotas.pop(change.entity, None)
        return ClientQuotasImage(quotas)

    def to_json(self) -> dict[str, Any]:
        """Returns the keys of the part in a snapshot."""
        return {"quotas": [[[list(part) for part in entity], dict(values)] for entity, values in self.quotas.items()]}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> ClientQuotasImage:
        """Returns the part of a snapshot."""
        return cls({freeze(entity): values for entity, values in body.get("quotas", ())})

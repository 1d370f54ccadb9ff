"""The delegation tokens (KIP-48)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from tiered.metadata.changes import DelegationTokenRemoved, DelegationTokenSet, freeze
from tiered.security.delegation_tokens import DelegationToken
from tiered.value import value


@value
class DelegationTokensImage:
    """Delegation tokens by id. Another object after each change."""

    KINDS = (DelegationTokenSet, DelegationTokenRemoved)

    tokens: Mapping[str, DelegationToken] = field(default_factory=dict)

    def apply(self, changes: Iterable[DelegationTokenSet | DelegationTokenRemoved]) -> DelegationTokensImage:
        """Returns the part after the changes."""
        tokens = dict(self.tokens)
        for change in changes:
            if isinstance(change, DelegationTokenSet):
                values = (getattr(change, name) for name in DelegationToken._fields)
                tokens[change.token_id] = DelegationToken(*values)
            else:
                tokens.pop(change.token_id, None)
        return DelegationTokensImage(tokens)

    def to_json(self) -> dict[str, Any]:
        """Returns the keys of the part in a snapshot."""
        return {"delegation_tokens": [list(each) for each in self.tokens.values()]}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> DelegationTokensImage:
        """Returns the part of a snapshot."""
        return cls({each[0]: DelegationToken(*freeze(each)) for each in body.get("delegation_tokens", ())})

"""The SCRAM credentials of users."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from tiered.metadata.changes import ScramCredentialRemoved, ScramCredentialSet
from tiered.security.scram import ScramCredential
from tiered.value import value


@value
class ScramImage:
    """SCRAM credentials by user and mechanism. Another object after each change."""

    KINDS = (ScramCredentialSet, ScramCredentialRemoved)

    users: Mapping[str, Mapping[str, ScramCredential]] = field(default_factory=dict)

    def apply(self, changes: Iterable[ScramCredentialSet | ScramCredentialRemoved]) -> ScramImage:
        """Returns the part after the changes."""
        users = dict(self.users)
        for change in changes:
            if isinstance(change, ScramCredentialSet):
                credential = _from_texts(change.salt, change.stored_key, change.server_key, change.iterations)
                users[change.user] = {**users.get(change.user, {}), change.mechanism: credential}
            else:
                kept = dict(users.pop(change.user, {}))
                kept.pop(change.mechanism, None)
                if kept:
                    users[change.user] = kept
        return ScramImage(users)

    def to_json(self) -> dict[str, Any]:
        """Returns the keys of the part in a snapshot."""
        return {
            "scram": {
                user: {name: _to_texts(each) for name, each in credentials.items()}
                for user, credentials in self.users.items()
            }
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> ScramImage:
        """Returns the part of a snapshot."""
        return cls(
            {
                user: {name: _from_texts(*each) for name, each in credentials.items()}
                for user, credentials in body.get("scram", {}).items()
            }
        )


def _to_texts(credential: ScramCredential) -> list[Any]:
    *secrets, iterations = credential
    return [*(b64encode(each).decode() for each in secrets), iterations]


def _from_texts(salt: str, stored_key: str, server_key: str, iterations: int) -> ScramCredential:
    return ScramCredential(b64decode(salt), b64decode(stored_key), b64decode(server_key), iterations)

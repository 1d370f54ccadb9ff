"""The secrets of brokers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tiered.metadata.changes import BrokerSecretSet
from tiered.security.broker_secrets import BrokerSecret, add_secret
from tiered.security.secret import Secret
from tiered.value import value


@value
class BrokerSecretsImage:
    """The newest secrets of brokers after the first one of the cluster, the oldest first."""

    KINDS = (BrokerSecretSet,)

    secrets: tuple[BrokerSecret, ...] = ()

    def apply(self, changes: Iterable[BrokerSecretSet]) -> BrokerSecretsImage:
        """Returns the part after the changes."""
        secrets = self.secrets
        for change in changes:
            secrets = add_secret(secrets, BrokerSecret(change.version, Secret(change.secret)))
        return BrokerSecretsImage(secrets)

    def to_json(self) -> dict[str, Any]:
        """Returns the keys of the part in a snapshot."""
        return {"broker_secrets": [[each.version, each.digits.reveal()] for each in self.secrets]}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> BrokerSecretsImage:
        """Returns the part of a snapshot."""
        rows = body.get("broker_secrets", ())
        return cls(tuple(BrokerSecret(version, Secret(digits)) for version, digits in rows))

"""The secrets by which brokers know each other, through a rotation.

Secret 0 is derived from an object in the bucket, and later ones are in the metadata log. A broker accepts the newest
three that it knows, and proves itself by the second newest. So brokers understand each other while one of them knows
one secret more than the other.

A rotation adds three secrets, one after the other. The next one is added once all brokers know the one before. After
the third, no broker accepts a secret from before the rotation.
"""

from __future__ import annotations

from collections.abc import Iterable
from hmac import compare_digest
from typing import NamedTuple

from tiered.security.secret import Secret

KEPT = 3
"""Secrets that are accepted."""
SECRET_BYTES = 16


class BrokerSecret(NamedTuple):
    """One secret: its version, and its bytes as hexadecimal digits."""

    version: int
    digits: Secret


class BrokerSecrets(NamedTuple):
    """The secrets that a broker accepts, the oldest first. Without any it accepts nobody."""

    versions: tuple[int, ...] = ()
    accepted: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        return f"BrokerSecrets(versions={self.versions})"

    @property
    def proof(self) -> bytes:
        """The secret by which this broker proves itself; empty until it has read its store."""
        return self.accepted[-2:][0] if self.accepted else b""

    @property
    def newest_version(self) -> int:
        """The version of the newest secret; -1 without any."""
        return self.versions[-1] if self.versions else -1

    def accepts(self, proof: bytes) -> bool:
        """True if these bytes are an accepted secret."""
        fits = False
        for each in self.accepted:
            fits |= compare_digest(proof, each)
        return fits


def choose_secrets(first: bytes, later: Iterable[BrokerSecret]) -> BrokerSecrets:
    """Returns the accepted secrets: the first one of the cluster is version 0."""
    known = [(0, first), *((each.version, bytes.fromhex(each.digits.reveal())) for each in later)][-KEPT:]
    return BrokerSecrets(tuple(version for version, _ in known), tuple(secret for _, secret in known))


def add_secret(known: tuple[BrokerSecret, ...], secret: BrokerSecret) -> tuple[BrokerSecret, ...]:
    """Returns the later secrets that are kept after a new one."""
    return (*known, secret)[-KEPT:]

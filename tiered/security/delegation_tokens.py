"""Delegation tokens (KIP-48): short-lived credentials, by which their bearers act as the owner.

A token is an id in the metadata, with its owner and its times. Its HMAC follows from the id and from the secret key of
the brokers (`delegation.token.secret.key`), and is stored nowhere. The bearer logs in by SCRAM, with the id as the user
and the HMAC in base64 as the password. All this is as in Kafka.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256, sha512
from hmac import digest
from typing import NamedTuple

from tiered.security.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    make_credential,
    make_salt,
    salt_password,
)
from tiered.security.secret import Secret


class DelegationToken(NamedTuple):
    """A token as the metadata has it. Principals are texts, such as `User:alice`."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    max_ms: int
    """The expiry is never later."""
    expiry_ms: int

    def is_expired(self, now_ms: int) -> bool:
        """True if the token is no proof any more."""
        return self.expiry_ms < now_ms or self.max_ms < now_ms

    def can_renew(self, principal: str) -> bool:
        """True if a principal may change the expiry."""
        return principal == self.owner or principal in self.renewers

    def belongs_to(self, principal: str) -> bool:
        """True if a principal may see the token without any right."""
        return principal == self.requester or self.can_renew(principal)


def make_hmac(key: Secret, token_id: str) -> bytes:
    """Returns the HMAC of a token, which proves the token."""
    return digest(key.reveal().encode(), token_id.encode(), sha512)


def make_token_credential(key: Secret, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
    """Returns the SCRAM credential of a token, on every broker the same. Takes a few milliseconds."""
    salt = make_salt(digest(key.reveal().encode(), f"salt {mechanism.mechanism_name} {token_id}".encode(), sha256))
    password = b64encode(make_hmac(key, token_id)).decode()
    salted = salt_password(mechanism, password, salt, ITERATIONS_MIN)
    return make_credential(mechanism, salted, salt, ITERATIONS_MIN)

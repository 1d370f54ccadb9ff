"""The login of brokers at each other: SCRAM with the secret of the brokers in place of a password.

The secrets are in the bucket (`broker_secrets`), so every process that reads the bucket counts as a broker. Both sides
prove that they know a secret, and neither sends it. The user name is that of a broker, such as `broker-3`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tiered.security.broker_secrets import BrokerSecrets
from tiered.security.principal import BROKER, Principal
from tiered.security.scram import (
    ITERATIONS_MIN,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    make_credential,
    salt_password,
)

MECHANISM = "TIERED-BROKER"
"""Name of the mechanism. Replies to clients do not list it."""
_HASH = ScramMechanism.SHA_256
_SALT = b"tiered-brokers"
_NAME = re.compile(r"broker-(0|[1-9][0-9]{0,9})")


def user_name(node_id: int) -> str:
    """Returns the user name of a broker."""
    return f"broker-{node_id}"


def principal_of(user: str) -> Principal:
    """Returns the principal of a broker that has logged in."""
    return Principal(BROKER, user.removeprefix("broker-"))


def find_credentials(secrets: BrokerSecrets, user: str) -> tuple[ScramCredential, ...]:
    """Returns the credentials of a broker, one for each accepted secret. There are none if the name is not a broker's,
    or if this broker has no secret yet."""
    return tuple(map(_credential, secrets.accepted)) if _NAME.fullmatch(user) else ()


def make_client(secret: bytes, node_id: int, nonce: str) -> ScramClient:
    """Returns the client's side of a broker's login."""
    return ScramClient(_HASH, user_name(node_id), _password(secret), nonce)


@lru_cache(maxsize=8)
def _credential(secret: bytes) -> ScramCredential:
    salted = salt_password(_HASH, _password(secret), _SALT, ITERATIONS_MIN)
    return make_credential(_HASH, salted, _SALT, ITERATIONS_MIN)


def _password(secret: bytes) -> str:
    return secret.hex()

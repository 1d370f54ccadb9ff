"""The origin of a request: the principal that a connection has proved, and the host of the client."""

from __future__ import annotations

from typing import NamedTuple

USER = "User"
"""Kind of the principals of clients, as in Kafka."""
BROKER = "Broker"
"""Kind of the principals of brokers."""


class Principal(NamedTuple):
    """A principal, in Kafka's form `kind:name`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def read_principal(text: str) -> Principal:
    """Returns the principal of a text, such as `User:alice`."""
    kind, _, name = text.partition(":")
    return Principal(kind, name)


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""Principal of a client of a listener without login, as in Kafka."""


class Caller(NamedTuple):
    """The principal that sends a request, and the host that it comes from. Kafka's name for it is session."""

    principal: Principal
    host: str
    by_token: bool = False
    """True if a delegation token proved the principal."""

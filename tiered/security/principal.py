"""The origin of a request: the principal that a connection has proved, and the host of the client."""

from __future__ import annotations

from typing import NamedTuple

from tiered.networks import network_of
from tiered.security.acls import ANY_USER

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


def can_be_issued(name: str) -> bool:
    """Returns false for a name that an issuer of tokens or certificates may give to nobody.

    A blank at either end would make two names look like one. `*` and `ANONYMOUS` stand for everybody and for clients
    without a login. Kafka takes these two, and removes the blanks.
    """
    return name == name.strip() and name not in ("", ANONYMOUS.name, read_principal(ANY_USER).name)


class Caller(NamedTuple):
    """The principal that sends a request, and the host that it comes from. Kafka's name for it is session."""

    principal: Principal
    host: str
    by_token: bool = False
    """True if a delegation token proved the principal."""
    shares_of: str = ""
    """The holder for which a broker sends a request of its own, such as the offsets of a transaction over HTTP."""
    client_id: str = ""
    """The client id of a request over HTTP, if quotas depend on it."""

    @property
    def holder(self) -> str:
        """The name under which the caller has shares of a broker: the principal, else the network of the host. A
        broker has none of its own: "", unless it works for a holder."""
        if self.principal == ANONYMOUS:
            return network_of(self.host)
        return self.shares_of if self.principal.kind == BROKER else str(self.principal)

"""Listeners for the Kafka protocol, bound and advertised, parsed from Kafka's syntax.

`listeners` are the addresses to bind, `advertised.listeners` the addresses for clients, both as `NAME://HOST:PORT,...`.
The name connects them: a client gets the advertised address of the listener that it uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tiered.errors import Refused

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
BUILT = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
ANY_HOST = "0.0.0.0"
WILDCARDS = (ANY_HOST, "::", "")
_ORIGIN = re.compile(r"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
Refuse = Callable[[str, str], Refused]


class Endpoint(NamedTuple):
    """One listener: its name and an address to bind or to advertise."""

    name: str
    host: str
    port: int
    protocol: str = PLAINTEXT
    """The security protocol."""

    @property
    def is_encrypted(self) -> bool:
        """True if clients speak TLS."""
        return self.protocol.endswith("SSL")

    @property
    def requires_login(self) -> bool:
        """True if clients have to log in."""
        return self.protocol.startswith("SASL_")

    @property
    def address(self) -> str:
        """HOST:PORT, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host_port(text: str) -> tuple[str, int] | None:
    """Returns the parts of `HOST:PORT`, the host may be empty; None if the text has another form."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        return None
    return host.strip("[]"), int(port)


def parse_http_origin(text: str, bound_port: int, default_scheme: str = "http") -> str | None:
    """Returns `http(s)://HOST:PORT` for HOST:PORT, or for `http(s)://HOST[:PORT]`; None if the text is neither.

    Port 0 stands for the port that is bound.
    """
    match = _ORIGIN.fullmatch(text)
    if match is None:
        return None
    scheme, host, port = match.groups()
    if (scheme is None and port is None) or host.strip("[]") in WILDCARDS or int(port or 0) > 65535:
        return None
    return f"{scheme or default_scheme}://{host}" + ("" if port is None else f":{int(port) or bound_port}")


def parse(texts: Sequence[str], skipped: Sequence[str], refuse: Refuse) -> tuple[Endpoint, ...]:
    """Returns the endpoints of a list in Kafka's syntax, without those named in `skipped` (controllers).

    `refuse` makes the error for a text, with the reason.
    """
    endpoints: dict[str, Endpoint] = {}
    for text in texts:
        name, separator, address = text.partition("://")
        host_port = parse_host_port(address)
        if not separator or not name or host_port is None:
            raise refuse(text, "it must be NAME://HOST:PORT")
        name = name.upper()
        if name in endpoints:
            raise refuse(text, f"the name {name} is given twice")
        if name not in skipped:
            endpoints[name] = Endpoint(name, *host_port)
    return tuple(endpoints.values())


def with_protocols(endpoints: Sequence[Endpoint], protocols: Sequence[str], refuse: Refuse) -> tuple[Endpoint, ...]:
    """Returns the endpoints with their security protocols, which `protocols` gives as NAME:PROTOCOL.

    A listener that is not named there has the protocol of its own name, or else plain text. An unknown protocol is
    refused: plain text in its place would betray its user.
    """
    given = dict(pair.upper().split(":", 1) for pair in protocols if ":" in pair)
    found = []
    for endpoint in endpoints:
        default = endpoint.name if endpoint.name in BUILT else PLAINTEXT
        protocol = given.get(endpoint.name, default)
        if protocol not in BUILT:
            why = f"{protocol} is no protocol of a listener: it must be {', '.join(BUILT)}"
            raise refuse(f"{endpoint.name}://{endpoint.address}", why)
        found.append(endpoint._replace(protocol=protocol))
    return tuple(found)


def find_inter_broker(endpoints: Sequence[Endpoint], name: str, protocol: str) -> Endpoint | None:
    """Returns the listener for other brokers: that of a name, or the first one with a protocol, or the first one."""
    if name:
        return next((each for each in endpoints if each.name == name), None)
    if protocol:
        return next((each for each in endpoints if each.protocol == protocol), None)
    return next(iter(endpoints), None)


def advertise(bound: Sequence[Endpoint], advertised: Sequence[Endpoint], hostname: str) -> tuple[Endpoint, ...]:
    """Returns the endpoints that clients get for the bound listeners.

    An advertised endpoint with the listener's name wins over the listener's own address. This machine's `hostname`
    replaces a wildcard host. Port 0 stands for the port that is bound.
    """
    given = {endpoint.name: endpoint for endpoint in advertised}
    endpoints = []
    for endpoint in bound:
        chosen = given.get(endpoint.name, endpoint)
        host = hostname if chosen.host in WILDCARDS else chosen.host
        endpoints.append(endpoint._replace(host=host, port=chosen.port or endpoint.port))
    return tuple(endpoints)

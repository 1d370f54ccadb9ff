"""Where a broker listens for the Kafka protocol, and which addresses it tells clients: Kafka's syntax, taken apart.

`listeners` says where to bind, `advertised.listeners` what clients are told, both as `NAME://HOST:PORT,...`; the name
ties them together, and a client is told the address of the listener through which it asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tiered.errors import Refused

PLAINTEXT = "PLAINTEXT"
ANY_HOST = "0.0.0.0"
WILDCARDS = (ANY_HOST, "::", "")
_ORIGIN = re.compile(r"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
Refuse = Callable[[str, str], Refused]


class Endpoint(NamedTuple):
    """One listener: its name and an address to bind to, or to tell clients."""

    name: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """HOST:PORT, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host_port(text: str) -> tuple[str, int] | None:
    """`HOST:PORT` taken apart, the host may be empty; None when it is not that."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        return None
    return host.strip("[]"), int(port)


def parse_http_origin(text: str, bound_port: int) -> str | None:
    """`http://HOST:PORT` of HOST:PORT, or of `http(s)://HOST[:PORT]`; None when the text is neither. Port 0 stands for
    the port that is bound."""
    found = _ORIGIN.fullmatch(text)
    if found is None:
        return None
    scheme, host, port = found.groups()
    if (scheme is None and port is None) or host.strip("[]") in WILDCARDS or int(port or 0) > 65535:
        return None
    return f"{scheme or 'http'}://{host}" + ("" if port is None else f":{int(port) or bound_port}")


def parse(texts: Sequence[str], skipped: Sequence[str], refuse: Refuse) -> tuple[Endpoint, ...]:
    """The endpoints of a list in Kafka's syntax, those named in `skipped` (controllers) left out. `refuse` makes the
    refusal of a text, with the reason."""
    found: dict[str, Endpoint] = {}
    for text in texts:
        name, separator, address = text.partition("://")
        place = parse_host_port(address)
        if not separator or not name or place is None:
            raise refuse(text, "it must be NAME://HOST:PORT")
        name = name.upper()
        if name in found:
            raise refuse(text, f"the name {name} is given twice")
        if name not in skipped:
            found[name] = Endpoint(name, *place)
    return tuple(found.values())


def check_protocols(endpoints: Sequence[Endpoint], protocols: Sequence[str], refuse: Refuse) -> None:
    """Refuses a listener whose protocol is not plain text: nothing else is built yet, and plain text instead of what
    was asked for would betray who asked."""
    given = dict(pair.upper().split(":", 1) for pair in protocols if ":" in pair)
    for endpoint in endpoints:
        known = {"SSL", "SASL_PLAINTEXT", "SASL_SSL", PLAINTEXT}
        protocol = given.get(endpoint.name, endpoint.name if endpoint.name in known else PLAINTEXT)
        if protocol != PLAINTEXT:
            raise refuse(f"{endpoint.name}://{endpoint.address}", f"{protocol} is not built yet, only PLAINTEXT is")


def advertise(bound: Sequence[Endpoint], advertised: Sequence[Endpoint], hostname: str) -> tuple[Endpoint, ...]:
    """What clients are told of each bound listener: what was given for its name, else its own address, with this
    machine's `hostname` for one that listens everywhere. Port 0 stands for the port that is bound."""
    given = {endpoint.name: endpoint for endpoint in advertised}
    made = []
    for endpoint in bound:
        one = given.get(endpoint.name, endpoint)
        host = hostname if one.host in WILDCARDS else one.host
        made.append(Endpoint(endpoint.name, host, one.port or endpoint.port))
    return tuple(made)

"""The value of `max.connections.per.ip.overrides`: ADDRESS:CONNECTIONS,... as in Kafka, without names of hosts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address

from tiered.errors import Code, Refused

NAME = "max.connections.per.ip.overrides"
_INT_MAX = 2**31 - 1


@lru_cache(maxsize=16)
def read_ip_overrides(words: tuple[str, ...]) -> Mapping[str, int]:
    """Returns the most connections by address, in the form that hosts of connections have. Raises `Refused`
    (INVALID_CONFIG)."""
    found: dict[str, int] = {}
    for word in words:
        address, _, number = word.rpartition(":")
        if not number.isdecimal() or int(number) > _INT_MAX:
            raise _refuse(word, "it must be ADDRESS:CONNECTIONS")
        try:
            host = ip_address(address.strip("[]")).compressed
        except ValueError:
            raise _refuse(word, "it must begin with an IP address: names of hosts have no limits") from None
        if host in found:
            raise _refuse(word, "the address is given twice")
        found[host] = int(number)
    return found


def _refuse(word: str, why: str) -> Refused:
    return Refused(Code.INVALID_CONFIG, f"{NAME}={word[:200]}: {why}")

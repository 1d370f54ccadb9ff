"""The network that an address counts with, where a limit holds for each address by default.

A host of IPv6 owns a network of 64 bits, and may connect from any of its addresses. An IPv4 address counts alone.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network

HOST_BITS = 64
_NAT64 = IPv6Network("64:ff9b::/96")
"""IPv4 addresses behind a translator: each is that of another host."""


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """Returns the text that stands for an address in counts, such as `2001:db8::/64`: the address itself for IPv4, and
    for addresses of IPv6 whose network belongs to many hosts."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback or address.is_link_local or address in _NAT64:
        return host
    return f"{IPv6Address(int(address) >> HOST_BITS << HOST_BITS)}/{HOST_BITS}"


@lru_cache(maxsize=4096)
def neighbourhood_of(host: str) -> str:
    """Returns the network around that of an address, such as `10.0.0.0/24` or `2001:db8::/48`: one customer often has
    all of it. The text is that of `network_of` if the host is none."""
    counted = network_of(host)
    try:
        address = ip_address(counted.partition("/")[0])
    except ValueError:
        return counted
    return str(ip_network((address, 24 if address.version == 4 else 48), strict=False))

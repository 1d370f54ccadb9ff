"""The network that an address counts with: an IPv4 address alone, one of IPv6 with all others of its host."""

from __future__ import annotations

import pytest

from tiered.networks import network_of


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::7", "2001:db8:1:3::/64"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("::1", "::1"),
        ("fe80::7", "fe80::7"),
        ("64:ff9b::a00:7", "64:ff9b::a00:7"),
        ("gone", "gone"),
        ("", ""),
        ("a:b", "a:b"),
    ],
)
def test_address_counts_with_its_network(host: str, counted: str) -> None:
    assert network_of(host) == counted

"""The network that an address counts with: an IPv4 address alone, one of IPv6 with all others of its host."""

from __future__ import annotations

import pytest

from tiered.networks import neighbourhood_of, network_of


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


@pytest.mark.parametrize(
    ("host", "around"),
    [
        ("10.0.0.7", "10.0.0.0/24"),
        ("2001:db8:1:2::7", "2001:db8:1::/48"),
        ("::ffff:10.0.0.7", "10.0.0.0/24"),
        ("gone", "gone"),
        ("", ""),
    ],
)
def test_neighbourhood_is_the_network_around_an_address(host: str, around: str) -> None:
    assert neighbourhood_of(host) == around

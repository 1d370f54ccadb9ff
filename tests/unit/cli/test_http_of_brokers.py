"""Tests of the address of a broker's HTTP by what the cluster says."""

from __future__ import annotations

import pytest

from tiered_api.cli.explain.http_of_brokers import resolve_http


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8082", "http://127.0.0.1:8082"),
        ("http://0.0.0.0:8082", "http://kafka-1:8082"),
        ("https://[::]:8443", "https://kafka-1:8443"),
        ("https://logs.example", "https://logs.example:443"),
        ("http://[::1]:80", "http://[::1]:80"),
        ("", ""),
    ],
)
def test_http_of_a_broker_is_where_it_says(url: str, address: str) -> None:
    assert resolve_http(url, "kafka-1") == address

"""Tests of the rows of brokers in the health of the cluster."""

from __future__ import annotations

import pytest

from tiered.metadata.parts.brokers import BrokerImage
from tiered_api.http.overview.cluster import summarize_broker

BOTH = {"INTERNAL": "one:19092", "CLIENT": "one:9092"}


@pytest.mark.parametrize(
    ("listeners", "inter_broker", "address"),
    [
        (BOTH, "INTERNAL", "one:9092"),
        (BOTH, "CLIENT", "one:19092"),
        (BOTH, "", "one:19092"),
        ({"INTERNAL": "one:19092"}, "INTERNAL", "one:19092"),
        ({}, "INTERNAL", None),
    ],
)
def test_address_of_a_broker_is_that_of_clients(
    listeners: dict[str, str], inter_broker: str, address: str | None
) -> None:
    broker = BrokerImage(1, "a", "b", "one:8082", "", True, 0, listeners)
    assert summarize_broker(broker, inter_broker).address == address

"""Tests of the rule which requests of one connection may overlap."""

from __future__ import annotations

from tiered_api.kafka.protocol.apis import ALL_APIS
from tiered_api.kafka.server.slots.request_order import may_begin


def test_clients_overlap_only_produces_and_only_fetches() -> None:
    pairs = [(key, waiting) for key in ALL_APIS for waiting in ALL_APIS if may_begin(key, waiting, False)]
    names = [(ALL_APIS[key].name, ALL_APIS[waiting].name) for key, waiting in pairs]
    assert names == [("Produce", "Produce"), ("Fetch", "Fetch")]


def test_requests_of_a_broker_overlap_any_others() -> None:
    assert all(may_begin(key, waiting, True) for key in ALL_APIS for waiting in ALL_APIS)

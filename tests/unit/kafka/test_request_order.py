"""Tests of the rules which requests of one connection may overlap, and how many may wait."""

from __future__ import annotations

from tiered_api.kafka.protocol.apis import ALL_APIS
from tiered_api.kafka.server.slots.request_order import (
    FETCH,
    PRODUCE,
    WAITING_MAX,
    WAITING_PRODUCE_MAX,
    is_full,
    may_begin,
)


def test_clients_overlap_only_produces_and_only_fetches() -> None:
    pairs = [(key, waiting) for key in ALL_APIS for waiting in ALL_APIS if may_begin(key, waiting, False)]
    names = [(ALL_APIS[key].name, ALL_APIS[waiting].name) for key, waiting in pairs]
    assert names == [("Produce", "Produce"), ("Fetch", "Fetch")]


def test_requests_of_a_broker_overlap_any_others() -> None:
    assert all(may_begin(key, waiting, True) for key in ALL_APIS for waiting in ALL_APIS)


def test_more_produces_may_wait_than_others() -> None:
    assert not is_full(WAITING_MAX - 1, FETCH, 10, 500)
    assert is_full(WAITING_MAX, FETCH, 10, 500)
    assert not is_full(WAITING_MAX, PRODUCE, 10, 500)
    assert is_full(WAITING_PRODUCE_MAX, PRODUCE, 150, 500)


def test_no_client_takes_the_room_of_others_by_its_produces() -> None:
    assert is_full(WAITING_MAX, PRODUCE, 250, 500), "the upper half is for the first five of each connection"
    assert not is_full(1, PRODUCE, 499, 500)
    assert is_full(1, PRODUCE, 500, 500)

"""The limit of a user and client id: the first of Kafka's eight levels that has one, against a naive search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.quotas.entity import CLIENT_ID, IP, USER, QuotaEntity, make_entity
from tiered.quotas.precedence import Limit, QuotaTable
from tiered.quotas.validation import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    STORE_REQUEST_RATE,
)

LEVELS: tuple[tuple[QuotaEntity, tuple[str, str]], ...] = (
    (make_entity([(USER, "u"), (CLIENT_ID, "c")]), ("u", "c")),
    (make_entity([(USER, "u"), (CLIENT_ID, None)]), ("u", "c")),
    (make_entity([(USER, "u")]), ("u", "")),
    (make_entity([(USER, None), (CLIENT_ID, "c")]), ("u", "c")),
    (make_entity([(USER, None), (CLIENT_ID, None)]), ("u", "c")),
    (make_entity([(USER, None)]), ("u", "")),
    (make_entity([(CLIENT_ID, "c")]), ("", "c")),
    (make_entity([(CLIENT_ID, None)]), ("", "c")),
)
"""The levels, the strongest first, and the parts of the caller that count together."""
OTHERS = (make_entity([(USER, "x")]), make_entity([(CLIENT_ID, "x")]), make_entity([(USER, "u"), (CLIENT_ID, "x")]))


@given(st.sets(st.integers(0, 7)), st.sets(st.sampled_from(OTHERS)))
def test_first_level_with_a_quota_holds(present: set[int], others: set[QuotaEntity]) -> None:
    quotas = {LEVELS[at][0]: {PRODUCER_BYTE_RATE: float(at + 1)} for at in present}
    table = QuotaTable({**quotas, **{entity: {PRODUCER_BYTE_RATE: 99.0} for entity in others}})
    expected = Limit(min(present) + 1.0, *LEVELS[min(present)][1], PRODUCER_BYTE_RATE) if present else None
    assert table.find_limit(PRODUCER_BYTE_RATE, "u", "c") == expected
    assert table.find_limit(CONSUMER_BYTE_RATE, "u", "c") is None


def test_keys_take_their_limits_from_different_levels() -> None:
    table = QuotaTable({LEVELS[0][0]: {PRODUCER_BYTE_RATE: 1.0}, LEVELS[7][0]: {CONSUMER_BYTE_RATE: 2.0}})
    assert table.find_limit(PRODUCER_BYTE_RATE, "u", "c") == Limit(1.0, "u", "c", PRODUCER_BYTE_RATE)
    assert table.find_limit(CONSUMER_BYTE_RATE, "u", "c") == Limit(2.0, "", "c", CONSUMER_BYTE_RATE)


@pytest.mark.parametrize(
    ("host", "bound"), [("10.0.0.1", 5.0), ("10.0.0.2", 7.0), ("::1", 9.0)], ids=["named", "default", "other spelling"]
)
def test_address_has_its_own_bound_or_the_default(host: str, bound: float) -> None:
    table = QuotaTable(
        {
            ((IP, "10.0.0.1"),): {CONNECTION_CREATION_RATE: 5.0},
            ((IP, None),): {CONNECTION_CREATION_RATE: 7.0},
            ((IP, "0:0::1"),): {CONNECTION_CREATION_RATE: 9.0},
        }
    )
    assert (table.find_ip_bound(host), table.has_client_quotas) == (bound, False)


def test_cluster_without_quotas_says_so() -> None:
    table = QuotaTable({})
    assert (table.has_client_quotas, table.find_ip_bound("h")) == (False, None)


def test_default_holds_for_users_without_a_quota() -> None:
    quotas: dict[QuotaEntity, dict[str, float]] = {(("user", "alice"),): {"store_request_rate": 5.0}}
    table = QuotaTable(quotas, {"store_request_rate": 1.0})
    assert table.find_limit(STORE_REQUEST_RATE, "alice", "app") == Limit(5.0, "alice", "", STORE_REQUEST_RATE)
    assert table.find_limit(STORE_REQUEST_RATE, "bob", "app") == Limit(1.0, "bob", "", STORE_REQUEST_RATE)
    assert table.has_client_quotas
    chosen = QuotaTable({(("user", None),): {"store_request_rate": 7.0}}, {"store_request_rate": 1.0})
    assert chosen.find_limit(STORE_REQUEST_RATE, "bob", "app") == Limit(7.0, "bob", "", STORE_REQUEST_RATE)

"""The rule for transactions without a coordinator: two answers, nothing written in between, the same coordinators."""

from __future__ import annotations

import pytest

from tiered.ids import TopicPartition
from tiered.transactions.orphans import OpenTransaction, OrphanRule

COORDINATORS = {0: (1, 5), 1: (2, 7)}
OPEN = OpenTransaction(TopicPartition("t", 0), 3, 77, 4, 10, (12, 1_000))


def test_transaction_that_two_answers_do_not_know_is_an_orphan() -> None:
    rule = OrphanRule()
    assert rule.find_orphans([OPEN], (), COORDINATORS) == []
    assert rule.find_orphans([OPEN], (), COORDINATORS) == [OPEN]


def test_transaction_that_its_coordinator_knows_is_none() -> None:
    rule = OrphanRule()
    for _ in range(3):
        assert rule.find_orphans([OPEN], {77}, COORDINATORS) == []
    assert rule.find_orphans([OPEN], (), COORDINATORS) == [], "the answers before do not count"


@pytest.mark.parametrize(
    "later",
    [
        OPEN._replace(last_write=(13, 1_000)),
        OPEN._replace(producer_epoch=5),
        OPEN._replace(first_offset=20),
        OPEN._replace(leader_epoch=4),
    ],
)
def test_transaction_that_changed_between_the_answers_is_none(later: OpenTransaction) -> None:
    rule = OrphanRule()
    rule.find_orphans([OPEN], (), COORDINATORS)
    assert rule.find_orphans([later], (), COORDINATORS) == []
    assert rule.find_orphans([later], (), COORDINATORS) == [later]


def test_answers_of_other_coordinators_do_not_count_together() -> None:
    rule = OrphanRule()
    rule.find_orphans([OPEN], (), COORDINATORS)
    moved = {**COORDINATORS, 1: (1, 8)}
    assert rule.find_orphans([OPEN], (), moved) == []
    rule.forget()
    assert rule.find_orphans([OPEN], (), moved) == []
    assert rule.find_orphans([OPEN], (), moved) == [OPEN]

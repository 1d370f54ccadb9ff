"""Tests of guards: no record follows the marker that ends its transaction (KIP-890)."""

from __future__ import annotations

import pytest

from tests.unit.producers.builders import (
    PRODUCER,
    Partition,
)
from tiered.errors import Code
from tiered.producers.verification import UnverifiedProducer, VerificationGuards


@pytest.fixture
def partition() -> Partition:
    return Partition()


def test_transaction_without_a_guard_is_refused(partition: Partition) -> None:
    assert partition.append(0) is Code.INVALID_TXN_STATE
    assert partition.needs_verification(0)
    partition.begin()
    assert partition.append(1) is None, "the open transaction goes on without a guard"
    assert not partition.needs_verification(2)


def test_marker_invalidates_the_guards_of_requests_that_wait(partition: Partition) -> None:
    partition.begin()
    assert partition.end() is True
    waiting = partition.guard(sequence=1)
    assert partition.end() is False, "the repeated marker is in the log already"
    assert partition.append(1, guard=waiting) is Code.INVALID_TXN_STATE
    assert not partition.is_open


def test_marker_of_an_unknown_producer_invalidates_its_guard(partition: Partition) -> None:
    waiting = partition.guard()
    assert partition.end() is True
    assert partition.append(0, guard=waiting) is Code.INVALID_TXN_STATE


def test_end_of_an_epoch_invalidates_the_guard_of_each_earlier_one() -> None:
    guards = VerificationGuards()
    guard = guards.begin(UnverifiedProducer(PRODUCER, 3), moves_epoch=False)
    guards.invalidate(PRODUCER, 2)
    assert guards.is_valid(guard, PRODUCER, 3)
    guards.invalidate(PRODUCER, 5)
    assert not guards.is_valid(guard, PRODUCER, 3)


def test_requests_that_wait_together_share_one_guard(partition: Partition) -> None:
    first, second = partition.guard(sequence=0), partition.guard(sequence=1)
    assert partition.append(1, guard=second) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(0, guard=first) is None
    partition.states.guards.end(first)
    assert partition.append(1, guard=second) is None


def test_guard_of_an_earlier_transaction_begins_no_later_one(partition: Partition) -> None:
    guard = partition.guard()
    assert partition.append(0, guard=guard) is None
    assert partition.end() is True
    assert partition.append(1, guard=guard) is Code.INVALID_TXN_STATE


def test_marker_of_version_2_spares_the_guard_of_the_next_transaction(partition: Partition) -> None:
    partition.begin(epoch=3)
    late, waiting = partition.guard(3), partition.guard(4)
    assert partition.end(epoch=4, version=2) is True
    assert partition.append(0, epoch=4, guard=waiting) is None
    assert partition.append(1, epoch=3, guard=late) is Code.INVALID_PRODUCER_EPOCH


def test_marker_of_version_2_invalidates_the_guard_of_its_transaction(partition: Partition) -> None:
    waiting = partition.guard(3)
    assert partition.end(epoch=4, version=2) is True
    assert partition.append(0, epoch=3, guard=waiting) is Code.INVALID_TXN_STATE


def test_guard_that_was_given_back_is_invalid(partition: Partition) -> None:
    guard = partition.guard()
    partition.states.guards.end(guard)
    assert partition.append(0, guard=guard) is Code.INVALID_TXN_STATE


def test_guard_of_a_later_epoch_replaces_an_earlier_one_only(partition: Partition) -> None:
    old, new, zombie = partition.guard(0), partition.guard(1), partition.guard(0)
    assert partition.append(0, epoch=0, guard=old) is Code.INVALID_TXN_STATE
    assert partition.append(0, epoch=0, guard=zombie) is Code.INVALID_TXN_STATE
    partition.states.guards.end(zombie)
    assert partition.append(0, epoch=1, guard=new) is None


def test_retry_within_a_transaction_needs_no_guard(partition: Partition) -> None:
    partition.begin()
    assert not partition.needs_verification(0)
    assert partition.append(0) is None
    assert partition.states.end_offset == 1


def test_guard_ends_with_the_leadership(partition: Partition) -> None:
    waiting = partition.guard()
    partition.states.guards.clear()
    assert partition.append(0, guard=waiting) is Code.INVALID_TXN_STATE
    partition.states.guards.end(waiting)
    partition.begin()

"""Tests of the rules of one batch in a transaction."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.unit.hot.fixtures import NOW
from tests.unit.producers.builders import (
    PRODUCER,
    TOP,
    Partition,
    walked_batch,
)
from tiered.errors import Code, Refused
from tiered.producers.append_checks import check_sequence
from tiered.producers.entry import BatchMetadata, ProducerStateEntry
from tiered.producers.states import ProducerStates
from tiered.records.marker import TransactionMarker


@pytest.fixture
def partition() -> Partition:
    return Partition()


def test_record_outside_of_the_open_transaction_is_refused(partition: Partition) -> None:
    partition.begin()
    assert partition.append(1, transactional=False) is Code.INVALID_TXN_STATE
    assert partition.end() is True
    assert partition.append(1, transactional=False) is None


def test_later_epoch_does_not_join_a_transaction_that_is_open(partition: Partition) -> None:
    partition.begin()
    assert partition.append(0, epoch=1, guard=partition.guard(1)) is Code.INVALID_TXN_STATE


def test_batch_of_an_ended_transaction_is_no_retry_in_the_next_one(partition: Partition) -> None:
    partition.begin()
    assert partition.end(commit=False) is True
    assert partition.needs_verification(0)
    assert partition.append(0) is Code.INVALID_TXN_STATE
    guard = partition.guard()
    assert partition.append(0, guard=guard) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    partition.states.guards.end(guard)
    partition.begin(1)
    assert partition.append(0) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_forgotten_producer_whose_epoch_moves_begins_at_0(partition: Partition) -> None:
    partition.states.end_offset = 40
    guard = partition.guard(sequence=3, moves_epoch=True)
    assert partition.append(3, guard=guard) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    partition.states.guards.end(guard)
    assert partition.append(3, guard=partition.guard(sequence=3)) is None, "version 0 and 1 keep the epoch"


def test_coordinator_writes_without_sequences(partition: Partition) -> None:
    guard = partition.guard()
    assert partition.append(-1, from_coordinator=True) is Code.INVALID_TXN_STATE
    assert partition.append(-1, from_coordinator=True, guard=guard) is None
    assert partition.append(-1, from_coordinator=True) is None, "there are no retries to find"
    assert partition.states.end_offset == 2
    assert partition.end(epoch=1, version=2) is True
    assert partition.append(-1, epoch=0, from_coordinator=True, guard=guard) is Code.INVALID_TXN_STATE
    assert partition.append(-1, epoch=0, from_coordinator=True, transactional=False) is Code.INVALID_PRODUCER_EPOCH


def test_open_transaction_does_not_expire(partition: Partition) -> None:
    partition.begin()
    partition.states.known.remove_expired(NOW + 10**9, 1)
    assert partition.is_open
    assert partition.end() is True
    partition.states.known.remove_expired(NOW + 10**9, 1)
    assert partition.states.get(PRODUCER) is None


def test_coordinator_epoch_and_open_transaction_survive_a_snapshot(partition: Partition) -> None:
    partition.begin()
    assert partition.end(coordinator=5) is True
    partition.begin(1)
    again = ProducerStates.from_snapshot(partition.states.encode_snapshot(), partition.states.end_offset)
    found = again.get(PRODUCER)
    assert found is not None
    assert (found.coordinator_epoch, found.txn_first_offset) == (5, 2)
    assert again.txns.first_unstable_offset == 2
    with pytest.raises(Refused, match="coordinator epoch 4 is below 5"):
        again.is_marker_due(TransactionMarker(PRODUCER, 0, True, 4))


@pytest.mark.parametrize(
    ("epoch", "sequence", "before", "code"),
    [
        (3, 10, None, None),
        (3, 11, None, Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (2, 10, None, Code.INVALID_PRODUCER_EPOCH),
        (4, 0, None, None),
        (4, 1, None, Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (3, 12, (3, 11), None),
        (3, 10, (3, 11), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (3, 0, (3, TOP), None),
    ],
)
def test_sequence_follows_the_request_or_the_log(
    epoch: int, sequence: int, before: tuple[int, int] | None, code: Code | None
) -> None:
    known = ProducerStateEntry(7, 3, [BatchMetadata(8, 9, 0, 1, NOW)])
    batch = walked_batch(sequence, epoch=epoch)
    with pytest.raises(Refused) if code else nullcontext() as refused:
        check_sequence(batch, known, before, is_empty=False)
    assert refused is None or refused.value.code is code

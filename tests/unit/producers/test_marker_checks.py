"""Tests of transaction markers: due, repeated, or refused."""

from __future__ import annotations

import pytest

from tests.unit.producers.builders import (
    PRODUCER,
    Partition,
)
from tiered.errors import Code, Refused
from tiered.producers.entry import ProducerStateEntry
from tiered.producers.marker_checks import is_marker_due
from tiered.records.marker import TransactionMarker


@pytest.fixture
def partition() -> Partition:
    return Partition()


def test_sequences_begin_at_0_after_a_marker_that_moved_the_epoch(partition: Partition) -> None:
    partition.begin()
    assert partition.append(1) is None
    assert partition.end(epoch=1, version=2) is True
    assert partition.append(2, epoch=1, guard=partition.guard(1, sequence=2)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(2, epoch=0, transactional=False) is Code.INVALID_PRODUCER_EPOCH
    assert partition.append(0, epoch=1, guard=partition.guard(1)) is None


@pytest.mark.parametrize("version", [0, 1])
def test_marker_of_versions_0_and_1_has_no_earlier_epoch_than_the_records(partition: Partition, version: int) -> None:
    partition.begin(epoch=3)
    assert partition.end(epoch=2, version=version) is Code.INVALID_PRODUCER_EPOCH
    assert partition.is_open
    assert partition.end(epoch=3, version=version) is True
    partition.begin(1, epoch=3)
    assert partition.end(epoch=4, version=version) is True
    assert not partition.is_open


def test_marker_of_version_2_has_a_later_epoch_than_the_records(partition: Partition) -> None:
    partition.begin(epoch=3)
    assert partition.end(epoch=3, version=2) is Code.INVALID_PRODUCER_EPOCH
    assert partition.is_open
    assert partition.end(epoch=4, version=2) is True
    assert not partition.is_open


def test_late_marker_does_not_end_the_next_transaction_of_version_2(partition: Partition) -> None:
    partition.begin(epoch=3)
    assert partition.end(epoch=4, version=2) is True
    partition.begin(epoch=4)
    assert partition.end(epoch=4, version=2) is Code.INVALID_PRODUCER_EPOCH
    assert partition.is_open


@pytest.mark.parametrize(("version", "epoch"), [(0, 0), (1, 0), (2, 1)])
def test_repeated_marker_changes_nothing(partition: Partition, version: int, epoch: int) -> None:
    partition.begin()
    assert partition.end(epoch=epoch, version=version) is True
    end = partition.states.end_offset
    assert partition.end(epoch=epoch, version=version) is False
    assert partition.states.end_offset == end


def test_marker_of_a_replaced_coordinator_is_refused(partition: Partition) -> None:
    partition.begin()
    assert partition.end(coordinator=5) is True
    partition.begin(1)
    assert partition.end(coordinator=4) is Code.TRANSACTION_COORDINATOR_FENCED
    assert partition.is_open
    assert partition.end(coordinator=6) is True


def test_marker_of_a_later_coordinator_is_written_again(partition: Partition) -> None:
    partition.begin()
    assert partition.end(coordinator=5) is True
    assert partition.end(coordinator=6) is True, "the log then fences the earlier coordinator"
    assert partition.end(coordinator=5) is Code.TRANSACTION_COORDINATOR_FENCED


def test_operator_aborts_an_open_transaction_of_its_epoch_only(partition: Partition) -> None:
    def abort(epoch: int, coordinator: int = 0, version: int = 0) -> Code | bool:
        try:
            return partition.states.is_abort_due(TransactionMarker(PRODUCER, epoch, False, coordinator, version))
        except Refused as refused:
            return refused.code

    assert abort(0) is Code.INVALID_TXN_STATE, "the producer is unknown"
    partition.begin(epoch=3)
    assert abort(2) is abort(4) is Code.INVALID_PRODUCER_EPOCH
    assert abort(3, coordinator=1) is Code.INVALID_REQUEST, "the coordinator would be fenced"
    assert abort(4, version=2) is True
    assert abort(3) is True
    partition.apply_marker(TransactionMarker(PRODUCER, 3, False, 0))
    assert abort(3) is False, "a repeated one changes nothing"
    assert abort(4) is Code.INVALID_TXN_STATE


def test_operator_aborts_pending_offsets_of_their_epoch_only(partition: Partition) -> None:
    def abort(epoch: int, coordinator: int = 0, version: int = 0) -> Code | bool:
        try:
            return partition.states.is_abort_due(TransactionMarker(PRODUCER, epoch, False, coordinator, version), 3)
        except Refused as refused:
            return refused.code

    for _ in range(2):
        assert abort(2) is abort(4) is Code.INVALID_PRODUCER_EPOCH
        assert abort(3, coordinator=6) is Code.INVALID_REQUEST, "the coordinator would be fenced"
        assert abort(4, version=2) is abort(3) is True
        partition.apply_marker(TransactionMarker(PRODUCER, 2, True, 5))
    assert abort(3, coordinator=5) is True, "the coordinator of the last marker is the same"


OPEN, ENDED = (ProducerStateEntry(PRODUCER, 5, coordinator_epoch=2, txn_first_offset=first) for first in (0, -1))


@pytest.mark.parametrize(
    ("known", "epoch", "coordinator", "version", "expected"),
    [
        (None, 0, 0, 0, True),
        (OPEN, 5, 2, 0, True),
        (OPEN, 6, 2, 2, True),
        (OPEN, 5, 2, 2, Code.INVALID_PRODUCER_EPOCH),
        (OPEN, 4, 2, 0, Code.INVALID_PRODUCER_EPOCH),
        (OPEN, 5, 1, 0, Code.TRANSACTION_COORDINATOR_FENCED),
        (ENDED, 5, 2, 0, False),
        (ENDED, 5, 3, 0, True),
    ],
)
def test_marker_is_due_unless_it_is_in_the_log(
    known: ProducerStateEntry | None, epoch: int, coordinator: int, version: int, expected: bool | Code
) -> None:
    marker = TransactionMarker(PRODUCER, epoch, True, coordinator, version)
    try:
        assert is_marker_due(marker, known) is expected
    except Refused as refused:
        assert refused.code is expected

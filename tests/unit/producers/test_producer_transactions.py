"""Tests of the rules of transactions in one partition: guards, epochs and sequences, and the markers of each
transaction version. They are the rules of Kafka's ProducerAppendInfo and UnifiedLog (KIP-98, KIP-890)."""

from __future__ import annotations

import pytest

from tests.unit.hot.fixtures import NOW
from tiered.errors import Code, Refused
from tiered.producers.states import ProducerStates
from tiered.producers.verification import UnverifiedProducer, VerificationGuard, VerificationGuards
from tiered.records.marker import TransactionMarker, encode_marker
from tiered.records.model import TRANSACTIONAL, BatchHeader, WalkedBatch
from tiered.records.native import walk

PRODUCER = 7


class Partition:
    """The producer states of one partition, and the offset of the next batch."""

    def __init__(self) -> None:
        self.states = ProducerStates()

    def guard(
        self, epoch: int = 0, *, sequence: int = 0, moves_epoch: bool = False, producer: int = PRODUCER
    ) -> VerificationGuard:
        return self.states.begin_verification(UnverifiedProducer(producer, epoch, sequence), moves_epoch)

    def batch(
        self, sequence: int, *, epoch: int = 0, transactional: bool = True, producer: int = PRODUCER
    ) -> WalkedBatch:
        offset = self.states.end_offset
        attributes = TRANSACTIONAL if transactional else 0
        return WalkedBatch(0, 100, offset, offset, 0, attributes, NOW, NOW, PRODUCER, epoch, sequence, 1)

    def append(
        self,
        sequence: int,
        *,
        epoch: int = 0,
        transactional: bool = True,
        guard: VerificationGuard | None = None,
        from_coordinator: bool = False,
    ) -> Code | None:
        """Appends a batch of one record. Returns the code of the refusal, None if there is none."""
        batch = self.batch(sequence, epoch=epoch, transactional=transactional)
        try:
            if not self.states.find_duplicates([batch], NOW, guard, from_coordinator=from_coordinator):
                self.states.apply(batch, NOW)
        except Refused as refused:
            return refused.code
        self.states.check()
        return None

    def begin(self, sequence: int = 0, *, epoch: int = 0) -> None:
        """Begins a transaction of the producer with one record."""
        guard = self.guard(epoch, sequence=sequence)
        assert self.append(sequence, epoch=epoch, guard=guard) is None
        self.states.end_verification(guard)

    def end(self, *, epoch: int = 0, commit: bool = True, coordinator: int = 0, version: int = 0) -> Code | bool:
        """Writes a marker if it is due. Returns True if it was written, or the code of the refusal."""
        marker = TransactionMarker(PRODUCER, epoch, commit, coordinator, version)
        try:
            due = self.states.is_marker_due(marker)
        except Refused as refused:
            return refused.code
        if due:
            self.apply_marker(marker)
        return due

    def apply_marker(self, marker: TransactionMarker) -> None:
        data = encode_marker(marker, NOW)
        batch = walk(data).batches[0]
        offset = self.states.end_offset
        self.states.end_transaction(batch._replace(base_offset=offset, last_offset=offset), data, NOW)

    @property
    def is_open(self) -> bool:
        found = self.states.get(PRODUCER)
        return found is not None and found.txn_first_offset >= 0

    def needs_verification(self, sequence: int, *, epoch: int = 0, transactional: bool = True) -> bool:
        attributes = TRANSACTIONAL if transactional else 0
        head = BatchHeader(0, 100, 0, 2, 0, attributes, 0, NOW, NOW, PRODUCER, epoch, sequence, 1)
        return self.states.find_unverified(head) is not None


@pytest.fixture
def partition() -> Partition:
    return Partition()


# -- guards -----------------------------------------------------------------------------------------------------------


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
    partition.states.end_verification(first)
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
    partition.states.end_verification(guard)
    assert partition.append(0, guard=guard) is Code.INVALID_TXN_STATE


def test_guard_of_a_later_epoch_replaces_an_earlier_one_only(partition: Partition) -> None:
    old, new, zombie = partition.guard(0), partition.guard(1), partition.guard(0)
    assert partition.append(0, epoch=0, guard=old) is Code.INVALID_TXN_STATE
    assert partition.append(0, epoch=0, guard=zombie) is Code.INVALID_TXN_STATE
    partition.states.end_verification(zombie)
    assert partition.append(0, epoch=1, guard=new) is None


# -- records ----------------------------------------------------------------------------------------------------------


def test_record_outside_of_the_open_transaction_is_refused(partition: Partition) -> None:
    partition.begin()
    assert partition.append(1, transactional=False) is Code.INVALID_TXN_STATE
    assert partition.end() is True
    assert partition.append(1, transactional=False) is None


def test_later_epoch_does_not_join_a_transaction_that_is_open(partition: Partition) -> None:
    partition.begin()
    assert partition.append(0, epoch=1, guard=partition.guard(1)) is Code.INVALID_TXN_STATE


def test_retry_within_a_transaction_needs_no_guard(partition: Partition) -> None:
    partition.begin()
    assert not partition.needs_verification(0)
    assert partition.append(0) is None
    assert partition.states.end_offset == 1


def test_batch_of_an_ended_transaction_is_no_retry_in_the_next_one(partition: Partition) -> None:
    partition.begin()
    assert partition.end(commit=False) is True
    assert partition.needs_verification(0)
    assert partition.append(0) is Code.INVALID_TXN_STATE
    guard = partition.guard()
    assert partition.append(0, guard=guard) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    partition.states.end_verification(guard)
    partition.begin(1)
    assert partition.append(0) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_begin_at_0_after_a_marker_that_moved_the_epoch(partition: Partition) -> None:
    partition.begin()
    assert partition.append(1) is None
    assert partition.end(epoch=1, version=2) is True
    assert partition.append(2, epoch=1, guard=partition.guard(1, sequence=2)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(2, epoch=0, transactional=False) is Code.INVALID_PRODUCER_EPOCH
    assert partition.append(0, epoch=1, guard=partition.guard(1)) is None


def test_forgotten_producer_whose_epoch_moves_begins_at_0(partition: Partition) -> None:
    partition.states.end_offset = 40
    guard = partition.guard(sequence=3, moves_epoch=True)
    assert partition.append(3, guard=guard) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    partition.states.end_verification(guard)
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


# -- markers ----------------------------------------------------------------------------------------------------------


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


def test_open_transaction_does_not_expire(partition: Partition) -> None:
    partition.begin()
    partition.states.remove_expired(NOW + 10**9, 1)
    assert partition.is_open
    assert partition.end() is True
    partition.states.remove_expired(NOW + 10**9, 1)
    assert partition.states.get(PRODUCER) is None


def test_coordinator_epoch_and_open_transaction_survive_a_snapshot(partition: Partition) -> None:
    partition.begin()
    assert partition.end(coordinator=5) is True
    partition.begin(1)
    again = ProducerStates.from_snapshot(partition.states.encode_snapshot(), partition.states.end_offset)
    found = again.get(PRODUCER)
    assert found is not None
    assert (found.coordinator_epoch, found.txn_first_offset) == (5, 2)
    assert again.first_unstable_offset == 2
    with pytest.raises(Refused, match="coordinator epoch 4 is below 5"):
        again.is_marker_due(TransactionMarker(PRODUCER, 0, True, 4))


# -- operators --------------------------------------------------------------------------------------------------------


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


def test_guard_ends_with_the_leadership(partition: Partition) -> None:
    waiting = partition.guard()
    partition.states.invalidate_verifications()
    assert partition.append(0, guard=waiting) is Code.INVALID_TXN_STATE
    partition.states.end_verification(waiting)
    partition.begin()

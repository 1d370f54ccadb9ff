"""Batches of producers, markers, and the producer states of one partition."""

from __future__ import annotations

import pytest

from tests.unit.hot.fixtures import NOW
from tiered.errors import Code, Refused
from tiered.ids import KEYED_FROM
from tiered.producers.limits import ProducerLimits
from tiered.producers.states import ProducerStates
from tiered.producers.verification import UnverifiedProducer, VerificationGuard
from tiered.records.batch import stamp
from tiered.records.marker import TransactionMarker, encode_marker
from tiered.records.model import CONTROL, TRANSACTIONAL, BatchHeader, WalkedBatch
from tiered.records.native import walk

TOP = 2**31 - 1


def walked_batch(
    sequence: int, count: int = 1, *, offset: int = 0, producer: int = 7, epoch: int = 0, attributes: int = 0
) -> WalkedBatch:
    return WalkedBatch(
        0, 100, offset, offset + count - 1, 0, attributes, NOW + offset, NOW, producer, epoch, sequence, count
    )


def apply_batches(*batches: WalkedBatch) -> ProducerStates:
    states = ProducerStates(1)
    for batch in batches:
        guard = states.guards.begin(UnverifiedProducer(batch.producer_id, batch.producer_epoch), False)
        assert not states.check_batches([batch], NOW, guard)
        states.apply(batch, NOW)
        states.guards.end(guard)
    states.check()
    return states


def refusal(states: ProducerStates, *batches: WalkedBatch) -> Code:
    with pytest.raises(Refused) as caught:
        states.check_batches(batches, NOW)
    return caught.value.code


def marker(offset: int, *, commit: bool, producer: int = 7) -> tuple[WalkedBatch, bytes]:
    """Returns a control batch at `offset`, as the transaction coordinator writes it."""
    data = encode_marker(TransactionMarker(producer, 0, commit, 3), NOW)
    stamp(data, 0, offset, 0)
    found = walk(data).batches[0]
    assert found.attributes & CONTROL
    return found, bytes(data)


def write_in_order(limits: ProducerLimits, *producers: int, at: int = NOW) -> ProducerStates:
    """Returns the leader's producer states after one batch of each producer, in that order."""
    states = ProducerStates(0, limits)
    for offset, producer in enumerate(producers):
        write(states, producer, offset, at=at)
    return states


def write(states: ProducerStates, producer: int, offset: int, *, at: int, sequence: int = 0) -> None:
    one = walked_batch(sequence, offset=offset, producer=producer)
    assert not states.check_batches([one], at)
    states.apply(one, at)


def producer_ids(states: ProducerStates) -> list[int]:
    return [each.producer_id for each in states.list_producers()]


def write_as(states: ProducerStates, holder: str, *producers: int, at: int = NOW) -> None:
    """Writes a batch of each producer of a holder."""
    for producer in producers:
        one = walked_batch(0, offset=states.end_offset, producer=producer)
        states.check_batches([one], at, holder=holder)
        states.apply(one, at)
    states.check()


def end_unknown(states: ProducerStates, producer: int) -> None:
    """Writes the marker of a transaction that had the partition, and wrote nothing there."""
    marker = TransactionMarker(producer, 1, False, 0, version=2)
    assert states.is_marker_due(marker)
    data = encode_marker(marker, NOW)
    stamp(data, 0, states.end_offset, 0)
    states.end_transaction(walk(data).batches[0], data, NOW)


KEY = KEYED_FROM + 5


PRODUCER = 7


class Partition:
    """The producer states of one partition, and the offset of the next batch."""

    def __init__(self) -> None:
        self.states = ProducerStates()

    def guard(
        self, epoch: int = 0, *, sequence: int = 0, moves_epoch: bool = False, producer: int = PRODUCER
    ) -> VerificationGuard:
        return self.states.guards.begin(UnverifiedProducer(producer, epoch, sequence), moves_epoch)

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
            if not self.states.check_batches([batch], NOW, guard, from_coordinator=from_coordinator):
                self.states.apply(batch, NOW)
        except Refused as refused:
            return refused.code
        self.states.check()
        return None

    def begin(self, sequence: int = 0, *, epoch: int = 0) -> None:
        """Begins a transaction of the producer with one record."""
        guard = self.guard(epoch, sequence=sequence)
        assert self.append(sequence, epoch=epoch, guard=guard) is None
        self.states.guards.end(guard)

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

"""Tests of idempotence: a retry gets the offset of its first try, and a batch out of order is refused."""

from __future__ import annotations

from tests.unit.hot.fixtures import NOW
from tests.unit.producers.builders import (
    TOP,
    apply_batches,
    refusal,
    walked_batch,
)
from tiered.errors import Code
from tiered.producers.states import ProducerStates


def test_last_five_batches_are_known_with_their_first_offsets() -> None:
    states = apply_batches(*[walked_batch(n * 2, 2, offset=n * 10) for n in range(6)])
    assert [states.check_batches([walked_batch(n * 2, 2)], NOW)[0].base_offset for n in range(1, 6)] == [
        10,
        20,
        30,
        40,
        50,
    ]
    assert refusal(states, walked_batch(0, 2)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_older_batches_of_an_earlier_epoch_are_no_retries() -> None:
    for epoch, known in ((1, 2), (0, 1)):
        states = apply_batches(walked_batch(0, epoch=1, offset=10), walked_batch(1, epoch=1, offset=11))
        again = ProducerStates.from_snapshot(states.encode_snapshot(), 12)
        again.restore_batches([walked_batch(0, epoch=epoch, offset=10)])
        producer = again.get(7)
        assert producer is not None and len(producer.batches) == known


def test_batch_must_follow_the_one_before_it() -> None:
    states = apply_batches(walked_batch(0, 3))
    assert states.check_batches([walked_batch(3)], NOW) == []
    assert refusal(states, walked_batch(4)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, walked_batch(1, 2)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_to_zero() -> None:
    states = apply_batches(walked_batch(TOP - 1, 2))
    assert states.check_batches([walked_batch(0)], NOW) == []
    wrapped = apply_batches(walked_batch(TOP, 3))
    assert wrapped.check_batches([walked_batch(2)], NOW) == []
    assert wrapped.check_batches([walked_batch(TOP, 3)], NOW)[0].last_sequence == 1
    assert ProducerStates(1).check_batches([walked_batch(TOP - 1, 2), walked_batch(0)], NOW) == [], "in one request"


def test_new_producer_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    states = apply_batches(walked_batch(0, 3), walked_batch(0, epoch=1, offset=3))
    for sequence in (1, 3):  # the one that follows in the present epoch, and another one
        assert refusal(states, walked_batch(sequence)) is Code.INVALID_PRODUCER_EPOCH
        assert refusal(states, walked_batch(sequence, epoch=2)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check_batches([walked_batch(0, epoch=2)], NOW) == []


def test_unknown_producer_must_begin_at_zero_only_in_an_empty_log() -> None:
    assert ProducerStates(1).check_batches([walked_batch(17)], NOW) == []
    assert ProducerStates().check_batches([walked_batch(0), walked_batch(1)], NOW) == []
    assert refusal(ProducerStates(), walked_batch(17)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_request_may_begin_with_a_duplicate_and_continue() -> None:
    states = apply_batches(walked_batch(0), walked_batch(1, offset=1))
    assert len(states.check_batches([walked_batch(0), walked_batch(1), walked_batch(2)], NOW)) == 2
    assert refusal(states, walked_batch(0), walked_batch(1), walked_batch(3)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, walked_batch(2), walked_batch(1)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER

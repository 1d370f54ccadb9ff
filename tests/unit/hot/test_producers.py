"""Idempotence: a retry is told where its first try stands, what is out of order is refused, snapshots keep it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hot.fixtures import NOW
from tiered.errors import Code, Corrupt, Refused
from tiered.hot.producers import Aborted, ProducerStates, decode_aborted
from tiered.records.batch import encode
from tiered.records.model import CONTROL, TRANSACTIONAL, Walked
from tiered.records.native import walk

TOP = 2**31 - 1


def seen(
    sequence: int, count: int = 1, *, offset: int = 0, producer: int = 7, epoch: int = 0, attributes: int = 0
) -> Walked:
    return Walked(
        0, 100, offset, offset + count - 1, 0, attributes, NOW + offset, NOW, producer, epoch, sequence, count
    )


def written(*batches: Walked) -> ProducerStates:
    states = ProducerStates(1)
    for batch in batches:
        assert not states.known([batch])
        states.apply(batch, NOW)
    states.check()
    return states


def refusal(states: ProducerStates, *batches: Walked) -> Code:
    with pytest.raises(Refused) as caught:
        states.known(batches)
    return caught.value.code


def test_the_last_five_batches_are_known_with_the_offsets_of_their_first_try() -> None:
    states = written(*[seen(n * 2, 2, offset=n * 10) for n in range(6)])
    assert [states.known([seen(n * 2, 2)])[0].base_offset for n in range(1, 6)] == [10, 20, 30, 40, 50]
    assert refusal(states, seen(0, 2)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_follows_the_one_before_it() -> None:
    states = written(seen(0, 3))
    assert states.known([seen(3)]) == []
    assert refusal(states, seen(4)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, seen(1, 2)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_to_zero() -> None:
    states = written(seen(TOP - 1, 2))
    assert states.known([seen(0)]) == []
    wrapped = written(seen(TOP, 3))
    assert wrapped.known([seen(2)]) == []
    assert wrapped.known([seen(TOP, 3)])[0].last_sequence == 1


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    states = written(seen(0, 3), seen(0, epoch=1, offset=3))
    assert refusal(states, seen(3)) is Code.INVALID_PRODUCER_EPOCH
    assert refusal(states, seen(5, epoch=2)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.known([seen(0, epoch=2)]) == []


def test_an_unknown_producer_may_begin_anywhere_but_on_a_log_that_never_held_a_record() -> None:
    assert ProducerStates(1).known([seen(17)]) == []
    assert ProducerStates().known([seen(0), seen(1)]) == []
    assert refusal(ProducerStates(), seen(17)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_one_request_may_begin_with_what_is_known_and_go_on() -> None:
    states = written(seen(0), seen(1, offset=1))
    assert len(states.known([seen(0), seen(1), seen(2)])) == 2
    assert refusal(states, seen(0), seen(1), seen(3)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, seen(2), seen(1)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_idle_producers_are_forgotten() -> None:
    states = written(seen(0))
    states.expire(NOW + 999, 1000)
    assert len(states) == 1
    states.expire(NOW + 1000, 1000)
    assert len(states) == 0


def test_a_producer_known_from_a_snapshot_is_idle_from_the_first_look_on() -> None:
    again = ProducerStates.from_snapshot(written(seen(0)).snapshot(), 1)
    later = NOW + 10**9
    again.expire(later, 1000)
    again.expire(later + 999, 1000)
    assert len(again) == 1
    again.expire(later + 1000, 1000)
    assert len(again) == 0


def test_a_snapshot_is_kafkas() -> None:
    states = written(seen(3, 2, offset=40))
    data = states.snapshot()
    body = struct.pack(">iqhiqiqiq", 1, 7, 0, 4, 41, 1, NOW + 40, -1, -1)
    assert data[:2] == b"\x00\x01"
    assert data[6:] == body


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=30))
def test_a_snapshot_keeps_the_last_batch_of_each_producer(requests: list[tuple[int, int]]) -> None:
    states, following, offset = ProducerStates(), dict.fromkeys(range(5), 0), 0
    batches = []
    for producer, count in requests:
        batch = seen(following[producer], count, offset=offset, producer=producer)
        states.apply(batch, NOW)
        batches.append(batch)
        following[producer] += count
        offset += count
    again = ProducerStates.from_snapshot(states.snapshot(), offset)
    assert again.snapshot() == states.snapshot()
    again.recall(batches)
    for producer in range(5):
        assert again.get(producer) == states.get(producer)
    again.check()


@pytest.mark.parametrize("flip", [0, 3, 9, 30])
def test_a_snapshot_proves_itself(flip: int) -> None:
    data = bytearray(written(seen(0)).snapshot())
    data[flip] ^= 0x40
    with pytest.raises(Corrupt):
        ProducerStates.from_snapshot(data, 1)
    with pytest.raises(Corrupt):
        ProducerStates.from_snapshot(bytes(data[:5]), 1)


def marker(offset: int, *, commit: bool, producer: int = 7) -> tuple[Walked, bytes]:
    """A control batch at `offset`, as the transaction coordinator writes it."""
    record = (NOW, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 3), ())
    data = encode(
        [record], base_offset=offset, producer_id=producer, producer_epoch=0, transactional=True, control=True
    )
    found = walk(data).batches[0]
    assert found.attributes & CONTROL
    return found, data


def test_an_open_transaction_bounds_the_stable_offset_until_its_marker_is_replicated() -> None:
    states = written(seen(0, offset=4, attributes=TRANSACTIONAL), seen(1, offset=5, attributes=TRANSACTIONAL))
    assert states.first_unstable_offset == 4
    assert states.end_transaction(*marker(6, commit=True), NOW) is None
    assert states.first_unstable_offset == 4
    states.on_high_watermark(6)
    assert states.first_unstable_offset == 4
    states.on_high_watermark(7)
    assert states.first_unstable_offset is None


def test_an_aborted_transaction_is_indexed_as_kafka_does() -> None:
    states = written(
        seen(0, offset=4, attributes=TRANSACTIONAL), seen(0, offset=5, producer=8, attributes=TRANSACTIONAL)
    )
    aborted = states.end_transaction(*marker(6, commit=False), NOW)
    assert aborted == Aborted(producer_id=7, first_offset=4, last_offset=6, last_stable_offset=5)
    assert aborted is not None
    assert decode_aborted(aborted.encode() + b"torn") == [aborted]
    again = ProducerStates.from_snapshot(states.snapshot(), 7)
    assert again.first_unstable_offset == 5

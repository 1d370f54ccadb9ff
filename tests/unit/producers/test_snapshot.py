"""Tests of producer snapshots: Kafka's bytes, and the state that they keep."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hot.fixtures import NOW
from tests.unit.producers.builders import (
    apply_batches,
    producer_ids,
    walked_batch,
    write,
    write_in_order,
)
from tiered.errors import Corrupt
from tiered.producers.limits import ProducerLimits
from tiered.producers.states import ProducerStates


def test_snapshot_has_kafkas_bytes() -> None:
    states = apply_batches(walked_batch(3, 2, offset=40))
    data = states.encode_snapshot()
    body = struct.pack(">iqhiqiqiq", 1, 7, 0, 4, 41, 1, NOW + 40, -1, -1)
    assert data[:2] == b"\x00\x01"
    assert data[6:] == body


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=30))
def test_snapshot_has_the_last_batch_of_each_producer(requests: list[tuple[int, int]]) -> None:
    states, following, offset = ProducerStates(), dict.fromkeys(range(5), 0), 0
    batches = []
    for producer, count in requests:
        batch = walked_batch(following[producer], count, offset=offset, producer=producer)
        states.apply(batch, NOW)
        batches.append(batch)
        following[producer] += count
        offset += count
    again = ProducerStates.from_snapshot(states.encode_snapshot(), offset)
    assert again.encode_snapshot() == states.encode_snapshot()
    again.restore_batches(batches)
    for producer in range(5):
        assert again.get(producer) == states.get(producer)
    again.check()


@pytest.mark.parametrize("flip", [0, 3, 9, 30])
def test_damaged_snapshot_is_refused(flip: int) -> None:
    data = bytearray(apply_batches(walked_batch(0)).encode_snapshot())
    data[flip] ^= 0x40
    with pytest.raises(Corrupt):
        ProducerStates.from_snapshot(data, 1)
    with pytest.raises(Corrupt):
        ProducerStates.from_snapshot(bytes(data[:5]), 1)


def test_snapshot_keeps_producers_in_the_order_of_their_writes() -> None:
    states = write_in_order(ProducerLimits(), 9, 1, 5)
    write(states, 9, 3, at=NOW, sequence=1)
    again = ProducerStates.from_snapshot(states.encode_snapshot(), 4, ProducerLimits(per_partition=2))
    assert producer_ids(again) == [5, 9]

"""Tests of keyed producer ids: one batch each, and half of the room."""

from __future__ import annotations

import pytest

from tests.unit.hot.fixtures import NOW
from tests.unit.producers.builders import (
    KEY,
    TOP,
    end_unknown,
    producer_ids,
    refusal,
    walked_batch,
    write,
    write_as,
)
from tiered.errors import Code, Refused
from tiered.ids import KEYED_FROM
from tiered.producers.known_producers import IDLE_MS
from tiered.producers.limits import ProducerLimits
from tiered.producers.states import ProducerStates
from tiered.records.model import TRANSACTIONAL


def test_holder_above_its_share_of_keys_replaces_its_own_idle_key() -> None:
    limits = ProducerLimits(per_partition=16)
    states = ProducerStates(0, limits)
    write_as(states, "a", 1, *range(KEYED_FROM, KEYED_FROM + 6))
    with pytest.raises(Refused, match="6 of 8 idempotency keys of the partition are taken"):
        write_as(states, "a", KEYED_FROM + 6)
    write_as(states, "a", KEYED_FROM + 6, at=NOW + IDLE_MS)
    assert producer_ids(states) == [1, *range(KEYED_FROM + 1, KEYED_FROM + 7)] and limits.keys_forgotten == 1


def test_share_of_keys_counts_no_producers_without_a_key() -> None:
    """Producers of a holder are no reason to refuse its keys, while others have many keys."""
    states = ProducerStates(0, ProducerLimits(per_partition=160))
    write_as(states, "a", *range(20))
    write_as(states, "b", *range(KEYED_FROM, KEYED_FROM + 60))
    write_as(states, "a", KEYED_FROM + 60, KEYED_FROM + 61)
    with pytest.raises(Refused, match=r"keys of the partition are taken .*, a has 2, and nobody may have more than 2"):
        write_as(states, "a", KEYED_FROM + 62)


def test_keyed_id_writes_one_batch_and_a_retry_gets_its_offset() -> None:
    states = ProducerStates()
    first = walked_batch(TOP - 1, 4, offset=0, producer=KEY, epoch=77)
    assert states.check_batches([first], NOW) == []  # also as the first batch of a log
    states.apply(first, NOW)
    loaded = ProducerStates.from_snapshot(states.encode_snapshot(), states.end_offset)
    for known in (states, loaded):
        [written] = known.check_batches([walked_batch(TOP - 1, 4, offset=9, producer=KEY, epoch=77)], NOW)
        assert (written.base_offset, written.last_offset) == (0, 3)


def test_keyed_id_refuses_every_other_batch() -> None:
    states = ProducerStates()
    states.apply(walked_batch(100, 2, producer=KEY, epoch=77), NOW)
    for other in (
        walked_batch(100, 3, producer=KEY, epoch=77),
        walked_batch(102, 2, producer=KEY, epoch=77),
        walked_batch(100, 2, producer=KEY, epoch=78),
        walked_batch(0, 2, producer=KEY, epoch=78),
        walked_batch(7, 2, producer=KEY, epoch=3),
    ):
        assert refusal(states, other) is Code.DUPLICATE_RESOURCE
    fresh = [walked_batch(5, producer=KEY + 1), walked_batch(6, producer=KEY + 1, offset=1)]
    assert refusal(states, *fresh) is Code.DUPLICATE_RESOURCE


def test_keyed_ids_take_half_of_the_room_and_leave_producers_alone() -> None:
    limits = ProducerLimits(4, 100)
    states = ProducerStates(1, limits)
    for number, producer in enumerate((1, 2, KEY, KEY + 1)):
        batch = walked_batch(0, offset=number, producer=producer)
        states.check_batches([batch], NOW)
        states.apply(batch, NOW)
    third = walked_batch(0, offset=9, producer=KEY + 2)
    assert refusal(states, third) is Code.THROTTLING_QUOTA_EXCEEDED
    states.check_batches([third], NOW + IDLE_MS)
    assert (states.get(KEY), limits.keys_forgotten) == (None, 1)
    assert states.get(1) is not None and states.get(KEY + 1) is not None
    states.apply(third, NOW + IDLE_MS)
    loaded = ProducerStates.from_snapshot(states.encode_snapshot(), states.end_offset, ProducerLimits(4, 100))
    assert refusal(loaded, walked_batch(0, offset=10, producer=KEY + 3)) is Code.THROTTLING_QUOTA_EXCEEDED


@pytest.mark.parametrize("reloaded", [False, True])
def test_ended_keyed_transaction_takes_no_room_of_a_key(reloaded: bool) -> None:
    limits = ProducerLimits(4, 100)  # two keys
    states = ProducerStates(1, limits)
    write(states, KEY, 0, at=NOW)
    for txn in (KEY + 8, KEY + 9):
        states.apply(walked_batch(0, offset=states.end_offset, producer=txn, attributes=TRANSACTIONAL), NOW)
        end_unknown(states, txn)
    if reloaded:
        states = ProducerStates.from_snapshot(states.encode_snapshot(), states.end_offset, limits)
    write(states, KEY + 1, 5, at=NOW + IDLE_MS)
    assert (len(states), limits.keys_forgotten) == (4, 0)
    assert refusal(states, walked_batch(0, offset=6, producer=KEY + 2)) is Code.THROTTLING_QUOTA_EXCEEDED
    write(states, KEY + 2, 6, at=NOW + 2 * IDLE_MS)
    assert producer_ids(states) == [KEY + 1, KEY + 2, KEY + 8, KEY + 9], "a key makes room, and no fence"
    write(states, 1, 7, at=NOW + 2 * IDLE_MS)
    assert producer_ids(states) == [1, KEY + 1, KEY + 2, KEY + 9]
    states.apply(walked_batch(0, offset=8, producer=KEY + 9, epoch=1, attributes=TRANSACTIONAL), NOW)
    states.check()
    states.known.remove_expired(NOW + 4 * IDLE_MS, IDLE_MS)
    states.check()

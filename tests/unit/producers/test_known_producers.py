"""Tests of the room for producers: who is forgotten, and who is refused."""

from __future__ import annotations

import pytest

from tests.unit.hot.fixtures import NOW
from tests.unit.producers.builders import (
    KEY,
    apply_batches,
    end_unknown,
    producer_ids,
    refusal,
    walked_batch,
    write,
    write_as,
    write_in_order,
)
from tiered.errors import Code, Refused
from tiered.producers.known_producers import FENCES_BEYOND, IDLE_MS
from tiered.producers.limits import ProducerLimits
from tiered.producers.states import ProducerStates
from tiered.records.batch import stamp
from tiered.records.marker import TransactionMarker, encode_marker
from tiered.records.model import TRANSACTIONAL
from tiered.records.native import walk


def test_idle_producers_expire() -> None:
    states = apply_batches(walked_batch(0))
    states.known.remove_expired(NOW + 999, 1000)
    assert len(states) == 1
    states.known.remove_expired(NOW + 1000, 1000)
    assert len(states) == 0


def test_producer_from_a_snapshot_is_idle_from_its_first_check_on() -> None:
    again = ProducerStates.from_snapshot(apply_batches(walked_batch(0)).encode_snapshot(), 1)
    later = NOW + 10**9
    again.known.remove_expired(later, 1000)
    again.known.remove_expired(later + 999, 1000)
    assert len(again) == 1
    again.known.remove_expired(later + 1000, 1000)
    assert len(again) == 0


def test_full_partition_refuses_a_new_producer_while_all_others_may_retry() -> None:
    states = write_in_order(ProducerLimits(per_partition=3), 1, 2, 3)
    with pytest.raises(Refused, match=r"^3 of 3 producer ids of the partition are taken \(tiered\.prod") as refused:
        states.check_batches([walked_batch(0, producer=4)], NOW + IDLE_MS - 1)
    assert refused.value.code is Code.THROTTLING_QUOTA_EXCEEDED and refused.value.code.retriable
    assert producer_ids(states) == [1, 2, 3]
    assert states.check_batches([walked_batch(0, producer=1)], NOW)[0].base_offset == 0, "a retry is known as ever"
    write(states, 2, 3, at=NOW, sequence=1)


def test_full_partition_drops_the_idle_producer_that_wrote_longest_ago() -> None:
    states = write_in_order(ProducerLimits(per_partition=3), 1, 2, 3)
    write(states, 1, 3, at=NOW + 5, sequence=1)
    write(states, 4, 4, at=NOW + IDLE_MS)
    assert producer_ids(states) == [1, 3, 4]
    with pytest.raises(Refused):
        states.check_batches([walked_batch(0, producer=5), walked_batch(0, producer=6)], NOW + IDLE_MS)
    assert 1 in producer_ids(states), "it wrote since"


def test_holder_above_its_share_replaces_its_own_idle_producer() -> None:
    states = ProducerStates(0, ProducerLimits(per_partition=8))
    write_as(states, "other", 1)
    write_as(states, "a", 2, 3, 4, 5, 6)
    with pytest.raises(Refused, match="a has 5, and nobody may have more than 1"):
        write_as(states, "a", 7, at=NOW + IDLE_MS - 1)
    write_as(states, "a", 7, at=NOW + IDLE_MS)
    assert producer_ids(states) == [1, 3, 4, 5, 6, 7], "the other's idle producer stays"
    write_as(states, "b", 8)


def test_share_of_one_partition_counts_its_producers_only() -> None:
    limits = ProducerLimits(per_partition=8, total=100)
    first, second = ProducerStates(0, limits), ProducerStates(0, limits)
    write_as(first, "a", *range(6))
    write_as(second, "a", *range(6))
    with pytest.raises(Refused, match="6 of 8 producer ids of the partition are taken"):
        write_as(second, "a", 7)
    assert limits.holdings.own("a") == 12


def test_share_of_the_broker_counts_the_producers_of_all_partitions() -> None:
    limits = ProducerLimits(total=8)
    first, second = ProducerStates(0, limits), ProducerStates(0, limits)
    write_as(first, "a", 1, 2, 3)
    write_as(second, "a", 1, 2, 3)
    with pytest.raises(Refused, match=r"6 of 8 producer ids are taken \(tiered.producer.ids.max\), a has 6"):
        write_as(second, "a", 4)
    second.known.leave_limits()
    assert limits.holdings.own("a") == 3
    write_as(first, "a", 4)


def test_holder_above_its_share_loses_no_more_than_it_gets() -> None:
    limits = ProducerLimits(total=16)
    states, elsewhere = ProducerStates(0, limits), ProducerStates(0, limits)
    write_as(states, "a", 1, 2)
    write_as(elsewhere, "a", *range(8), at=NOW + IDLE_MS)
    write_as(elsewhere, "", *range(20, 24), at=NOW + IDLE_MS)
    write_as(states, "a", 3, at=NOW + IDLE_MS)
    assert producer_ids(states) == [2, 3] and limits.producer_count == 14
    with pytest.raises(Refused):
        states.check_batches([walked_batch(0, producer=4), walked_batch(0, producer=5)], NOW + IDLE_MS, holder="a")
    assert producer_ids(states) == [2, 3], "a refusal forgets nothing"


def test_producer_that_was_not_seen_to_write_is_not_replaced() -> None:
    states = ProducerStates(0, ProducerLimits(per_partition=8))
    write_as(states, "a", *range(6))
    for producer in range(6):
        states.apply(walked_batch(1, offset=states.end_offset, producer=producer))
    with pytest.raises(Refused):
        write_as(states, "a", 7, at=NOW + IDLE_MS)
    assert len(states) == 6


def test_refused_batch_gives_its_holder_nothing() -> None:
    """A batch that was checked and not written leaves its holder for the producer only."""
    limits = ProducerLimits()
    states = ProducerStates(0, limits)
    states.check_batches([walked_batch(0, producer=1)], NOW, holder="a")
    states.apply(walked_batch(0, producer=2), NOW)
    states.check()
    assert limits.holdings.own("a") == 0


def test_producers_of_a_snapshot_have_no_holder() -> None:
    limits = ProducerLimits(total=8)
    states = ProducerStates(0, ProducerLimits())
    write_as(states, "a", *range(7))
    again = ProducerStates.from_snapshot(states.encode_snapshot(), 7, limits)
    assert limits.holdings.own("a") == 0 and limits.is_scarce
    write_as(again, "a", 8)
    with pytest.raises(Refused):
        write_as(again, "a", 9)


def test_producers_of_all_partitions_count_together() -> None:
    limits = ProducerLimits(total=5)
    first, second = write_in_order(limits, 1, 2, 3), write_in_order(limits, 1, 2)
    with pytest.raises(Refused, match=r"^5 of 5 producer ids are taken \(tiered\.producer\.ids\.max\)"):
        second.check_batches([walked_batch(0, producer=3)], NOW)
    first.known.remove_expired(NOW + 1000, 1000)
    assert limits.producer_count == 2
    write(second, 3, 2, at=NOW)
    second.known.leave_limits()
    assert (limits.producer_count, producer_ids(second)) == (0, [1, 2, 3])
    write(first, 4, 3, at=NOW)
    assert limits.producer_count == 1


def test_follower_keeps_the_producers_that_wrote_last() -> None:
    """A follower cannot refuse a batch that the leader took. It keeps the same producers as the leader."""
    leader, follower = write_in_order(ProducerLimits(per_partition=3), 1, 2, 3), ProducerStates(0, ProducerLimits(3))
    for offset, (producer, sequence) in enumerate([(1, 0), (2, 0), (3, 0), (1, 1), (4, 0), (5, 0)]):
        follower.apply(walked_batch(sequence, offset=offset, producer=producer), NOW)
    later = NOW + IDLE_MS
    for offset, (producer, sequence) in enumerate([(1, 1), (4, 0), (5, 0)], 3):
        write(leader, producer, offset, at=later, sequence=sequence)
    assert producer_ids(leader) == producer_ids(follower) == [1, 4, 5]


def test_end_of_a_transaction_counts_as_a_write_of_its_producer() -> None:
    states = ProducerStates(0, ProducerLimits(per_partition=2))
    for offset, producer in enumerate((1, 2)):
        states.apply(walked_batch(0, offset=offset, producer=producer, attributes=TRANSACTIONAL), NOW)
    for offset, producer in ((2, 2), (3, 1)):
        data = encode_marker(TransactionMarker(producer, 0, True, 0), NOW)
        stamp(data, 0, offset, 0)
        states.end_transaction(walk(data).batches[0], data, NOW)
    states.apply(walked_batch(0, offset=4, producer=3), NOW)
    assert producer_ids(states) == [1, 3]


def test_producer_from_a_snapshot_is_not_evicted_before_ten_minutes() -> None:
    again = ProducerStates.from_snapshot(
        write_in_order(ProducerLimits(), 1, 2).encode_snapshot(), 2, ProducerLimits(per_partition=2)
    )
    later = NOW + 10**9
    for at in (later, later + IDLE_MS - 1):
        with pytest.raises(Refused):
            again.check_batches([walked_batch(0, producer=3)], at)
    write(again, 3, 2, at=later + IDLE_MS)
    assert producer_ids(again) == [2, 3]


def test_producer_with_an_open_transaction_is_not_evicted() -> None:
    states = ProducerStates(0, ProducerLimits(per_partition=2))
    states.apply(walked_batch(0, producer=1, attributes=TRANSACTIONAL), NOW)
    states.apply(walked_batch(0, offset=1, producer=2), NOW)
    write(states, 3, 2, at=NOW + IDLE_MS)
    assert producer_ids(states) == [1, 3]


@pytest.mark.parametrize("reloaded", [False, True])
def test_marker_of_an_unknown_producer_displaces_no_active_producer(reloaded: bool) -> None:
    limits = ProducerLimits(per_partition=3)
    states = write_in_order(limits, KEY, 1, 2)
    for producer in range(50, 50 + FENCES_BEYOND + 2):
        end_unknown(states, producer)
    assert producer_ids(states) == [1, 2, *range(52, 52 + FENCES_BEYOND), KEY], "the oldest fences go"
    last = TransactionMarker(51 + FENCES_BEYOND, 1, False, 0, version=2)
    assert not states.is_marker_due(last), "a repeated marker finds the first"
    if reloaded:
        states = ProducerStates.from_snapshot(states.encode_snapshot(), states.end_offset, limits)
        assert producer_ids(states) == [1, 2, KEY]
    assert states.check_batches([walked_batch(0, producer=KEY)], NOW)[0].base_offset == 0
    assert refusal(states, walked_batch(0, producer=4)) is Code.THROTTLING_QUOTA_EXCEEDED
    assert limits.keys_forgotten == 0


def test_new_producer_displaces_the_fence_of_the_oldest_marker() -> None:
    leader, follower = (write_in_order(ProducerLimits(per_partition=3), 1) for _ in range(2))
    for states in (leader, follower):
        for producer in (50, 51):
            end_unknown(states, producer)
    new = walked_batch(0, offset=3, producer=2)
    assert leader.check_batches([new], NOW) == []
    for states in (leader, follower):
        states.apply(new, NOW)
        assert producer_ids(states) == [1, 2, 51]
        states.apply(walked_batch(0, offset=4, producer=51, epoch=1), NOW)
    assert refusal(leader, walked_batch(0, producer=3)) is Code.THROTTLING_QUOTA_EXCEEDED, "51 has batches now"
    follower.apply(walked_batch(0, offset=5, producer=3), NOW)
    assert producer_ids(follower) == [2, 3, 51]

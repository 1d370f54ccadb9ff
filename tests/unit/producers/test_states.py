"""Tests of idempotence: a retry gets the offset of its first try, a batch out of order is refused, and snapshots keep
the state."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hot.fixtures import NOW
from tiered.errors import Code, Corrupt, Refused
from tiered.ids import KEYED_FROM
from tiered.producers.aborted_txns import AbortedTxn
from tiered.producers.states import FENCES_BEYOND, IDLE_MS, ProducerLimits, ProducerStates
from tiered.producers.verification import UnverifiedProducer
from tiered.records.batch import stamp
from tiered.records.marker import TransactionMarker, encode_marker
from tiered.records.model import CONTROL, TRANSACTIONAL, WalkedBatch
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
        guard = states.begin_verification(UnverifiedProducer(batch.producer_id, batch.producer_epoch), False)
        assert not states.find_duplicates([batch], NOW, guard)
        states.apply(batch, NOW)
        states.end_verification(guard)
    states.check()
    return states


def refusal(states: ProducerStates, *batches: WalkedBatch) -> Code:
    with pytest.raises(Refused) as caught:
        states.find_duplicates(batches, NOW)
    return caught.value.code


def test_last_five_batches_are_known_with_their_first_offsets() -> None:
    states = apply_batches(*[walked_batch(n * 2, 2, offset=n * 10) for n in range(6)])
    assert [states.find_duplicates([walked_batch(n * 2, 2)], NOW)[0].base_offset for n in range(1, 6)] == [
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
    assert states.find_duplicates([walked_batch(3)], NOW) == []
    assert refusal(states, walked_batch(4)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, walked_batch(1, 2)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_to_zero() -> None:
    states = apply_batches(walked_batch(TOP - 1, 2))
    assert states.find_duplicates([walked_batch(0)], NOW) == []
    wrapped = apply_batches(walked_batch(TOP, 3))
    assert wrapped.find_duplicates([walked_batch(2)], NOW) == []
    assert wrapped.find_duplicates([walked_batch(TOP, 3)], NOW)[0].last_sequence == 1
    assert ProducerStates(1).find_duplicates([walked_batch(TOP - 1, 2), walked_batch(0)], NOW) == [], "in one request"


def test_new_producer_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    states = apply_batches(walked_batch(0, 3), walked_batch(0, epoch=1, offset=3))
    for sequence in (1, 3):  # the one that follows in the present epoch, and another one
        assert refusal(states, walked_batch(sequence)) is Code.INVALID_PRODUCER_EPOCH
        assert refusal(states, walked_batch(sequence, epoch=2)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.find_duplicates([walked_batch(0, epoch=2)], NOW) == []


def test_unknown_producer_must_begin_at_zero_only_in_an_empty_log() -> None:
    assert ProducerStates(1).find_duplicates([walked_batch(17)], NOW) == []
    assert ProducerStates().find_duplicates([walked_batch(0), walked_batch(1)], NOW) == []
    assert refusal(ProducerStates(), walked_batch(17)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_request_may_begin_with_a_duplicate_and_continue() -> None:
    states = apply_batches(walked_batch(0), walked_batch(1, offset=1))
    assert len(states.find_duplicates([walked_batch(0), walked_batch(1), walked_batch(2)], NOW)) == 2
    assert refusal(states, walked_batch(0), walked_batch(1), walked_batch(3)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, walked_batch(2), walked_batch(1)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_idle_producers_expire() -> None:
    states = apply_batches(walked_batch(0))
    states.remove_expired(NOW + 999, 1000)
    assert len(states) == 1
    states.remove_expired(NOW + 1000, 1000)
    assert len(states) == 0


def test_producer_from_a_snapshot_is_idle_from_its_first_check_on() -> None:
    again = ProducerStates.from_snapshot(apply_batches(walked_batch(0)).encode_snapshot(), 1)
    later = NOW + 10**9
    again.remove_expired(later, 1000)
    again.remove_expired(later + 999, 1000)
    assert len(again) == 1
    again.remove_expired(later + 1000, 1000)
    assert len(again) == 0


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


def marker(offset: int, *, commit: bool, producer: int = 7) -> tuple[WalkedBatch, bytes]:
    """Returns a control batch at `offset`, as the transaction coordinator writes it."""
    data = encode_marker(TransactionMarker(producer, 0, commit, 3), NOW)
    stamp(data, 0, offset, 0)
    found = walk(data).batches[0]
    assert found.attributes & CONTROL
    return found, bytes(data)


def test_open_transaction_holds_the_stable_offset_until_its_marker_commits() -> None:
    states = apply_batches(
        walked_batch(0, offset=4, attributes=TRANSACTIONAL), walked_batch(1, offset=5, attributes=TRANSACTIONAL)
    )
    assert states.first_unstable_offset == 4
    assert states.end_transaction(*marker(6, commit=True), NOW) is None
    assert states.first_unstable_offset == 4
    states.on_high_watermark(6)
    assert states.first_unstable_offset == 4
    states.on_high_watermark(7)
    assert states.first_unstable_offset is None


def test_marker_above_the_high_watermark_keeps_its_transaction_unstable() -> None:
    states = apply_batches(
        walked_batch(0, offset=4, attributes=TRANSACTIONAL),
        walked_batch(0, offset=5, producer=8, attributes=TRANSACTIONAL),
    )
    states.end_transaction(*marker(6, commit=True), NOW)
    states.end_transaction(*marker(7, commit=True, producer=8), NOW)
    states.on_high_watermark(7)
    assert states.first_unstable_offset == 5
    states.on_high_watermark(8)
    assert states.first_unstable_offset is None


def test_aborted_transaction_has_kafkas_index_entry() -> None:
    states = apply_batches(
        walked_batch(0, offset=4, attributes=TRANSACTIONAL),
        walked_batch(0, offset=5, producer=8, attributes=TRANSACTIONAL),
    )
    aborted = states.end_transaction(*marker(6, commit=False), NOW)
    assert aborted == AbortedTxn(producer_id=7, first_offset=4, last_offset=6, last_stable_offset=5)
    assert aborted is not None
    again = ProducerStates.from_snapshot(states.encode_snapshot(), 7)
    assert again.first_unstable_offset == 5


# -- room -------------------------------------------------------------------------------------------------------------


def write_in_order(limits: ProducerLimits, *producers: int, at: int = NOW) -> ProducerStates:
    """Returns the leader's producer states after one batch of each producer, in that order."""
    states = ProducerStates(0, limits)
    for offset, producer in enumerate(producers):
        write(states, producer, offset, at=at)
    return states


def write(states: ProducerStates, producer: int, offset: int, *, at: int, sequence: int = 0) -> None:
    one = walked_batch(sequence, offset=offset, producer=producer)
    assert not states.find_duplicates([one], at)
    states.apply(one, at)


def producer_ids(states: ProducerStates) -> list[int]:
    return [each.producer_id for each in states.list_producers()]


def test_full_partition_refuses_a_new_producer_while_all_others_may_retry() -> None:
    states = write_in_order(ProducerLimits(per_partition=3), 1, 2, 3)
    with pytest.raises(Refused, match=r"^3 of 3 producer ids of the partition are taken \(tiered\.prod") as refused:
        states.find_duplicates([walked_batch(0, producer=4)], NOW + IDLE_MS - 1)
    assert refused.value.code is Code.THROTTLING_QUOTA_EXCEEDED and refused.value.code.retriable
    assert producer_ids(states) == [1, 2, 3]
    assert states.find_duplicates([walked_batch(0, producer=1)], NOW)[0].base_offset == 0, "a retry is known as ever"
    write(states, 2, 3, at=NOW, sequence=1)


def test_full_partition_drops_the_idle_producer_that_wrote_longest_ago() -> None:
    states = write_in_order(ProducerLimits(per_partition=3), 1, 2, 3)
    write(states, 1, 3, at=NOW + 5, sequence=1)
    write(states, 4, 4, at=NOW + IDLE_MS)
    assert producer_ids(states) == [1, 3, 4]
    with pytest.raises(Refused):
        states.find_duplicates([walked_batch(0, producer=5), walked_batch(0, producer=6)], NOW + IDLE_MS)
    assert 1 in producer_ids(states), "it wrote since"


def write_as(states: ProducerStates, holder: str, *producers: int, at: int = NOW) -> None:
    """Writes a batch of each producer of a holder."""
    for producer in producers:
        one = walked_batch(0, offset=states.end_offset, producer=producer)
        states.find_duplicates([one], at, holder=holder)
        states.apply(one, at)
    states.check()


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
    second.leave_limits()
    assert limits.holdings.own("a") == 3
    write_as(first, "a", 4)


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


def test_holder_above_its_share_loses_no_more_than_it_gets() -> None:
    limits = ProducerLimits(total=16)
    states, elsewhere = ProducerStates(0, limits), ProducerStates(0, limits)
    write_as(states, "a", 1, 2)
    write_as(elsewhere, "a", *range(8), at=NOW + IDLE_MS)
    write_as(elsewhere, "", *range(20, 24), at=NOW + IDLE_MS)
    write_as(states, "a", 3, at=NOW + IDLE_MS)
    assert producer_ids(states) == [2, 3] and limits.producer_count == 14
    with pytest.raises(Refused):
        states.find_duplicates([walked_batch(0, producer=4), walked_batch(0, producer=5)], NOW + IDLE_MS, holder="a")
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
    states.find_duplicates([walked_batch(0, producer=1)], NOW, holder="a")
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
        second.find_duplicates([walked_batch(0, producer=3)], NOW)
    first.remove_expired(NOW + 1000, 1000)
    assert limits.producer_count == 2
    write(second, 3, 2, at=NOW)
    second.leave_limits()
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


def test_snapshot_keeps_producers_in_the_order_of_their_writes() -> None:
    states = write_in_order(ProducerLimits(), 9, 1, 5)
    write(states, 9, 3, at=NOW, sequence=1)
    again = ProducerStates.from_snapshot(states.encode_snapshot(), 4, ProducerLimits(per_partition=2))
    assert producer_ids(again) == [5, 9]


def test_producer_from_a_snapshot_is_not_evicted_before_ten_minutes() -> None:
    again = ProducerStates.from_snapshot(
        write_in_order(ProducerLimits(), 1, 2).encode_snapshot(), 2, ProducerLimits(per_partition=2)
    )
    later = NOW + 10**9
    for at in (later, later + IDLE_MS - 1):
        with pytest.raises(Refused):
            again.find_duplicates([walked_batch(0, producer=3)], at)
    write(again, 3, 2, at=later + IDLE_MS)
    assert producer_ids(again) == [2, 3]


def test_producer_with_an_open_transaction_is_not_evicted() -> None:
    states = ProducerStates(0, ProducerLimits(per_partition=2))
    states.apply(walked_batch(0, producer=1, attributes=TRANSACTIONAL), NOW)
    states.apply(walked_batch(0, offset=1, producer=2), NOW)
    write(states, 3, 2, at=NOW + IDLE_MS)
    assert producer_ids(states) == [1, 3]


def end_unknown(states: ProducerStates, producer: int) -> None:
    """Writes the marker of a transaction that had the partition, and wrote nothing there."""
    marker = TransactionMarker(producer, 1, False, 0, version=2)
    assert states.is_marker_due(marker)
    data = encode_marker(marker, NOW)
    stamp(data, 0, states.end_offset, 0)
    states.end_transaction(walk(data).batches[0], data, NOW)


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
    assert states.find_duplicates([walked_batch(0, producer=KEY)], NOW)[0].base_offset == 0
    assert refusal(states, walked_batch(0, producer=4)) is Code.THROTTLING_QUOTA_EXCEEDED
    assert limits.keys_forgotten == 0


def test_new_producer_displaces_the_fence_of_the_oldest_marker() -> None:
    leader, follower = (write_in_order(ProducerLimits(per_partition=3), 1) for _ in range(2))
    for states in (leader, follower):
        for producer in (50, 51):
            end_unknown(states, producer)
    new = walked_batch(0, offset=3, producer=2)
    assert leader.find_duplicates([new], NOW) == []
    for states in (leader, follower):
        states.apply(new, NOW)
        assert producer_ids(states) == [1, 2, 51]
        states.apply(walked_batch(0, offset=4, producer=51, epoch=1), NOW)
    assert refusal(leader, walked_batch(0, producer=3)) is Code.THROTTLING_QUOTA_EXCEEDED, "51 has batches now"
    follower.apply(walked_batch(0, offset=5, producer=3), NOW)
    assert producer_ids(follower) == [2, 3, 51]


KEY = KEYED_FROM + 5


def test_keyed_id_writes_one_batch_and_a_retry_gets_its_offset() -> None:
    states = ProducerStates()
    first = walked_batch(TOP - 1, 4, offset=0, producer=KEY, epoch=77)
    assert states.find_duplicates([first], NOW) == []  # also as the first batch of a log
    states.apply(first, NOW)
    loaded = ProducerStates.from_snapshot(states.encode_snapshot(), states.end_offset)
    for known in (states, loaded):
        [written] = known.find_duplicates([walked_batch(TOP - 1, 4, offset=9, producer=KEY, epoch=77)], NOW)
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
        states.find_duplicates([batch], NOW)
        states.apply(batch, NOW)
    third = walked_batch(0, offset=9, producer=KEY + 2)
    assert refusal(states, third) is Code.THROTTLING_QUOTA_EXCEEDED
    states.find_duplicates([third], NOW + IDLE_MS)
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
    states.remove_expired(NOW + 4 * IDLE_MS, IDLE_MS)
    states.check()

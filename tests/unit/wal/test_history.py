"""Tests of the records of a partition in several chains: fences, later leaders, gaps."""

from __future__ import annotations

import itertools
import random

import pytest

from tiered.errors import Corrupt
from tiered.ids import NO_EPOCH, PartitionId, TopicId
from tiered.wal.history import SPAN_BYTES, Place, Span, ValidExtents, find_hole, join_extents, span_extents
from tiered.wal.layout import ChainId, Extent, Fence, Window

ONE, TWO = (PartitionId(TopicId("t"), p) for p in (0, 1))
A, B = ChainId(1, "a"), ChainId(2, "b")


def extent(base: int, end: int, epoch: int = 1, partition: PartitionId = ONE, committed: int = 0) -> Extent:
    return Extent(partition, epoch, base, end, committed, 0, end - base, 0)


def place(base: int, end: int, epoch: int, chain: ChainId = A, slot: int = 0, committed: int = 0) -> Place:
    return Place(chain, slot, extent(base, end, epoch, committed=committed), end, Span(0, end - base))


def window(slot: int, *extents: Extent) -> Window:
    return Window(slot, "n", slot, extents)


def valid_extents(*objects: Window | Fence) -> dict[PartitionId, list[Place]]:
    valid = ValidExtents(A, (ONE, TWO))
    for each in sorted(objects, key=lambda each: each.slot):
        valid.add(each)
    return valid.of


def ranges(places: list[Place]) -> list[tuple[int, int, int]]:
    """(epoch, first offset, end) of each."""
    return [(each.extent.leader_epoch, each.extent.base_offset, each.until) for each in places]


def test_fence_goes_into_the_first_free_slot() -> None:
    assert find_hole([], 0) == 0
    assert find_hole([0, 1, 2], 2) == 3
    assert find_hole([5, 6, 8, 9], 6) == 7, "the put of slot 7 is under way, so nothing behind it was acknowledged"
    assert find_hole([1, 2], 0) == 0, "the first put of the chain is under way"
    assert find_hole([5], 5) == 6, "those before were deleted"


def test_extents_of_each_partition_are_in_the_order_of_slots() -> None:
    third = PartitionId(TopicId("t"), 2)
    valid = valid_extents(window(0, extent(0, 5)), window(1, extent(5, 7), extent(0, 2, partition=TWO)))
    assert ranges(valid[ONE]) == [(1, 0, 5), (1, 5, 7)] and ranges(valid[TWO]) == [(1, 0, 2)]
    assert valid_extents(window(0, extent(0, 5, partition=third)))[ONE] == [], "nobody takes that one over"


def test_fence_of_a_later_leader_ends_earlier_epochs_of_its_partitions() -> None:
    fence = Fence(1, "n", 1, {ONE: 4})
    valid = valid_extents(
        window(2, extent(5, 7, 3), extent(0, 1, 3, TWO), extent(5, 6, 4)), fence, window(0, extent(0, 5, 3))
    )
    assert ranges(valid[ONE]) == [(3, 0, 5), (4, 5, 6)], "the owner leads again"
    assert ranges(valid[TWO]) == [(3, 0, 1)]


def at(position: int, length: int) -> Extent:
    return extent(0, 1)._replace(position=position, length=length)


def test_extents_that_are_near_to_each_other_are_read_by_one_get() -> None:
    near = [at(100, 50), at(150, 50), at(1_000, 10)]
    assert span_extents(near) == [(each, Span(100, 910)) for each in near]
    far = at(1_000_000, 10)
    assert span_extents([*near, far])[-1] == (far, Span(1_000_000, 10))
    assert span_extents([]) == []


def test_get_for_several_extents_has_a_bound() -> None:
    large = [at(n * 3 * SPAN_BYTES // 4, 3 * SPAN_BYTES // 4) for n in range(3)]
    assert [span for _, span in span_extents(large)] == [Span(each.position, each.length) for each in large]
    (one,) = span_extents([at(0, 2 * SPAN_BYTES)])
    assert one[1] == Span(0, 2 * SPAN_BYTES), "a batch may be larger"


def test_log_goes_on_from_chain_to_chain() -> None:
    places = [place(8, 10, 2, B), place(0, 5, 1), place(5, 8, 1, slot=1)]
    assert ranges(join_extents(places, 0, NO_EPOCH)) == [(1, 0, 5), (1, 5, 8), (2, 8, 10)]


def test_extent_that_got_a_later_slot_is_in_order() -> None:
    assert ranges(join_extents([place(5, 8, 1, slot=1), place(0, 5, 1, slot=2)], 0, NO_EPOCH)) == [(1, 0, 5), (1, 5, 8)]


def test_records_of_a_later_leader_replace_those_of_an_earlier_one() -> None:
    places = [place(0, 5, 1), place(5, 9, 1), place(9, 12, 1), place(7, 8, 3, B)]
    assert ranges(join_extents(places, 0, NO_EPOCH)) == [(1, 0, 5), (1, 5, 7), (3, 7, 8)]


def test_records_in_segments_are_left_out() -> None:
    places = [place(0, 5, 1), place(5, 9, 1)]
    assert ranges(join_extents(places, 5, NO_EPOCH)) == [(1, 5, 9)]
    assert ranges(join_extents(places, 6, NO_EPOCH)) == [(1, 5, 9)], "the segment ends within the extent"
    assert join_extents(places, 9, NO_EPOCH) == []


def test_records_behind_a_gap_were_never_acknowledged() -> None:
    assert ranges(join_extents([place(0, 5, 1), place(6, 9, 1)], 0, NO_EPOCH)) == [(1, 0, 5)]
    assert ranges(join_extents([place(0, 5, 1), place(4, 5, 2), place(6, 9, 3)], 0, NO_EPOCH)) == [(1, 0, 4), (2, 4, 5)]
    assert join_extents([place(4, 9, 1)], 3, NO_EPOCH) == []


def test_missing_records_that_were_committed_are_an_error() -> None:
    with pytest.raises(Corrupt, match="from offset 5 to 6 are missing"):
        join_extents([place(0, 5, 1), place(6, 9, 1, committed=6)], 0, NO_EPOCH)
    with pytest.raises(Corrupt, match="from offset 3 to 4 are missing"):
        join_extents([place(4, 9, 1, committed=4)], 3, NO_EPOCH)
    with pytest.raises(Corrupt, match="from offset 5 to 7 are missing"):
        join_extents([place(0, 8, 1), place(8, 9, 1, committed=7), place(3, 5, 2)], 0, NO_EPOCH)


def test_records_that_were_never_committed_may_be_replaced_by_fewer() -> None:
    """A leader that was cut off puts records that its followers never got. The next one was in sync, and wrote less."""
    places = [place(0, 5, 1), place(5, 9, 1, committed=2), place(2, 3, 2, B, committed=2)]
    assert ranges(join_extents(places, 0, NO_EPOCH)) == [(1, 0, 2), (2, 2, 3)]


def test_records_that_one_leader_has_put_twice_count_once() -> None:
    """Its topic had another `flush` for a while. It puts all again that no segment has, in other extents."""
    places = [place(0, 5, 1), place(5, 8, 1), place(2, 6, 1, slot=7), place(6, 9, 1, slot=8), place(8, 9, 1, slot=3)]
    joined = join_extents(places, 0, NO_EPOCH)
    assert [each.until for each in joined] == [5, 6, 8, 9]
    replaced = join_extents([*places, place(7, 8, 2, B)], 0, NO_EPOCH)
    assert [each.until for each in replaced] == [5, 6, 7, 7, 8], "none of its records from offset 7 on"


def test_records_that_a_leader_of_the_segments_cut_do_not_come_back() -> None:
    places = [place(0, 2, 1), place(2, 6, 1)]
    assert ranges(join_extents(places, 3, epoch=2)) == [], "the record at offset 2 is of epoch 2"
    assert ranges(join_extents([*places, place(3, 4, 2, B)], 3, epoch=2)) == [(2, 3, 4)]


@pytest.mark.parametrize("seed", range(100))
def test_random_leaders_leave_the_log_of_the_last_one(seed: int) -> None:
    """Each leader cuts some of the end of the log, and puts the rest of it again beside its own records. One that puts
    nothing has cut nothing for those after it."""
    rng = random.Random(seed)
    log: list[int] = []  # the epoch of each record
    places: list[Place] = []
    for epoch in range(1, 6):
        if rng.random() < 0.2:
            continue
        del log[len(log) - rng.randrange(min(len(log), 4) + 1) :]
        put_to = max(0, len(log) - rng.randrange(5))
        log += [epoch] * rng.randrange(1, 8)
        while put_to < len(log):
            end = rng.randrange(put_to, len(log)) + 1
            places.append(place(put_to, end, epoch, ChainId(epoch, "x"), rng.randrange(9)))
            put_to = end
    rng.shuffle(places)
    start = rng.randrange(len(log) + 1)
    joined = join_extents(places, start, log[start - 1] if start else NO_EPOCH)
    if joined:
        assert joined[0].extent.base_offset <= start
        assert all(one.until == two.extent.base_offset for one, two in itertools.pairwise(joined))
    assert (joined[-1].until if joined else start) == len(log)

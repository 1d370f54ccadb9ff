"""Joins of the persisted state of share partitions: no order of writes loses an acknowledgement (I39)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tiered.share.state import PERSISTED_STATES, RecordState, StateBatch, join_batches

AVAILABLE, ACKNOWLEDGED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
batches = st.lists(
    st.builds(
        lambda first, size, state, count: StateBatch(first, first + size, state, count),
        st.integers(0, 30),
        st.integers(0, 12),
        st.sampled_from(sorted(PERSISTED_STATES)),
        st.integers(0, 3),
    ),
    max_size=8,
)


def states(found: list[StateBatch], start: int) -> dict[int, tuple[int, int]]:
    """Returns the winning delivery count and state of each record, one by one."""
    best: dict[int, tuple[int, int]] = {}
    for first, last, state, count in found:
        for each in range(max(first, start), last + 1):
            best[each] = max(best.get(each, (-1, AVAILABLE)), (count, state))
    return best


def test_later_delivery_wins_then_the_later_state() -> None:
    found = [
        StateBatch(0, 9, AVAILABLE, 1),
        StateBatch(2, 3, ACKNOWLEDGED, 1),
        StateBatch(5, 5, AVAILABLE, 2),
        StateBatch(5, 6, ACKNOWLEDGED, 1),
    ]
    assert join_batches(found, 1) == (
        StateBatch(1, 1, AVAILABLE, 1),
        StateBatch(2, 3, ACKNOWLEDGED, 1),
        StateBatch(4, 4, AVAILABLE, 1),
        StateBatch(5, 5, AVAILABLE, 2),
        StateBatch(6, 6, ACKNOWLEDGED, 1),
        StateBatch(7, 9, AVAILABLE, 1),
    )


def test_gaps_stay_gaps() -> None:
    found = [StateBatch(8, 9, ARCHIVED, 1), StateBatch(1, 2, ARCHIVED, 1)]
    assert join_batches(found, 0) == tuple(sorted(found))


@given(batches, st.integers(0, 40))
def test_join_is_that_of_each_record(found: list[StateBatch], start: int) -> None:
    joined = join_batches(found, start)
    assert states(list(joined), start) == states(found, start)
    for one, other in pairwise(joined):
        assert one.last_offset < other.first_offset
        assert one.last_offset + 1 < other.first_offset or one[2:] != other[2:]


@given(batches, batches, st.integers(0, 40), st.integers(0, 40))
def test_order_and_repetition_of_writes_do_not_matter(
    one: list[StateBatch], other: list[StateBatch], start: int, later: int
) -> None:
    start, later = min(start, later), max(start, later)
    joined = join_batches((*join_batches(one, start), *other), later)
    assert joined == join_batches((*join_batches(other, later), *one), later)
    assert joined == join_batches((*joined, *one), later)

"""Tests of which slots of a chain have to stay."""

from __future__ import annotations

import random

import pytest

from tiered.ids import PartitionId, TopicId
from tiered.wal.trimming import LISTED_NS, MARKS_MAX, STEP_NS, ChainTrimming

ONE, TWO = (PartitionId(TopicId("t"), p) for p in (0, 1))


def test_slot_stays_until_its_records_are_in_segments() -> None:
    trimming = ChainTrimming()
    for slot in range(10):
        trimming.note_put(slot, slot, {ONE: 10 * slot + 10}, slot * STEP_NS)
    trimming.note_put(10, 10, {TWO: 1}, 10 * STEP_NS)
    late = 10 * STEP_NS + LISTED_NS
    assert trimming.first_needed(late) == 0
    trimming.note_segments(ONE, 35)
    assert trimming.first_needed(late) == 3, "slot 3 has records up to 40"
    trimming.note_segments(ONE, 100)
    assert trimming.first_needed(late) == 10, "the other partition has a record there"
    trimming.forget(TWO)
    assert trimming.first_needed(late) == 10, "the newest slot stays"


def test_newest_slot_that_each_list_shows_stays() -> None:
    trimming = ChainTrimming()
    for slot in range(30):
        trimming.note_put(slot, slot, {ONE: slot + 1}, slot * STEP_NS)
    trimming.note_segments(ONE, 30)
    assert trimming.first_needed(LISTED_NS - 1) == 0
    assert trimming.first_needed(LISTED_NS + 5 * STEP_NS) == 5
    assert trimming.first_needed(LISTED_NS + 100 * STEP_NS) == 29


def test_slots_that_were_undecided_at_the_newest_put_stay() -> None:
    trimming = ChainTrimming()
    for slot in range(5):
        trimming.note_put(slot, max(0, slot - 2), {ONE: slot + 1}, slot * STEP_NS)
    trimming.note_segments(ONE, 5)
    assert trimming.first_needed(LISTED_NS + 9 * STEP_NS) == 2


def test_marks_are_bounded_and_keep_enough() -> None:
    trimming, rng = ChainTrimming(), random.Random(1)
    needed: list[tuple[int, int]] = []
    end = 0
    for slot in range(500):
        end += rng.randrange(1, 9)
        needed.append((slot, end))
        trimming.note_put(slot, slot, {ONE: end}, slot * STEP_NS)
    assert len(trimming._marks[ONE]) <= MARKS_MAX
    for cold_end in sorted(rng.sample(range(end), 50)):
        trimming.note_segments(ONE, cold_end)
        first = next(slot for slot, until in needed if until > cold_end)
        assert trimming.first_needed(1000 * STEP_NS) <= first
    trimming.note_segments(ONE, end)
    assert trimming.first_needed(1000 * STEP_NS) == 499


@pytest.mark.parametrize("windows_of_a_segment", [40, 400, 4000])
def test_chain_of_a_steady_writer_is_little_longer_than_a_segment(windows_of_a_segment: int) -> None:
    """A segment is in the bucket when a tenth of the next one is written."""
    trimming, longest = ChainTrimming(), 0
    for slot in range(10 * windows_of_a_segment):
        trimming.note_put(slot, slot, {ONE: slot + 1}, slot * STEP_NS)
        segments = (slot - windows_of_a_segment // 10) // windows_of_a_segment
        trimming.note_segments(ONE, segments * windows_of_a_segment)
        longest = max(longest, slot - trimming.first_needed(LISTED_NS + slot * STEP_NS))
    assert longest < 1.3 * windows_of_a_segment

"""Tests of the decisions on windows: when one ends, and what counts as stored."""

from __future__ import annotations

import itertools

from tiered.ids import PartitionId, TopicId
from tiered.object_store.s3 import CONDITIONAL_WORKERS
from tiered.wal.window import UNDECIDED_BYTES_MAX, UNDECIDED_MAX, DecidedSlots, StoredRange, WindowSettings, WindowTimer

ONE, TWO = (PartitionId(TopicId("t"), p) for p in (0, 1))


def timer() -> WindowTimer:
    return WindowTimer(WindowSettings(250, 1_000))


def test_window_of_one_writer_ends_at_once() -> None:
    window = timer()
    assert window.ends_ns(0, 0, 100) is None, "nothing waits"
    window.note(ONE, 10, 100)
    assert window.ends_ns(0, 0, 100) == 100
    assert window.ends_ns(1, 0, 100) == 350, "the put before runs: meanwhile more may come"
    assert window.end() == {ONE} and window.ends_ns(0, 0, 101) is None


def test_window_of_two_writers_lasts_its_time() -> None:
    window = timer()
    window.note(ONE, 10, 100)
    window.note(TWO, 10, 120)
    assert window.ends_ns(0, 0, 130) == 350
    window.end()
    window.note(ONE, 10, 400)
    assert window.ends_ns(0, 0, 400) == 650, "there were two a moment ago"
    window.end()
    window.note(ONE, 10, 700)
    assert window.ends_ns(0, 0, 700) == 700


def test_window_ends_early_when_enough_bytes_wait() -> None:
    window = timer()
    window.note(ONE, 999, 100)
    window.note(TWO, 1, 110)
    assert window.ends_ns(3, 0, 111) == 111


def test_too_many_undecided_slots_hold_back_the_next() -> None:
    window = timer()
    window.note(ONE, 5_000, 100)
    assert window.ends_ns(UNDECIDED_MAX - 1, 0, 100) == 100
    assert window.ends_ns(UNDECIDED_MAX, 0, 100) is None


def test_too_many_undecided_bytes_hold_back_the_next() -> None:
    window = timer()
    window.note(ONE, 5_000, 100)
    assert window.ends_ns(1, UNDECIDED_BYTES_MAX - 1, 100) == 100
    assert window.ends_ns(1, UNDECIDED_BYTES_MAX, 100) is None


def test_slots_count_in_their_order_whatever_the_order_of_puts() -> None:
    for order in itertools.permutations(range(4)):
        slots: DecidedSlots[int] = DecidedSlots()
        found = []
        for number, slot in enumerate(order):
            found += slots.decide(slot, [slot])
            done = {*order[: number + 1]}
            assert found == list(itertools.takewhile(done.__contains__, range(4)))


def test_records_count_without_a_gap_whatever_the_order_of_extents() -> None:
    for order in itertools.permutations([(5, 6), (6, 9), (9, 11)]):
        stored, seen = StoredRange(5), set()
        for each in order:
            seen.add(each)
            moved_from = stored.end
            assert stored.confirm(*each) == (stored.end > moved_from)
            end = 5
            for base, until in sorted(seen):
                end = until if base == end else end
            assert stored.end == end


def test_windows_leave_puts_to_the_metadata_log() -> None:
    assert UNDECIDED_MAX < CONDITIONAL_WORKERS

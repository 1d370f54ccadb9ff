"""Tests of parked callers: order, early removal, and the bound."""

from __future__ import annotations

from tests.refusal import refuses
from tiered.errors import Code
from tiered.replication.purgatory import Purgatory


def test_callers_wake_in_the_order_of_their_offsets() -> None:
    waiting: Purgatory[str] = Purgatory()
    for name, offset in (("late", 9), ("early", 3), ("also early", 3), ("middle", 5)):
        waiting.park(name, offset)
    assert waiting.wake(2) == []
    assert waiting.wake(5) == ["early", "also early", "middle"]
    assert waiting.wake(100) == ["late"]
    assert len(waiting) == 0


def test_unparked_caller_is_not_woken_and_takes_no_room() -> None:
    waiting: Purgatory[int] = Purgatory(limit=2)
    for offset in range(1000):
        waiting.unpark(waiting.park(offset, 1_000_000))
    waiting.park(1, 5)
    waiting.unpark(waiting.park(2, 4))
    assert waiting.wake(5) == [1]
    assert len(waiting._heap) < 50


def test_one_caller_too_many_is_refused() -> None:
    waiting: Purgatory[int] = Purgatory(limit=2)
    waiting.park(1, 5)
    waiting.park(2, 5)
    with refuses(Code.THROTTLING_QUOTA_EXCEEDED):
        waiting.park(3, 5)


def test_all_callers_wake_when_the_leadership_moves() -> None:
    waiting: Purgatory[int] = Purgatory()
    waiting.park(1, 9)
    waiting.unpark(waiting.park(2, 8))
    waiting.park(3, 7)
    assert waiting.wake_all() == [3, 1]
    assert waiting.wake(100) == []

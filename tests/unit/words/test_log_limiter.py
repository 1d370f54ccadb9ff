"""Of a flood of warnings one is said every ten seconds, and it says how many were not."""

from __future__ import annotations

from tests.unit.hot.fixtures import FixedClock
from tiered.log_limiter import LogLimiter, StateLogLimiter


def test_those_that_follow_soon_are_counted_and_told_with_the_next() -> None:
    clock = FixedClock()
    quiet = LogLimiter(clock)
    assert [quiet.admit("a") for _ in range(4)] == [0, None, None, None]
    clock.wall += 9_999
    assert quiet.admit("a") is None
    clock.wall += 1
    assert [quiet.admit("a"), quiet.admit("a")] == [4, None]
    clock.wall += 60_000
    assert quiet.admit("a") == 1


def test_kinds_are_apart() -> None:
    quiet = LogLimiter(FixedClock())
    assert [quiet.admit(kind) for kind in ("a", "b", "a", "b")] == [0, 0, None, None]


def test_a_state_that_lasts_is_said_ever_more_seldom_and_at_once_when_it_begins_again() -> None:
    clock, said = FixedClock(), list[int]()
    waning = StateLogLimiter(clock)
    for second in range(7200):
        seconds = waning.admit(is_start=second == 0)
        said += [] if seconds is None else [seconds]
        clock.wall += 1000
    assert said == [0, 10, 30, 70, 150, 310, 630, *range(1230, 7200, 600)]
    assert (waning.admit(is_start=True), waning.admit(is_start=False)) == (0, None)

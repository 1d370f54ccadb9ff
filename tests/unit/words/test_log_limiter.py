"""Tests of the log limiter: one warning every ten seconds, with the number of suppressed ones."""

from __future__ import annotations

from tests.unit.hot.fixtures import FixedClock
from tiered.log_limiter import LogLimiter, StateLogLimiter


def test_warnings_within_ten_seconds_are_counted() -> None:
    clock = FixedClock()
    quiet = LogLimiter(clock)
    assert [quiet.admit("a") for _ in range(4)] == [0, None, None, None]
    clock.wall += 9_999
    assert quiet.admit("a") is None
    clock.wall += 1
    assert [quiet.admit("a"), quiet.admit("a")] == [4, None]
    clock.wall += 60_000
    assert quiet.admit("a") == 1


def test_kinds_of_warnings_are_limited_separately() -> None:
    quiet = LogLimiter(FixedClock())
    assert [quiet.admit(kind) for kind in ("a", "b", "a", "b")] == [0, 0, None, None]


def test_lasting_state_is_logged_less_and_less_until_it_starts_again() -> None:
    clock, said = FixedClock(), list[int]()
    waning = StateLogLimiter(clock)
    for second in range(7200):
        seconds = waning.admit(is_start=second == 0)
        said += [] if seconds is None else [seconds]
        clock.wall += 1000
    assert said == [0, 10, 30, 70, 150, 310, 630, *range(1230, 7200, 600)]
    assert (waning.admit(is_start=True), waning.admit(is_start=False)) == (0, None)

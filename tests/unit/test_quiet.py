"""Of a flood of warnings one is said every ten seconds, and it says how many were not."""

from __future__ import annotations

from tests.unit.hot.fixtures import FixedClock
from tiered.quiet import Quiet


def test_those_that_follow_soon_are_counted_and_told_with_the_next() -> None:
    clock = FixedClock()
    quiet = Quiet(clock)
    assert [quiet.unsaid("a") for _ in range(4)] == [0, None, None, None]
    clock.wall += 9_999
    assert quiet.unsaid("a") is None
    clock.wall += 1
    assert [quiet.unsaid("a"), quiet.unsaid("a")] == [4, None]
    clock.wall += 60_000
    assert quiet.unsaid("a") == 1


def test_kinds_are_apart() -> None:
    quiet = Quiet(FixedClock())
    assert [quiet.unsaid(kind) for kind in ("a", "b", "a", "b")] == [0, 0, None, None]

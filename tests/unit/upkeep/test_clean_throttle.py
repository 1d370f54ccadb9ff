"""Tests of the pace of cleans: bytes and requests are spread over time, and a late event loop gets a pause."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.scenario import run_by
from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tiered.upkeep.clean_throttle import LATE_NS, PAUSE_FACTOR, PAUSE_MAX_NS, CleanThrottle


class LateClock(SimClock):
    """A clock of a loop that is busy: each sleep ends `late_ns` after its time."""

    late_ns = 0

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds + self.late_ns / 1e9)


def run(scenario: Callable[[LateClock, CleanThrottle], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop(1)
    clock = LateClock(loop)
    loop.run(scenario(clock, CleanThrottle(clock)))


@run_by(run)
async def test_bytes_and_requests_have_limits_of_their_own(clock: LateClock, throttle: CleanThrottle) -> None:
    for _ in range(5):
        await throttle.admit_bytes(1000, 500)
    assert clock.mono_ns() == 8 * 10**9, "the first step goes at once"
    began = clock.mono_ns()
    for _ in range(5):
        await throttle.admit_request(2)
    assert clock.mono_ns() - began == 2 * 10**9


@run_by(run)
async def test_step_that_delays_the_loop_is_followed_by_a_longer_pause(
    clock: LateClock, throttle: CleanThrottle
) -> None:
    for late_ns, expected in (
        (0, 0),
        (LATE_NS, LATE_NS),
        (2 * LATE_NS, 4 * LATE_NS + PAUSE_FACTOR * 2 * LATE_NS),
        (PAUSE_MAX_NS, 3 * PAUSE_MAX_NS),
    ):
        clock.late_ns, began = late_ns, clock.mono_ns()
        await throttle.admit_bytes(0, 1)
        assert clock.mono_ns() - began == expected, late_ns

"""Contract of Clock and Rng, on the real and the simulated ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest

from tests.sim.harness.clock import SimClock, SimRng
from tests.sim.harness.loop import SimLoop
from tiered.ports import Clock, Rng
from tiered.system.clock import SystemClock, SystemRng


class Case(NamedTuple):
    clock: Clock
    rng: Rng
    run: Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["real", "simulated"])
def case(request: pytest.FixtureRequest) -> Case:
    if request.param == "real":
        return Case(SystemClock(), SystemRng(), asyncio.run)
    loop = SimLoop(1)
    return Case(SimClock(loop), SimRng(1), loop.run)


def test_wait_takes_no_core(case: Case) -> None:
    async def body() -> None:
        before = case.clock.cpu_ns()
        await case.clock.sleep(0.2)
        assert 0 <= case.clock.cpu_ns() - before < 150_000_000

    case.run(body())


def test_sleep_lasts_at_least_as_long_as_requested(case: Case) -> None:
    async def body() -> None:
        before = case.clock.mono_ns()
        await case.clock.sleep(0.02)
        assert case.clock.mono_ns() - before >= 20_000_000

    case.run(body())


def test_monotonic_and_wall_clock_advance_together(case: Case) -> None:
    async def body() -> None:
        readings = []
        for _ in range(2):
            readings.append((case.clock.mono_ns(), case.clock.wall_ms(), case.clock.mono_ns()))
            await case.clock.sleep(0.05)
        (before, wall_before, after), (later, wall_later, last) = readings
        # However long a reading of both takes: the wall clock has moved by a time in between.
        assert (later - after) / 1e6 - 20 < wall_later - wall_before < (last - before) / 1e6 + 20

    case.run(body())


def test_wall_clock_has_a_present_day_time(case: Case) -> None:
    assert 1_600_000_000_000 < case.clock.wall_ms() < 4_000_000_000_000


def test_streams_give_different_numbers(case: Case) -> None:
    drawn = [case.rng.stream(name).getrandbits(64) for name in ("a", "b", "a", "b")]
    assert len(set(drawn)) == 4


def test_real_streams_come_from_the_kernel() -> None:
    """Incarnations and the credential among brokers are drawn from them: nobody may guess one."""
    assert all(isinstance(SystemRng().stream(name), random.SystemRandom) for name in ("node", "metadata-log"))


def test_simulated_stream_depends_only_on_seed_and_name() -> None:
    first, second = SimRng(7), SimRng(7)
    second.stream("other").random()
    assert first.stream("name").random() == second.stream("name").random()
    assert first.stream("name").random() != SimRng(8).stream("name").random()


def test_jump_of_the_wall_clock_leaves_monotonic_time() -> None:
    clock = SimClock(SimLoop(1))
    wall, mono = clock.wall_ms(), clock.mono_ns()
    clock.jump(-3_600_000)
    assert (clock.wall_ms() - wall, clock.mono_ns()) == (-3_600_000, mono)

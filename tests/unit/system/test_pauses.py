"""Tests of pauses of the process: they are a problem once they add up, and for a minute."""

from __future__ import annotations

import asyncio

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop, process_context
from tiered.metrics import Metrics
from tiered.system.pauses import Pauses

PROCESS = "one"


def run_with_pauses(*seconds: float, between: float = 2.0) -> tuple[list[str], list[str], str]:
    """Freezes a process for each of these times. Returns its problems afterwards and a minute later, and metrics."""
    loop = SimLoop(1)

    async def scenario() -> tuple[list[str], list[str], str]:
        metrics = Metrics()
        pauses = Pauses(SimClock(loop), metrics)
        watch = loop.create_task(pauses.watch(), name=PROCESS, context=process_context(PROCESS))
        await asyncio.sleep(5)
        for each in seconds:
            loop.freeze(PROCESS)
            await asyncio.sleep(each)
            loop.resume(PROCESS)
            await asyncio.sleep(between)
        found = [*pauses.describe()]
        await asyncio.sleep(60)
        later = [*pauses.describe()]
        watch.cancel()
        return found, later, metrics.render()

    return loop.run(scenario())


def test_process_that_always_runs_has_no_problem() -> None:
    found, later, metrics = run_with_pauses()
    assert found == later == [] and "tiered_process_paused_seconds_total 0" in metrics


def test_pulses_of_pauses_are_a_problem_for_a_minute() -> None:
    found, later, metrics = run_with_pauses(3.0, 3.0, 3.0, 3.0, 3.0)
    [said] = found
    assert "did not run for 1" in said and "in 5 pauses" in said and "the longest of " in said
    assert "and runs since " in said and "it was stopped" in said and "clients waited" in said, "it runs again"
    assert "in 1 pause of the last minute" in run_with_pauses(12.0)[0][0]
    assert later == []
    [paused] = [line for line in metrics.splitlines() if line.startswith("tiered_process_paused_seconds_total ")]
    assert 12.0 <= float(paused.split()[1]) <= 15.0


def test_few_or_short_pauses_are_no_problem() -> None:
    assert run_with_pauses(3.0, 3.0)[0] == []
    assert run_with_pauses(*[0.9] * 20)[0] == []


def test_pauses_before_the_last_minute_do_not_count() -> None:
    assert run_with_pauses(6.0, 6.0, between=61.0)[0] == []

"""Tests of the simulated loop: equal runs for equal seeds, time that jumps, and nothing real."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import Deadlock, RunTooLong, SimLoop, process_context


async def sleep_together(order: list[int]) -> None:
    async def one(number: int) -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            order.append(number)

    await asyncio.gather(*(one(number) for number in range(10)))


def run(seed: int) -> tuple[list[int], int]:
    loop, order = SimLoop(seed), list[int]()
    loop.run(sleep_together(order))
    return order, loop.digest


def test_same_seed_gives_the_same_run() -> None:
    assert run(1) == run(1)


def test_another_seed_orders_simultaneous_timers_differently() -> None:
    assert run(1) != run(2)


def test_virtual_hour_passes_at_once_and_exactly() -> None:
    loop = SimLoop(1)

    async def main() -> int:
        for _ in range(36_000):
            await asyncio.sleep(0.1)
        return loop.now_ns

    assert loop.run(main()) == 3600 * 1_000_000_000


def test_timeouts_and_events_work_as_on_any_loop() -> None:
    async def main() -> str:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(5, event.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4):
                await event.wait()
        async with asyncio.timeout(4), asyncio.TaskGroup() as group:
            waiting = group.create_task(event.wait())
        return f"{waiting.result()} {asyncio.get_running_loop().time()}"

    assert SimLoop(1).run(main()) == "True 5.0"


def test_deadlock_names_the_waiting_task() -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="waits_for_ever waits at"):
        SimLoop(1).run(waits_for_ever())


def test_endless_run_is_stopped() -> None:
    async def ticks() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(RunTooLong):
        SimLoop(1, seconds_max=100).run(ticks())


def test_unhandled_error_fails_the_run() -> None:
    def broken() -> None:
        raise ValueError("nobody looked")

    async def main() -> None:
        asyncio.get_running_loop().call_soon(broken)
        await asyncio.sleep(1)

    with pytest.raises(ValueError, match="nobody looked"):
        SimLoop(1).run(main())


def test_use_of_threads_and_sockets_is_an_error() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(NotImplementedError):
            loop.run_in_executor(None, print)
        with pytest.raises(NotImplementedError):
            loop.add_reader(0, print)
        with pytest.raises(AssertionError, match="thread"):
            loop.call_soon_threadsafe(print)

    SimLoop(1).run(main())


def test_remaining_tasks_are_cancelled_at_the_end() -> None:
    ends: list[str] = []

    async def sleep_for_ever() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ends.append("cancelled")

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(sleep_for_ever())
        await asyncio.sleep(1)
        assert not task.done()

    loop = SimLoop(1)
    loop.run(main())
    assert (ends, SimClock(loop).mono_ns()) == (["cancelled"], 1_000_000_000)


async def count_seconds(order: list[str], name: str, count: int) -> None:
    for number in range(count):
        await asyncio.sleep(1)
        order.append(f"{name}{number}")


def test_frozen_process_runs_its_timers_after_it_resumes() -> None:
    loop, order = SimLoop(1), list[str]()

    async def main() -> None:
        one = loop.create_task(count_seconds(order, "a", 4), context=process_context("a"))
        other = loop.create_task(count_seconds(order, "b", 4), context=process_context("b"))
        await asyncio.sleep(1.5)
        loop.freeze("a")
        assert loop.is_frozen("a") and not loop.is_frozen("b")
        await other
        assert sorted(order) == ["a0", "b0", "b1", "b2", "b3"]
        loop.resume("a")
        await asyncio.sleep(0.1)
        assert order[-1] == "a1" and loop.tasks_of("a") == [one]
        await one

    loop.run(main())
    assert not loop.is_frozen("a")


def test_subtasks_belong_to_the_process_that_started_them() -> None:
    loop, order = SimLoop(1), list[str]()

    async def parent() -> None:
        task = asyncio.get_running_loop().create_task(count_seconds(order, "child", 3))
        asyncio.get_running_loop().call_later(2.5, order.append, "timer")
        await asyncio.gather(task, count_seconds(order, "self", 3))

    async def main() -> None:
        loop.create_task(parent(), context=process_context("p"))
        await asyncio.sleep(1.5)
        assert len(loop.tasks_of("p")) == 3
        for task in loop.tasks_of("p"):
            task.cancel()
        while loop.tasks_of("p"):
            await asyncio.sleep(0)
        loop.end_process("p")
        loop.resume("p")
        await asyncio.sleep(5)
        assert loop.tasks_of("p") == []

    loop.run(main())
    assert sorted(order) == ["child0", "self0"], "a dead process does nothing more, not even its timers"


def test_drifting_clock_runs_at_its_own_rate() -> None:
    loop = SimLoop(1)
    clock = SimClock(loop)

    async def main() -> None:
        clock.drift_ppm = 1000
        await asyncio.sleep(100)
        assert clock.mono_ns() == 100_100_000_000
        await clock.sleep(10.01)
        assert loop.time() == 110

    loop.run(main())

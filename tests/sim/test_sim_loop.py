"""The simulated loop: equal runs for equal seeds, time that jumps, and nothing real."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.clock import SimClock
from tests.sim.loop import Deadlock, Endless, SimLoop


async def crowd(order: list[int]) -> None:
    async def one(number: int) -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            order.append(number)

    await asyncio.gather(*(one(number) for number in range(10)))


def run(seed: int) -> tuple[list[int], int]:
    loop, order = SimLoop(seed), list[int]()
    loop.run(crowd(order))
    return order, loop.digest


def test_one_seed_gives_one_run() -> None:
    assert run(1) == run(1)


def test_another_seed_gives_another_order_of_what_is_due_together() -> None:
    assert run(1) != run(2)


def test_an_hour_passes_at_once_and_exactly() -> None:
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


def test_waiting_for_nothing_is_a_deadlock_that_names_the_task() -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="waits_for_ever waits at"):
        SimLoop(1).run(waits_for_ever())


def test_a_run_without_end_is_cut() -> None:
    async def ticks() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(Endless):
        SimLoop(1, seconds_max=100).run(ticks())


def test_an_error_that_nobody_takes_fails_the_run() -> None:
    def broken() -> None:
        raise ValueError("nobody looked")

    async def main() -> None:
        asyncio.get_running_loop().call_soon(broken)
        await asyncio.sleep(1)

    with pytest.raises(ValueError, match="nobody looked"):
        SimLoop(1).run(main())


def test_threads_and_sockets_do_not_exist() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(NotImplementedError):
            loop.run_in_executor(None, print)
        with pytest.raises(NotImplementedError):
            loop.add_reader(0, print)
        with pytest.raises(AssertionError, match="thread"):
            loop.call_soon_threadsafe(print)

    SimLoop(1).run(main())


def test_tasks_left_over_are_cancelled() -> None:
    ends: list[str] = []

    async def left() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ends.append("cancelled")

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(left())
        await asyncio.sleep(1)
        assert not task.done()

    loop = SimLoop(1)
    loop.run(main())
    assert (ends, SimClock(loop).mono_ns()) == (["cancelled"], 1_000_000_000)

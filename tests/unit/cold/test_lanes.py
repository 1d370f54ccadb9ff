"""Lanes: as many calls at once as there are workers, a deadline for each, and no place lost."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tiered.cold.lanes import Lane


def test_no_more_calls_run_at_once_than_there_are_workers() -> None:
    running, most = 0, 0
    lock = threading.Lock()
    gate = threading.Barrier(3)

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(10)
        with lock:
            running -= 1

    async def main() -> None:
        lane = Lane("test", 3)
        await asyncio.gather(*(lane.run(10, call) for _ in range(9)))
        lane.close()

    asyncio.run(main())
    assert most == 3


def test_results_and_errors_come_back() -> None:
    def fails() -> None:
        raise KeyError("inside")

    async def main() -> None:
        lane = Lane("test", 1)
        assert await lane.run(10, lambda: 42) == 42
        with pytest.raises(KeyError, match="inside"):
            await lane.run(10, fails)
        lane.close()

    asyncio.run(main())


def test_a_call_over_its_deadline_goes_on_and_keeps_its_place() -> None:
    release, landed = threading.Event(), threading.Event()

    def slow() -> None:
        release.wait(10)
        landed.set()

    async def main() -> None:
        lane = Lane("test", 1)
        with pytest.raises(TimeoutError):
            await lane.run(0.02, slow)
        with pytest.raises(TimeoutError):  # the only place is taken
            await lane.run(0.02, lambda: None)
        release.set()
        assert await lane.run(10, landed.is_set)
        lane.close()

    asyncio.run(main())


def test_a_caller_that_is_cancelled_while_it_waits_takes_no_place() -> None:
    release = threading.Event()

    async def main() -> None:
        lane = Lane("test", 1)
        first = asyncio.ensure_future(lane.run(10, lambda: release.wait(10)))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(lane.run(10, lambda: True))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        release.set()
        assert await first and await lane.run(10, lambda: True)
        lane.close()

    asyncio.run(main())

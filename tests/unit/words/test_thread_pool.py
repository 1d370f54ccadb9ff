"""Tests of the thread pool: bounded calls at once, a deadline for each, and no thread lost."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from contextlib import suppress
from functools import partial

import pytest

from tests.scenario import run_alone, run_by
from tiered.errors import Unavailable
from tiered.spending import spent_by
from tiered.thread_pool import ThreadPool, end_if_abandoned


def test_concurrent_calls_are_bounded_by_the_threads() -> None:
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
        workers = ThreadPool("test", 3)
        await asyncio.gather(*(workers.run(call, 10) for _ in range(9)))
        workers.close()

    asyncio.run(main())
    assert most == 3


@run_by(run_alone)
async def test_threads_of_a_nice_pool_yield_their_core() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    nice, usual = ThreadPool("nice", 1, niceness=7), ThreadPool("usual", 1)
    before = niceness()
    assert await nice.run(niceness, 10) == 7
    assert await usual.run(niceness, 10) == niceness() == before
    nice.close()
    usual.close()


@run_by(run_alone)
async def test_caller_gets_result_or_error() -> None:
    def fails() -> None:
        raise KeyError("inside")

    workers = ThreadPool("test", 1)
    assert await workers.run(lambda: 42, 10) == 42
    with pytest.raises(KeyError, match="inside"):
        await workers.run(fails, 10)
    workers.close()


@run_by(run_alone)
async def test_call_over_its_deadline_continues_and_keeps_its_thread() -> None:
    release, landed = threading.Event(), threading.Event()

    def slow() -> None:
        release.wait(10)
        landed.set()

    workers = ThreadPool("test", 1)
    with pytest.raises(TimeoutError):
        await workers.run(slow, 0.02)
    with pytest.raises(TimeoutError):  # the only place is taken
        await workers.run(lambda: None, 0.02)
    release.set()
    assert await workers.run(landed.is_set, 10)
    workers.close()


@run_by(run_alone)
async def test_waiting_caller_that_is_cancelled_takes_no_thread() -> None:
    release = threading.Event()
    workers = ThreadPool("test", 1)
    first = asyncio.ensure_future(workers.run(lambda: release.wait(10), 10))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(workers.run(lambda: True, 10))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    release.set()
    assert await first and await workers.run(lambda: True, 10)
    workers.close()


@run_by(run_alone)
async def test_cancelled_call_keeps_nothing_in_memory_while_it_waits() -> None:
    release = threading.Event()

    class Body:
        """Stands for the arguments of a call."""

    workers = ThreadPool("test", 1)
    first = asyncio.ensure_future(workers.run(lambda: release.wait(10), 10))
    await asyncio.sleep(0)
    body = Body()
    kept = weakref.ref(body)
    second = asyncio.ensure_future(workers.run(partial(id, body), 10))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    del body, second
    gc.collect()
    assert kept() is None and not release.is_set()
    release.set()
    assert await first
    workers.close()


def test_call_that_fails_keeps_nothing_in_memory() -> None:
    """The collector may look at it much later."""
    kept: list[weakref.ref[set[int]]] = []

    def call() -> None:
        body = {1}
        kept.append(weakref.ref(body))
        raise ValueError

    async def main() -> None:
        workers = ThreadPool("test", 1)
        for _ in range(2):  # the thread lets go of the first call once it begins the second
            with suppress(ValueError):
                await workers.run(call, 10)
        workers.close()
        assert kept[0]() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


@run_by(run_alone)
async def test_waiting_calls_are_bounded_and_cancelled_by_close() -> None:
    release = threading.Event()
    workers = ThreadPool("bounded", 1, waiting_max=1)
    running = asyncio.ensure_future(workers.run(release.wait, 10))
    while not (threads := thread_names("tiered-bounded")) or workers._jobs.qsize():
        await asyncio.sleep(0)
    waiting = asyncio.ensure_future(workers.run(release.wait, 10))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="have 1 calls waiting"):
        await workers.run(release.wait, 10)
    workers.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(Unavailable, match="are closed"):
        await workers.run(release.wait, 10)
    release.set()
    assert await running, "what has begun ends by itself"
    for thread in threads:
        thread.join(10)
    assert not thread_names("tiered-bounded")


def thread_names(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


class Spending:
    """A spender."""

    def __init__(self) -> None:
        self.spent_ns = 0

    def spend(self, spent_ns: int) -> None:
        self.spent_ns += spent_ns


def burn(seconds: float) -> None:
    """Uses CPU time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def burn_and_fail(seconds: float) -> float:
    """Uses CPU time, and raises an error."""
    burn(seconds)
    return 1 / 0


@run_by(run_alone)
async def test_spender_pays_for_the_cpu_time_of_its_calls_alone() -> None:
    pool, payer = ThreadPool("test", 2), Spending()
    with spent_by(payer):
        other = asyncio.create_task(pool.run(lambda: burn(0.01)))
        with pytest.raises(ZeroDivisionError):
            await pool.run(partial(burn_and_fail, 0.01))
        await other
    charged = payer.spent_ns
    assert charged >= 20_000_000
    await pool.run(lambda: burn(0.01))
    assert payer.spent_ns == charged
    pool.close()


@run_by(run_alone)
async def test_long_work_ends_between_its_pieces_once_nobody_waits() -> None:
    ended = threading.Event()

    def work() -> None:
        try:
            while True:
                end_if_abandoned()
        except Unavailable:
            ended.set()
            raise

    pool = ThreadPool("test", 1)
    with pytest.raises(TimeoutError):
        await pool.run(work, 0.01)
    assert await pool.run(ended.is_set), "the only thread is free again"
    end_if_abandoned()  # no thread of a pool
    pool.close()

"""Tests of many small tasks that share the deadline of one request."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from tiered.spending import spent_by
from tiered.system import turns
from tiered.system.clock import SystemClock
from tiered.system.turns import Turns
from tiered_api.kafka.server.slots.bounded_tasks import CONCURRENCY, run_bounded


async def at_once(number: int) -> str:
    return f"done {number}"


async def never(cancelled: list[int], number: int) -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append(number)
        raise
    return ""


def late(number: int) -> str:
    return f"late {number}"


def run_all(tasks: Sequence[Callable[[], Awaitable[str]]], timeout_ms: int) -> list[str]:
    """Returns the results of one request."""

    async def scenario() -> list[str]:
        return await run_bounded(tasks, timeout_ms, late, Turns(SystemClock()))

    return asyncio.run(scenario())


def test_results_are_in_the_order_of_the_tasks() -> None:
    found = run_all([partial(at_once, number) for number in range(200)], 5_000)
    assert found == [f"done {number}" for number in range(200)]
    assert run_all([], 5_000) == []


def test_late_task_is_cancelled_and_delays_no_other() -> None:
    cancelled: list[int] = []
    works = [partial(never, cancelled, 0), *(partial(at_once, number) for number in range(1, 100))]
    assert run_all(works, 50) == ["late 0", *(f"done {number}" for number in range(1, 100))]
    assert cancelled == [0]


def test_others_run_between_tasks_that_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)

    async def scenario() -> None:
        loop_turns, seen = 0, list[int]()

        async def count() -> None:
            nonlocal loop_turns
            while True:
                loop_turns += 1
                await asyncio.sleep(0)

        async def note() -> str:
            seen.append(loop_turns)
            return ""

        counting = asyncio.create_task(count())
        await run_bounded([note] * 100, 60_000, late, Turns(SystemClock()))
        counting.cancel()
        assert max(Counter(seen).values()) <= 2, "a turn without time begins a task or two"

    asyncio.run(scenario())


def test_number_of_running_tasks_is_bounded() -> None:
    begun: list[int] = []

    async def begin(number: int) -> str:
        begun.append(number)
        return await never([], number)

    found = run_all([partial(begin, number) for number in range(500)], 20)
    assert len(begun) == CONCURRENCY and found == [late(number) for number in range(500)]


def test_no_task_starts_without_time() -> None:
    begun: list[int] = []

    async def begin() -> str:
        begun.append(1)
        return ""

    assert run_all([begin], 0) == ["late 0"] and begun == []


def test_error_of_a_task_cancels_the_others() -> None:
    cancelled: list[int] = []

    async def fail() -> str:
        raise ValueError("a bug")

    with pytest.raises(ExceptionGroup, match="unhandled"):
        run_all([partial(never, cancelled, 0), fail], 5_000)
    assert cancelled == [0]


class Spending:
    """A spender."""

    def __init__(self) -> None:
        self.spent_ns = 0

    def spend(self, spent_ns: int) -> None:
        self.spent_ns += spent_ns


def test_spender_of_a_request_pays_for_the_time_of_its_tasks() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        end = time.monotonic_ns() + 5_000_000
        while time.monotonic_ns() < end:
            pass
        return ""

    payer = Spending()
    with spent_by(payer):
        run_all([work] * 8, 60_000)
    assert payer.spent_ns >= 40_000_000

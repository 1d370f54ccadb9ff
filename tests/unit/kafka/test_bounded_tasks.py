"""Tests of many small tasks that share the deadline of one request."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tiered_api.kafka.server.exchange.bounded_tasks import CONCURRENCY, run_bounded


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


def test_results_are_in_the_order_of_the_tasks() -> None:
    found = asyncio.run(run_bounded([partial(at_once, number) for number in range(200)], 5_000, late))
    assert found == [f"done {number}" for number in range(200)]
    assert asyncio.run(run_bounded([], 5_000, late)) == []


def test_late_task_is_cancelled_and_delays_no_other() -> None:
    cancelled: list[int] = []
    works = [partial(never, cancelled, 0), *(partial(at_once, number) for number in range(1, 100))]
    assert asyncio.run(run_bounded(works, 50, late)) == ["late 0", *(f"done {number}" for number in range(1, 100))]
    assert cancelled == [0]


def test_number_of_running_tasks_is_bounded() -> None:
    begun: list[int] = []

    async def begin(number: int) -> str:
        begun.append(number)
        return await never([], number)

    found = asyncio.run(run_bounded([partial(begin, number) for number in range(500)], 20, late))
    assert len(begun) == CONCURRENCY and found == [late(number) for number in range(500)]


def test_no_task_starts_without_time() -> None:
    begun: list[int] = []

    async def begin() -> str:
        begun.append(1)
        return ""

    assert asyncio.run(run_bounded([begin], 0, late)) == ["late 0"] and begun == []


def test_error_of_a_task_cancels_the_others() -> None:
    cancelled: list[int] = []

    async def fail() -> str:
        raise ValueError("a bug")

    with pytest.raises(ExceptionGroup, match="unhandled"):
        asyncio.run(run_bounded([partial(never, cancelled, 0), fail], 5_000, late))
    assert cancelled == [0]

"""Many small pieces of work in the time of one request."""

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


def test_answers_come_in_the_order_of_the_work() -> None:
    found = asyncio.run(run_bounded([partial(at_once, number) for number in range(200)], 5_000, late))
    assert found == [f"done {number}" for number in range(200)]
    assert asyncio.run(run_bounded([], 5_000, late)) == []


def test_what_is_not_done_in_time_is_given_up_and_holds_up_no_other() -> None:
    cancelled: list[int] = []
    works = [partial(never, cancelled, 0), *(partial(at_once, number) for number in range(1, 100))]
    assert asyncio.run(run_bounded(works, 50, late)) == ["late 0", *(f"done {number}" for number in range(1, 100))]
    assert cancelled == [0]


def test_only_some_are_under_way_at_once() -> None:
    begun: list[int] = []

    async def begin(number: int) -> str:
        begun.append(number)
        return await never([], number)

    found = asyncio.run(run_bounded([partial(begin, number) for number in range(500)], 20, late))
    assert len(begun) == CONCURRENCY and found == [late(number) for number in range(500)]


def test_without_time_nothing_is_begun() -> None:
    begun: list[int] = []

    async def begin() -> str:
        begun.append(1)
        return ""

    assert asyncio.run(run_bounded([begin], 0, late)) == ["late 0"] and begun == []


def test_a_fault_ends_them_all() -> None:
    cancelled: list[int] = []

    async def fail() -> str:
        raise ValueError("a bug")

    with pytest.raises(ExceptionGroup, match="unhandled"):
        asyncio.run(run_bounded([partial(never, cancelled, 0), fail], 5_000, late))
    assert cancelled == [0]

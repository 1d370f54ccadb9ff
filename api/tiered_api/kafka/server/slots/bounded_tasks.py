"""Bounded parallel work of one request: a few pieces at a time, until a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tiered.quotas.timed_steps import spend
from tiered.system.turns import Turns

T = TypeVar("T")

CONCURRENCY = 32


async def run_bounded(
    tasks: Sequence[Callable[[], Awaitable[T]]],
    timeout_ms: int,
    on_timeout: Callable[[int], T],
    turns: Turns,
    *,
    concurrency: int = CONCURRENCY,
) -> list[T]:
    """Returns the results of `tasks` in their order. A task that is not done in time is cancelled, and its result is
    `on_timeout(number)`. A task that fails makes all fail. Without any time no task starts, as in Kafka.

    Most tasks wait for nothing, so they begin in turns with the long work of other requests. The spender of the request
    pays for their time.
    """
    done: dict[int, T] = {}
    if timeout_ms <= 0:
        return [on_timeout(number) async for number in turns.each_of(range(len(tasks)))]
    waiting = iter(enumerate(tasks))
    gate = asyncio.Lock()  # one task of the request waits in the turns, or each would take a turn for itself

    async def take() -> None:
        for number, work in waiting:
            if not turns.has_time():
                async with gate:
                    await turns.wait_turn()
            done[number] = await work()

    try:
        async with asyncio.timeout(timeout_ms / 1000), asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(tasks))):
                group.create_task(_wait_for(spend(take(), turns.mono_ns)))
    except TimeoutError:
        pass
    return [done[number] if number in done else on_timeout(number) async for number in turns.each_of(range(len(tasks)))]


async def _wait_for(work: Awaitable[None]) -> None:
    await work

"""Bounded parallel work of one request: a few pieces at a time, until a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

CONCURRENCY = 32
BETWEEN_YIELDS = 16
"""Pieces of one worker between two pauses for other requests: most pieces wait for nothing."""


async def run_bounded(
    tasks: Sequence[Callable[[], Awaitable[T]]],
    timeout_ms: int,
    on_timeout: Callable[[int], T],
    *,
    concurrency: int = CONCURRENCY,
) -> list[T]:
    """Returns the results of `tasks` in their order. A task that is not done in time is cancelled, and its result is
    `on_timeout(number)`. A task that fails makes all fail. Without any time no task starts, as in Kafka."""
    done: dict[int, T] = {}
    if timeout_ms <= 0:
        return [on_timeout(number) for number in range(len(tasks))]
    waiting = iter(enumerate(tasks))

    async def take() -> None:
        for count, (number, work) in enumerate(waiting, 1):
            done[number] = await work()
            if count % BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)

    try:
        async with asyncio.timeout(timeout_ms / 1000), asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(tasks))):
                group.create_task(take())
    except TimeoutError:
        pass
    return [done[number] if number in done else on_timeout(number) for number in range(len(tasks))]

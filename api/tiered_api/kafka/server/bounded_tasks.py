"""Many small pieces of work of one request: some at a time, and what is not done when its time is over is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

CONCURRENCY = 32
BETWEEN_YIELDS = 16
"""Pieces that one worker does before others get their turn: most of them wait for nothing."""


async def run_bounded(
    tasks: Sequence[Callable[[], Awaitable[T]]],
    timeout_ms: int,
    on_timeout: Callable[[int], T],
    *,
    concurrency: int = CONCURRENCY,
) -> list[T]:
    """What each of `works` gave, in their order; `late(number)` for one that is not done in time, which is cancelled.
    A work that fails fails them all. Without any time nothing is begun, as in Kafka."""
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

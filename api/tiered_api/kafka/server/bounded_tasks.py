"""Many small pieces of work of one request: some at a time, and what is not done when its time is over is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 32
BETWEEN_YIELDS = 16
"""Pieces that one worker does before others get their turn: most of them wait for nothing."""


async def in_time(
    works: Sequence[Callable[[], Awaitable[T]]],
    milliseconds: int,
    late: Callable[[int], T],
    *,
    at_once: int = AT_ONCE,
) -> list[T]:
    """What each of `works` gave, in their order; `late(number)` for one that is not done in time, which is cancelled.
    A work that fails fails them all. Without any time nothing is begun, as in Kafka."""
    done: dict[int, T] = {}
    if milliseconds <= 0:
        return [late(number) for number in range(len(works))]
    waiting = iter(enumerate(works))

    async def take() -> None:
        for count, (number, work) in enumerate(waiting, 1):
            done[number] = await work()
            if count % BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)

    try:
        async with asyncio.timeout(milliseconds / 1000), asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(works))):
                group.create_task(take())
    except TimeoutError:
        pass
    return [done[number] if number in done else late(number) for number in range(len(works))]

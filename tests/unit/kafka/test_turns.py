"""Tests of long work in pieces: how much a turn of the event loop takes of it, and in which order the pieces run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from tiered_api.kafka.server.exchange.turns import TURN_SECONDS, Turns


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def busy(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


async def turns_of(loop_turns: list[int], ended: asyncio.Event) -> None:
    """Counts the turns of the event loop."""
    while not ended.is_set():
        loop_turns[0] += 1
        await asyncio.sleep(0)


def test_other_tasks_run_between_long_pieces() -> None:
    async def scenario() -> None:
        turns, ended, seen, loop_turns = Turns(), asyncio.Event(), list[int](), [0]

        async def work() -> None:
            for _ in range(3):
                await turns.wait_turn()
                busy(TURN_SECONDS)
                seen.append(loop_turns[0])

        counting = asyncio.create_task(turns_of(loop_turns, ended))
        await asyncio.gather(*(work() for _ in range(4)))
        ended.set()
        await counting
        assert len(seen) == 12 and len(set(seen)) == 12, "no two pieces in one turn"

    run(scenario())


def test_short_pieces_share_a_turn() -> None:
    async def scenario() -> None:
        turns, loop_turns, ended = Turns(), [0], asyncio.Event()
        counting = asyncio.create_task(turns_of(loop_turns, ended))
        await asyncio.sleep(0)
        before = loop_turns[0]
        for _ in range(100):
            await turns.wait_turn()
        assert loop_turns[0] == before
        ended.set()
        await counting

    run(scenario())


def test_waiting_work_runs_in_the_order_of_arrival() -> None:
    async def scenario() -> None:
        turns, order = Turns(), list[str]()
        assert turns.has_time()
        for name in "abc":
            turns.run_later(lambda name=name: order.append(name))  # type: ignore[misc]
        assert not turns.has_time(), "who comes later does not overtake"
        await turns.wait_turn()
        assert order == ["a", "b", "c"]

    run(scenario())


def test_cancelled_work_delays_no_other() -> None:
    async def scenario() -> None:
        turns = Turns()
        assert turns.has_time()
        busy(TURN_SECONDS)
        waits = [asyncio.create_task(turns.wait_turn()) for _ in range(3)]
        await asyncio.sleep(0)
        waits[0].cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(*waits[1:])
        assert turns.has_time()

    run(scenario())

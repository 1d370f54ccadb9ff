"""Ranged gets of which a late one is sent a second time. The first reply counts (`hedge_plan`)."""

from __future__ import annotations

import asyncio

from tiered.cold.hedge_plan import HedgePlan
from tiered.errors import Unavailable
from tiered.metrics import Metrics
from tiered.ports import Clock, GetResult, NotFound, ObjectStore

HEDGES_MAX = 8
"""Most second gets at once."""
Reply = GetResult | NotFound


class HedgedGets:
    """The gets of one reader. Call `close` at the end."""

    def __init__(self, store: ObjectStore, clock: Clock, metrics: Metrics) -> None:
        self._store = store
        self._clock = clock
        self._plan = HedgePlan()
        self._late: set[asyncio.Task[Reply]] = set()
        """Gets whose reply nobody needs any more. Each runs to its end: the store has the request, and it is counted
        and paid for."""
        self._hedging = 0
        self._hedges = metrics.counter(
            "tiered_cold_hedged_gets_total", "Late gets of cold objects that were sent again, by the first reply",
            ("first",),
        )  # fmt: skip

    async def get(self, key: str, start: int, length: int) -> Reply:
        """Returns these bytes, as the store does. Raises `Unavailable`; after a second get only if both fail."""
        began_ns = self._clock.mono_ns()
        delay_ns = self._plan.find_delay_ns(length)
        if delay_ns is None:
            got = await self._store.get(key, start, length)
        else:
            got = await self._get_twice(key, start, length, delay_ns / 1e9)
        if isinstance(got, GetResult):
            self._plan.record(length, self._clock.mono_ns() - began_ns)
        return got

    async def _get_twice(self, key: str, start: int, length: int, delay_seconds: float) -> Reply:
        first = asyncio.create_task(self._store.get(key, start, length), name=f"cold get {key}")
        tasks = {first}
        try:
            await asyncio.wait(tasks, timeout=delay_seconds)
            if first.done() or self._hedging + len(self._late) >= HEDGES_MAX or not self._plan.take():
                return await first
            tasks.add(asyncio.create_task(self._store.get(key, start, length), name=f"second cold get {key}"))
            self._hedging += 1
            try:
                winner = await _first_reply(tasks)
            finally:
                self._hedging -= 1
            self._hedges.inc(1, "first" if winner is first else "second")
            return winner.result()
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
        finally:
            for task in tasks:
                if not task.done():
                    self._late.add(task)
                    task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Reply]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # nobody waits for it: the other get has replied

    def close(self) -> None:
        """Cancels gets whose reply nobody needs."""
        for task in self._late:
            task.cancel()


async def _first_reply(tasks: set[asyncio.Task[Reply]]) -> asyncio.Task[Reply]:
    """Returns the first task that does not fail, else one that has failed."""
    left = set(tasks)
    while True:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        good = [task for task in done if not isinstance(task.exception(), Unavailable)]
        if good or not left:
            return (good or list(done))[0]

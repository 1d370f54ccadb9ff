"""Tests of work whose steps are timed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress

from tiered.quotas.timed_steps import TimedSteps


class Account:
    """A spender."""

    spent_ns = 0

    def spend(self, spent_ns: int) -> None:
        self.spent_ns += spent_ns


def test_work_that_fails_keeps_nothing_in_memory() -> None:
    """The collector may look at it much later."""
    kept: list[weakref.ref[set[int]]] = []

    async def fail() -> None:
        raise ValueError

    async def work() -> None:
        body = {1}
        kept.append(weakref.ref(body))
        await asyncio.create_task(fail())

    async def main() -> None:
        with suppress(ValueError):
            await TimedSteps(work(), Account(), lambda: 0)
        await asyncio.sleep(0)
        assert kept[0]() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()

"""Tests of the timeouts of the simulated loop: each behaves as the one of asyncio."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest

from tests.sim.harness.loop import SimLoop


async def expire() -> str:
    async with asyncio.timeout(1) as timeout:
        await asyncio.sleep(2)
    return f"{timeout.expired()}"


async def end_in_time() -> str:
    async with asyncio.timeout(1) as timeout:
        await asyncio.sleep(0.5)
    await asyncio.sleep(2)
    return f"{timeout.expired()}"


async def expire_at_once() -> str:
    async with asyncio.timeout(0):
        await asyncio.sleep(1)
    return "went on"


async def prolong() -> str:
    async with asyncio.timeout(1) as timeout:
        timeout.reschedule(asyncio.get_running_loop().time() + 3)
        await asyncio.sleep(2)
        timeout.reschedule(None)
        await asyncio.sleep(9)
    return f"{timeout.when()}"


async def raise_another_error() -> str:
    async with asyncio.timeout(1):
        try:
            await asyncio.sleep(2)
        except asyncio.CancelledError:
            raise KeyError("mine") from None
    return "went on"


async def expire_within() -> str:
    async with asyncio.timeout(5) as outer:
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(9)
        except TimeoutError:
            return f"inner, outer {outer.expired()}"
    return "went on"


async def cancel_from_outside() -> str:
    async def wait() -> None:
        async with asyncio.timeout(5):
            await asyncio.sleep(9)

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(1)
    task.cancel()
    await task
    return "went on"


@pytest.mark.parametrize(
    "main",
    [expire, end_in_time, expire_at_once, prolong, raise_another_error, expire_within, cancel_from_outside],
    ids=lambda main: str(main.__name__),
)
def test_timeout_ends_as_that_of_asyncio_does(main: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> str:
        try:
            return SimLoop(1).run(main())  # type: ignore[operator,no-any-return]
        except (TimeoutError, KeyError, asyncio.CancelledError) as error:
            return repr(error)

    quick = run()
    monkeypatch.setattr("tests.sim.harness.loop.quick_timeouts", nullcontext)
    assert quick == run()

"""Long polls end by their own time, or when the server closes."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import run_by
from tests.sim.rig import broker_rig as brokers
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.limits import HttpLimits


@pytest.mark.parametrize("closes", [0.0, 0.03, 0.05, 0.07])
@run_by(brokers.run)
async def test_closing_server_ends_a_long_poll_even_at_its_deadline(
    there: brokers.SimBrokerRig, *, closes: float
) -> None:
    context = HttpContext(there.broker, HttpLimits())
    ended: list[float] = []

    async def poll() -> None:
        with pytest.raises(TimeoutError):
            async with context.timeout(0.05):
                await asyncio.sleep(10)
        ended.append(there.loop.time())

    began = there.loop.time()
    async with asyncio.TaskGroup() as group:
        group.create_task(poll())
        await asyncio.sleep(0)
        there.loop.call_later(closes, context.drain)
    assert ended == [pytest.approx(began + min(closes, 0.05))]
    await context.close()

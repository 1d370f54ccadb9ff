import asyncio

import pytest

from tiered_api.http.exchange.limits import Exhausted, MemoryBudget


def test_waiting_requests_get_room_in_their_order() -> None:
    async def scenario() -> list[str]:
        budget, order = MemoryBudget(10), []

        async def taker(name: str, size: int) -> None:
            taken = await budget.acquire(size, 5)
            order.append(name)
            await asyncio.sleep(0)
            budget.release(taken)

        held = await budget.acquire(8, 5)
        async with asyncio.TaskGroup() as group:
            for name, size in (("large", 10), ("small", 1), ("other", 2)):
                group.create_task(taker(name, size))
                await asyncio.sleep(0)
            budget.release(held)
        assert budget.free == budget.size
        return order

    assert asyncio.run(scenario()) == ["large", "small", "other"]


def test_cancelled_or_timed_out_wait_frees_its_place() -> None:
    async def scenario() -> None:
        budget = MemoryBudget(10)
        held = await budget.acquire(10, 5)
        with pytest.raises(Exhausted):
            await budget.acquire(3, 0.001)
        waiting = asyncio.create_task(budget.acquire(4, 5))
        await asyncio.sleep(0)
        budget.release(held)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert budget.free == 10
        assert await budget.acquire(1000, 5) == 10

    asyncio.run(scenario())

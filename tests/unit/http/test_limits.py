import asyncio

import pytest

from tests.scenario import run_alone, run_by
from tiered.config.settings import Settings
from tiered_api.http.exchange.limits import MIB, Exhausted, HttpLimits, MemoryBudget


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


@run_by(run_alone)
async def test_cancelled_or_timed_out_wait_frees_its_place() -> None:
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


@run_by(run_alone)
async def test_memory_of_silent_bodies_leaves_room_for_small_requests_of_others() -> None:
    """Once, four connections that declared 64 MiB and sent nothing were all memory, and others waited a minute."""
    budget = MemoryBudget(256)
    held = [await budget.acquire(64, 5, "greedy") for _ in range(3)]
    waiting = asyncio.create_task(budget.acquire(64, 5, "greedy"))
    await asyncio.sleep(0)
    assert not waiting.done() and budget.free == 64
    assert [await budget.acquire(1, 0.001, "other") for _ in range(5)] == [1] * 5
    budget.release(5, "other")
    for size in held:
        budget.release(size, "greedy")
    assert await waiting == 64
    budget.release(64, "greedy")
    assert budget.free == budget.size and not budget.holdings.own("greedy")


@run_by(run_alone)
async def test_large_request_that_waits_is_not_starved_by_requests_of_others() -> None:
    budget = MemoryBudget(256)
    for _ in range(3):
        await budget.acquire(64, 5, "greedy")
    large = asyncio.create_task(budget.acquire(64, 5, "large"))
    await asyncio.sleep(0)
    more = [asyncio.create_task(budget.acquire(20, 5, f"{each}")) for each in range(3)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in (large, *more)), "they are above their share, and take turns"
    budget.release(64, "greedy")
    assert await large == 64
    assert not any(each.done() for each in more)
    budget.release(128, "greedy")
    assert [await each for each in more] == [20, 20, 20]


@run_by(run_alone)
async def test_request_that_waits_for_its_own_holder_holds_up_nobody() -> None:
    budget = MemoryBudget(256)
    await budget.acquire(190, 5, "greedy")
    own = asyncio.create_task(budget.acquire(64, 5, "greedy"))
    await asyncio.sleep(0)
    other = asyncio.create_task(budget.acquire(20, 5, "other"))
    await asyncio.sleep(0)
    assert not own.done() and not other.done()
    budget.release(30, "greedy")
    assert await other == 20 and not own.done()
    own.cancel()


@pytest.mark.parametrize(
    ("processes", "body", "memory"),
    [(1, 64, 256), (2, 64, 128), (4, 64, 64), (16, 64, 64), (16, 8, 16), (2, 512, 256)],
)
def test_memory_is_shared_out_among_processes_and_holds_a_body(processes: int, body: int, memory: int) -> None:
    limits = HttpLimits.from_settings(Settings(processes=processes, tiered_http_body_max_bytes=body * MIB))
    assert (limits.body_bytes, limits.memory_bytes) == (body * MIB, memory * MIB)

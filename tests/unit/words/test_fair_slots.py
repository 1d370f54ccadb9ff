"""Slots for expensive work: owners take turns, and the owner with most waiting work is refused first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.refusal import refuses
from tests.scenario import run_by
from tiered.errors import Code
from tiered.fair_slots import FairSlots


class Crowd:
    """Work that holds a slot until it is let go, in the order in which slots were given."""

    def __init__(self, slots: FairSlots) -> None:
        self._slots = slots
        self.began: list[str] = []
        self.done = asyncio.Event()

    def start(self, *owners: str) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._work(owner)) for owner in owners]

    async def _work(self, owner: str) -> None:
        async with self._slots.take(owner[0], owner):
            self.began.append(owner)
            await self.done.wait()


def scenario(play: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await play()

    asyncio.run(main())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@run_by(scenario)
async def test_owners_take_turns() -> None:
    crowd = Crowd(FairSlots(1, 100))
    works = crowd.start("a", "a", "a", "a", "b", "c", "b")
    await settle()
    assert crowd.began == ["a"]
    crowd.done.set()
    await asyncio.gather(*works)
    assert "".join(crowd.began) == "aabcaba"


@run_by(scenario)
async def test_connections_of_an_owner_take_turns_within_the_turns_of_the_owner() -> None:
    crowd = Crowd(FairSlots(1, 100))
    works = crowd.start("a1", "a1", "a1", "a1", "a2", "b1", "a3", "b1")
    await settle()
    crowd.done.set()
    await asyncio.gather(*works)
    assert crowd.began == ["a1", "a1", "b1", "a2", "b1", "a3", "a1", "a1"]


@run_by(scenario)
async def test_work_at_once_is_bounded_by_the_slots() -> None:
    crowd = Crowd(FairSlots(3, 100))
    works = crowd.start(*"abcdef")
    await settle()
    assert crowd.began == ["a", "b", "c"]
    works[0].cancel()
    await settle()
    assert crowd.began == ["a", "b", "c", "d"]
    crowd.done.set()
    await asyncio.gather(*works, return_exceptions=True)


@run_by(scenario)
async def test_cancelled_work_frees_its_place() -> None:
    crowd = Crowd(FairSlots(1, 2))
    works = crowd.start("a", "b", "c")
    await settle()
    works[1].cancel()
    await settle()
    works += crowd.start("d")
    await settle()
    works[0].cancel()
    works[2].cancel()  # in the turn in which it gets the slot
    await settle()
    assert crowd.began == ["a", "d"]
    crowd.done.set()
    await asyncio.gather(*works, return_exceptions=True)
    crowd.began.clear()
    await asyncio.gather(*crowd.start("e", "f"))
    assert crowd.began == ["e", "f"], "the slot is free again"


@run_by(scenario)
async def test_owner_with_most_waiting_work_is_refused_first() -> None:
    crowd = Crowd(FairSlots(1, 3))
    works = crowd.start("a", "a", "a", "a", "b", "a")
    await settle()
    refused = [work for work in works if work.done()]
    assert refused == [works[3], works[5]]
    for work in refused:
        with refuses(Code.REQUEST_TIMED_OUT):
            work.result()
    crowd.done.set()
    await asyncio.gather(*works, return_exceptions=True)
    assert crowd.began == ["a", "a", "b", "a"]


@run_by(scenario)
async def test_new_part_of_the_busiest_owner_displaces_work_of_its_busiest_part() -> None:
    crowd = Crowd(FairSlots(1, 3))
    works = crowd.start("b1", "a1", "a1", "a1", "a2")
    await settle()
    assert [work for work in works if work.done()] == [works[3]]
    crowd.done.set()
    await asyncio.gather(*works, return_exceptions=True)
    assert crowd.began == ["b1", "a1", "a2", "a1"]


@run_by(scenario)
async def test_owner_with_very_many_parts_leaves_room_for_another_owner() -> None:
    crowd = Crowd(FairSlots(1, 4))
    works = crowd.start("a0", "a1", "a2", "a3", "a4", "b1")
    await settle()
    assert [work for work in works if work.done()] == [works[4]]
    crowd.done.set()
    await asyncio.gather(*works, return_exceptions=True)
    assert crowd.began == ["a0", "a1", "b1", "a2", "a3"]


@run_by(scenario)
async def test_free_slot_stays_free_for_owners_that_may_run() -> None:
    slots = FairSlots(3, 100, lambda owner: slots.by_owner.get(owner, 0) < 2)
    crowd = Crowd(slots)
    works = crowd.start("a", "a", "a", "b", "b")
    await settle()
    assert crowd.began == ["a", "a", "b"] and slots.taken == 3
    works[3].cancel()
    await settle()
    assert crowd.began == ["a", "a", "b", "b"], "a has two already"
    works[0].cancel()
    await settle()
    assert crowd.began == ["a", "a", "b", "b", "a"]
    crowd.done.set()
    await asyncio.gather(*works, return_exceptions=True)
    assert slots.by_owner == {} and slots.taken == slots.waiting == 0

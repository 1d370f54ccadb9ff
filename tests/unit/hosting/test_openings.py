"""The order in which leaderships with records in chains are opened, and what ends the wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.scenario import run_by
from tiered.errors import Unavailable
from tiered.hosting.openings import Opening, Openings
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.delta import Lead
from tiered.metadata.image import Image

TPS = [TopicPartition("t", each) for each in range(4)]
OLD, NEW = Unavailable("old"), Unavailable("new")
HISTORY = NEW
LEADS = [Opening(Lead(each, TopicId("id"), 1, is_new=False), Image()) for each in TPS]


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def order(openings: Openings) -> list[TopicPartition]:
    """Opens all that wait. Returns them in their order."""
    opened: list[TopicPartition] = []
    while (found := openings.begin()) is not None:
        opened.append(found[0].tp)
        openings.end(found[0].tp)
    return opened


@run_by(run)
async def test_partitions_that_somebody_asked_for_come_first() -> None:
    openings = Openings()
    openings.add(LEADS)
    assert openings.prefer(TPS[2])  # before its chains are read
    leads = await openings.take_unread()
    openings.add_histories(leads, {each.tp: HISTORY for each in leads})
    assert openings.prefer(TPS[3])  # and after
    assert order(openings) == [TPS[3], TPS[2], TPS[0], TPS[1]]
    assert not openings.prefer(TPS[3])  # it is open


@run_by(run)
async def test_partition_that_waits_is_not_added_again() -> None:
    openings = Openings()
    openings.add(LEADS[:1])
    openings.add_histories(await openings.take_unread(), {TPS[0]: HISTORY})
    openings.add(LEADS[:1])
    assert len(openings) == 1 and list(openings) == TPS[:1]
    assert openings.begin() == (LEADS[0], HISTORY) and openings.begin() is None
    openings.add(LEADS[:1])
    assert len(openings) == 1 and openings.count_due(2) == 0


@run_by(run)
async def test_leadership_that_ended_while_its_chains_were_read_is_left_out() -> None:
    openings = Openings()
    openings.add(LEADS)
    leads = await openings.take_unread()
    await openings.leave(TPS[:1])
    later = Opening(Lead(TPS[0], TopicId("id"), 2, is_new=False), Image())
    openings.add([later])
    others = await openings.take_unread()
    openings.add_histories(leads, {each.tp: OLD for each in leads})
    assert order(openings) == TPS[1:]  # its later leadership has not read the chains yet
    openings.add_histories(others, {TPS[0]: NEW})
    assert openings.begin() == (later, NEW)


@run_by(run)
async def test_later_image_waits_for_what_is_being_opened() -> None:
    openings = Openings()
    openings.add(LEADS)
    leads = await openings.take_unread()
    openings.add_histories(leads, {})
    assert openings.begin() == (LEADS[0], None) and openings.count_due(8) == 3 and openings.count_due(2) == 1
    leaving = asyncio.create_task(openings.leave(TPS[:2]))
    ended = asyncio.create_task(openings.wait_ended(TPS[:3]))
    await asyncio.sleep(0)
    assert not leaving.done() and list(openings) == [TPS[0], TPS[2], TPS[3]]
    openings.end(TPS[0])
    await leaving
    assert not ended.done()
    openings.clear()
    await ended
    assert list(openings) == []


@run_by(run)
async def test_wish_for_a_partition_outlives_an_earlier_read_of_chains() -> None:
    """A leadership ended and began anew while chains were read: the wish is for the later one."""
    openings = Openings()
    openings.add(LEADS)
    earlier = await openings.take_unread()
    await openings.leave(TPS[3:])
    openings.add([later := Opening(Lead(TPS[3], TopicId("id"), 2, is_new=False), Image())])
    others = await openings.take_unread()
    assert openings.prefer(TPS[3])
    openings.add_histories(earlier, {})
    openings.add_histories(others, {})
    assert openings.begin() == (later, None)

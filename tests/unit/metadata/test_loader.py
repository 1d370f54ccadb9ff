"""Tests of the loader: entries that are received, and changes that a broker applies."""

from __future__ import annotations

import asyncio

from tests.scenario import run_alone, run_by
from tiered.ids import TopicId
from tiered.metadata.changes import TopicCreated, TopicDeleted
from tiered.metadata.image import Image
from tiered.metadata.loader import MetadataLoader


@run_by(run_alone)
async def test_changes_during_a_start_are_applied() -> None:
    """A replica that moves to another broker during the start leaves a log that must be dropped."""
    acted: list[tuple[Image, Image]] = []

    async def act(old: Image, new: Image) -> None:
        acted.append((old, new))

    committed = MetadataLoader(act, lambda changes, old, new: None, lambda: None)
    topic_id = TopicId("a")
    opened = Image().apply((TopicCreated("t", topic_id, ((1,),), {}, 0),), 0)
    committed.load_image(opened)
    committed.append_own((TopicDeleted(topic_id, 1),), 1, b"")
    committed.start_from(opened)
    assert committed.applied_slot == 0
    task = asyncio.create_task(committed.run())
    await committed.wait_until_applied(1, 5)
    assert acted == [(opened, committed.image)] and not committed.image.topics
    task.cancel()


@run_by(run_alone)
async def test_broker_reports_the_slot_that_it_has_applied() -> None:
    """M5: the applied slot unfences a broker and makes a topic ready."""
    going, may_end = asyncio.Event(), asyncio.Event()

    async def act(old: Image, new: Image) -> None:
        going.set()
        await may_end.wait()

    committed = MetadataLoader(act, lambda changes, old, new: None, lambda: None)
    committed.load_image(Image().apply((TopicCreated("t", TopicId("a"), ((1,),), {}, 0),), 0))
    task = asyncio.create_task(committed.run())
    await going.wait()
    assert committed.image.slot == 0 and committed.applied_slot == -1
    may_end.set()
    await committed.wait_until_applied(0, 5)
    assert committed.applied_slot == 0
    task.cancel()

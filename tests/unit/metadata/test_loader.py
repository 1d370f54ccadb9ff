"""What is heard of the metadata log, and what a broker acts on."""

from __future__ import annotations

import asyncio

from tiered.ids import TopicId
from tiered.metadata.changes import TopicCreated, TopicDeleted
from tiered.metadata.image import Image
from tiered.metadata.loader import MetadataLoader


def test_what_changed_while_a_start_opened_its_logs_is_acted_on() -> None:
    """A replica that went elsewhere meanwhile leaves a log here that has to go."""

    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_broker_says_that_it_has_done_what_it_has_done() -> None:
    """Rule M5: it is fenced no more, and a topic is ready, by that word."""

    async def scenario() -> None:
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

    asyncio.run(scenario())

"""Timed deletion in the bucket: expired segments of this broker's partitions, and as controller deleted topics and the
uploads of killed processes.

An object goes only after the delay that a setting names. Objects that no manifest names are swept by `tiering`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tiered.cold.collector import Collector
from tiered.controller.channel import LocalController, RequestChannel
from tiered.controller.member_view import MemberView
from tiered.controller.requests import ForgetTopic
from tiered.errors import Refused, Unavailable
from tiered.ids import TopicId
from tiered.metadata.parts.topics import DeletedTopic
from tiered.ports import Clock, ObjectStore
from tiered.upkeep.tiering import UPLOAD_IN_FLIGHT_MS

log = logging.getLogger(__name__)

COLLECT_SECONDS = 30.0
"""Pause between two looks for objects whose delay is over."""
UPLOADS_SECONDS = 3600.0
"""Pause between two looks for uploads that nobody completes, which are at least a day old."""


class ObjectDeletion:
    """The loops of one broker."""

    def __init__(
        self,
        view: MemberView,
        channel: RequestChannel,
        local_controller: LocalController,
        collector: Collector,
        store: ObjectStore,
        clock: Clock,
    ) -> None:
        self._view = view
        self._channel = channel
        self._local_controller = local_controller
        self._collector = collector
        self._store = store
        self._clock = clock
        self._empty_since_ms: dict[TopicId, int] = {}
        """By deleted topic: since when the bucket has no object of it."""

    async def run(self) -> None:
        """Runs all loops until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_every(COLLECT_SECONDS, self.delete_expired_objects))
            group.create_task(self._run_every(COLLECT_SECONDS, self.delete_topic_objects))
            group.create_task(self._run_every(UPLOADS_SECONDS, self.end_old_uploads))

    async def _run_every(self, seconds: float, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except (Unavailable, Refused) as error:
                log.warning("deletion of objects failed, goes on at its next turn step=%s why=%s", step.__name__, error)
            await self._clock.sleep(seconds)

    async def delete_expired_objects(self) -> None:
        """Deletes expired objects after their delay."""
        await self._collector.delete_expired()

    async def end_old_uploads(self) -> None:
        """Ends uploads that killed processes left under the prefix of the cluster, if this broker is the controller."""
        if self._local_controller.is_controller:
            await self._store.end_old_uploads("")

    async def delete_topic_objects(self) -> None:
        """Deletes the objects of deleted topics after `tiered.topic.delete.delay.ms`, if this broker is the controller.

        A topic whose objects the bucket keeps does not hold up the others.
        """
        now_ms = self._clock.wall_ms()
        if not self._local_controller.is_controller:
            self._empty_since_ms.clear()
            return
        for topic in list(self._view.image.deleted_topics.values()):
            late_ms = now_ms - topic.deleted_ms - self._view.settings.tiered_topic_delete_delay_ms
            if late_ms >= 0:
                try:
                    await self._delete_topic_objects(topic)
                except (Unavailable, Refused) as error:
                    log.warning("objects of a deleted topic stay for now topic=%s why=%s", topic.name, error)

    async def _delete_topic_objects(self, topic: DeletedTopic) -> None:
        """Deletes the objects of one topic, and later forgets the topic.

        The topic is forgotten once the bucket had no object of it for so long that no upload can still land. The
        monotonic clock measures this time.
        """
        now_ms = self._clock.mono_ns() // 1_000_000
        count = await self._collector.delete_topic(topic.topic_id)
        if count:
            log.info(
                "objects of a deleted topic are deleted topic=%s topic_id=%s objects=%d",
                topic.name, topic.topic_id, count,
            )  # fmt: skip
            self._empty_since_ms.pop(topic.topic_id, None)
        elif now_ms - self._empty_since_ms.setdefault(topic.topic_id, now_ms) >= UPLOAD_IN_FLIGHT_MS:
            await self._channel.submit(ForgetTopic(topic.topic_id))
            self._empty_since_ms.pop(topic.topic_id, None)

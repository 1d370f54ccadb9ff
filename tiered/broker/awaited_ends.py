"""Tells the controller how far logs here go that an election waits for (rule R4), of replicas that were not in sync.

Says what stands on the disk once this broker has acted on the image in which nobody leads. From then on the log stays
as it is until somebody does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from tiered.controller.partition_transitions import awaited_replicas
from tiered.controller.requests import AwaitedEnd, ReportEnds
from tiered.errors import Refused, Unavailable
from tiered.ids import TopicId, TopicPartition
from tiered.log_limiter import LogLimiter
from tiered.metadata.image import Image
from tiered.ports import Clock

log = logging.getLogger(__name__)

ENDS_MAX = 1_000
"""In one request."""
ASK_SECONDS = 10.0
RETRY_SECONDS = 1.0


class AwaitedEnds:
    """Of one broker. `ask` is `Broker.submit`, `end_of` the epoch of the last record of a log and where it ends."""

    def __init__(
        self,
        ask: Callable[[Any, float], Awaitable[Any]],
        end_of: Callable[[TopicPartition, TopicId], tuple[int, int]],
        node_id: int,
        incarnation: str,
        clock: Clock,
    ) -> None:
        self._ask = ask
        self._end_of = end_of
        self._node_id = node_id
        self._incarnation = incarnation
        self._clock = clock
        self._log_limiter = LogLimiter(clock)
        self._image = Image()
        self._reported_image = Image()
        self._wake = asyncio.Event()

    def on_image(self, image: Image) -> None:
        """This broker has acted on it."""
        self._image = image
        self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            image = self._image
            ends = self.find_due_ends(self._reported_image, image)
            try:
                for first in range(0, len(ends), ENDS_MAX):
                    asked = ReportEnds(self._node_id, self._incarnation, tuple(ends[first : first + ENDS_MAX]))
                    await self._ask(asked, ASK_SECONDS)
                self._reported_image = image
            except (Refused, Unavailable) as error:
                unsaid = self._log_limiter.admit()
                if unsaid is not None:
                    log.warning("elections wait for logs here ends=%d unsaid=%d why=%s", len(ends), unsaid, error)
                await self._clock.sleep(RETRY_SECONDS)
                self._wake.set()

    def find_due_ends(self, reported_image: Image, image: Image) -> list[AwaitedEnd]:
        """What is to be told as of `image`, where all that was to be told as of `before` is."""
        own, live = image.brokers.get(self._node_id), image.live_ids()
        if own is None or own.incarnation != self._incarnation or not own.live:
            return []
        same = live == reported_image.live_ids()
        return [
            AwaitedEnd(topic.topic_id, p, each.leader_epoch, *self._end_of(TopicPartition(topic.name, p), topic_id))
            for topic_id, topic in image.topics_by_id.items()
            if not (same and reported_image.topics_by_id.get(topic_id) is topic)
            for p, each in enumerate(topic.partitions)
            if self._node_id in awaited_replicas(each, live)
        ]

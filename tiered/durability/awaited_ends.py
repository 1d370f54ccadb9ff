"""Reports of the log end offsets that leader elections wait for (R4), for replicas that were not in sync.

A report follows the application of the image in which the partition has no leader. The log does not change from then on
until the partition has a leader again.
"""

from __future__ import annotations

import asyncio
import logging

from tiered.controller.channel import RequestChannel
from tiered.controller.member_view import MemberView
from tiered.controller.partition_transitions import awaited_replicas
from tiered.controller.requests import AwaitedEnd, ReportEnds
from tiered.durability.log_store import LogStore
from tiered.errors import Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.log_limiter import LogLimiter
from tiered.metadata.image import Image
from tiered.ports import Clock

log = logging.getLogger(__name__)

ENDS_MAX = 1_000
"""Most ends in one request."""
SUBMIT_SECONDS = 10.0
RETRY_SECONDS = 1.0
"""Pause before ends are reported again that were refused or got no reply."""


class AwaitedEnds:
    """The reports of one broker. `log_store` has the ends of its logs."""

    def __init__(self, view: MemberView, channel: RequestChannel, log_store: LogStore, clock: Clock) -> None:
        self._view = view
        self._channel = channel
        self._log_store = log_store
        self._clock = clock
        self._log_limiter = LogLimiter(clock)
        self._image = Image()
        self._reported_image = Image()
        self._wake = asyncio.Event()

    def on_image(self, image: Image) -> None:
        """Reports the ends that elections of `image` wait for; this broker has applied it."""
        self._image = image
        self._wake.set()

    async def run(self) -> None:
        """Sends reports until it is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            image = self._image
            ends = self.find_due_ends(self._reported_image, image)
            try:
                for first in range(0, len(ends), ENDS_MAX):
                    some = tuple(ends[first : first + ENDS_MAX])
                    request = ReportEnds(self._view.node_id, self._view.incarnation, some)
                    await self._channel.submit(request, SUBMIT_SECONDS)
                self._reported_image = image
            except (Refused, Unavailable) as error:
                suppressed = self._log_limiter.admit()
                if suppressed is not None:
                    log.warning(
                        "log ends that elections wait for are reported later ends=%d suppressed=%d why=%s",
                        len(ends), suppressed, error,
                    )  # fmt: skip
                await self._clock.sleep(RETRY_SECONDS)
                self._wake.set()

    def find_due_ends(self, reported_image: Image, image: Image) -> list[AwaitedEnd]:
        """Returns the ends to report for `image`, if all ends of `reported_image` are reported."""
        node_id = self._view.node_id
        own, live = image.brokers.get(node_id), image.live_ids()
        if own is None or own.incarnation != self._view.incarnation or not own.live:
            return []
        same = live == reported_image.live_ids()
        return [
            AwaitedEnd(
                topic.topic_id, p, each.leader_epoch, *self._log_store.end_of(TopicPartition(topic.name, p), topic_id)
            )
            for topic_id, topic in image.topics_by_id.items()
            if not (same and reported_image.topics_by_id.get(topic_id) is topic)
            for p, each in enumerate(topic.partitions)
            if node_id in awaited_replicas(each, live)
        ]

"""A partition as every broker has it: the replica that is led here, or the same from wherever it is led."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused, Unavailable
from tiered.hot.validation import LogAppendInfo
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.effective_config import topic_config
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.read_result import ReadResult
from tiered_api.http.partitions.remote_brokers import COLD_MS, Leader, Nowhere
from tiered_api.http.server.context import Site
from tiered_api.kafka.client.leader_routing import EARLIEST, LATEST, STALE_LEADER_CODES

SLICE_MS = 5_000
"""A leader that has to wait answers as often as this: one that is frozen is noticed."""
PAUSE_SECONDS = 0.05
"""Between two looks for who leads."""

T = TypeVar("T")


class Away:
    """A partition that another broker leads, or that has no leader for the moment. It follows its leader, also to here;
    `patience` says for how many seconds one is looked for, where that is not what the limits say."""

    def __init__(self, site: Site, at: TopicPartition, topic_id: TopicId, patience: float | None = None) -> None:
        self.at = at
        self.topic, self.partition = at
        self.topic_id = topic_id
        self._site = site
        self._patience = site.limits.leader_seconds if patience is None else patience

    @property
    def config(self) -> TopicConfig:
        """The settings in force, as far as this broker has heard."""
        elsewhere, node = self._site.elsewhere, self._site.node
        return topic_config(elsewhere.topic(self.at, self.topic_id), node.settings.topic_defaults())

    def leader(self) -> Leader:
        """`Nowhere` when there is none, or it is this broker."""
        return self._site.elsewhere.leader(self.at, self.topic_id)

    def here(self) -> LeaderReplica | None:
        """The replica, when it has come to be led here."""
        replica = self._site.node.partitions.get(self.at)
        return replica if replica is not None and replica.topic_id == self.topic_id and not replica.is_stopped else None

    async def append(self, data: bytearray, *, timeout_ms: int) -> LogAppendInfo:
        """One batch; as `Replica.append`. What may have been written is not sent again."""
        deadline = self._deadline(timeout_ms / 1000)
        while True:
            here = self.here()
            if here is not None:
                return await here.append(data, timeout_ms=timeout_ms)
            try:
                leader = self.leader()
                return await self._site.elsewhere.produce(leader, self.at, self.topic_id, data, timeout_ms)
            except Nowhere as no:
                await self._pause(no, deadline)

    async def read(self, offset: int, max_bytes: int) -> ReadResult:
        """As `Replica.read`, without a wait."""
        fetched = await self._fetch(offset, max_bytes, 0)
        if fetched.size or offset >= fetched.high_watermark:
            return fetched
        return await self._fetch(offset, max_bytes, COLD_MS)  # the bucket takes its time

    async def until_more(self, end: int, wait_ms: int) -> None:
        """Returns when there are records at or behind `end`, or the time is over. It gives none."""
        deadline = self._deadline(wait_ms / 1000)
        while (left := (deadline - self._site.clock.mono_ns()) // 1_000_000) > 0:
            fetched = await self._fetch(end, 1, min(left, SLICE_MS))
            if fetched.size or fetched.high_watermark > end:
                return

    async def _fetch(self, offset: int, max_bytes: int, wait_ms: int) -> ReadResult:
        return await self._asked(
            lambda here: here.read(offset, max_bytes, max_wait_ms=wait_ms),
            lambda leader: self._site.elsewhere.fetch(leader, self.at, self.topic_id, offset, max_bytes, wait_ms),
        )

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """As `Replica.offset_for_timestamp`, but it tells the offset only."""

        async def there(leader: Leader) -> tuple[int, int, int] | None:
            offset = await self._offset(leader, max(timestamp, 0))
            return (offset, -1, -1) if offset >= 0 else None

        return await self._asked(lambda here: here.offset_for_timestamp(timestamp), there)

    async def bounds(self) -> tuple[int, int]:
        """Log start and high watermark."""

        async def here(replica: LeaderReplica) -> tuple[int, int]:
            return replica.log_start_offset, replica.high_watermark

        async def there(leader: Leader) -> tuple[int, int]:
            start, end = await asyncio.gather(self._offset(leader, EARLIEST), self._offset(leader, LATEST))
            return start, end

        return await self._asked(here, there)

    async def _offset(self, leader: Leader, timestamp: int) -> int:
        found = (await self._site.elsewhere.offsets(leader, {self.at: (leader.epoch, timestamp)})).get(self.at)
        if not isinstance(found, int):
            raise found or Nowhere(Code.LEADER_NOT_AVAILABLE, f"broker {leader.node_id} says nothing of {self.at}")
        return found

    # -- whoever leads ------------------------------------------------------------------------------------------------

    async def _asked(self, here: Callable[[LeaderReplica], Awaitable[T]], there: Callable[[Leader], Awaitable[T]]) -> T:
        """An answer to what may be asked again, of whoever leads."""
        deadline = self._deadline(self._patience)
        while True:
            try:
                replica = self.here()
                return await (here(replica) if replica is not None else there(self.leader()))
            except Refused as refused:
                if refused.code not in STALE_LEADER_CODES or (replica is None and not isinstance(refused, Nowhere)):
                    raise
                no = refused
            except Unavailable as fault:
                if replica is not None:
                    raise
                no = Nowhere(Code.LEADER_NOT_AVAILABLE, f"the broker that leads {self.at} does not answer: {fault}")
            await self._pause(no, deadline)

    def _deadline(self, seconds: float) -> int:
        return self._site.clock.mono_ns() + int(seconds * 1e9)

    async def _pause(self, no: Refused, deadline: int) -> None:
        """Raises `no` at the end."""
        left = (deadline - self._site.clock.mono_ns()) / 1e9
        if left <= 0 or self._site.closing:
            raise no
        await self._site.clock.sleep(min(PAUSE_SECONDS, left))


Source = LeaderReplica | Away
"""Whatever can be read from and written to."""


def source_of(site: Site, at: TopicPartition, topic_id: TopicId, patience: float | None = None) -> Source:
    """A partition that is there. `Refused` when its topic is not, whichever has the name by now, and when it is this
    broker's to lead and cannot be opened."""
    site.elsewhere.topic(at, topic_id)
    try:
        return site.node.replica(*at)
    except Refused as refused:
        if refused.code is not Code.NOT_LEADER_OR_FOLLOWER:
            raise
    return Away(site, at, topic_id, patience)


def followed(site: Site, source: Source) -> Source:
    """The same partition as it is led now: here, or elsewhere."""
    if isinstance(source, Away):
        return source.here() or source
    return Away(site, source.at, source.topic_id) if source.is_stopped else source


async def bounds(source: Source) -> tuple[int, int]:
    """The first offset that can be read, and the one after the last."""
    if isinstance(source, Away):
        return await source.bounds()
    return source.log_start_offset, source.high_watermark

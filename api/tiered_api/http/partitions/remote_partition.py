"""A partition that any broker can serve: by the local leader replica, or by the remote leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused, Unavailable
from tiered.hot.time_lookup import TimeLookups
from tiered.hot.validation import LogAppendInfo
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.effective_config import topic_config
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.read_result import ReadResult
from tiered.security.principal import Caller
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.remote_brokers import COLD_READ_MS, Leader, LeaderNotFound, OffsetQuery
from tiered_api.kafka.client.leader_routing import EARLIEST, LATEST, STALE_LEADER_CODES

POLL_SLICE_MS = 5_000
"""Longest wait of one request to a leader: a leader that hangs is noticed after it."""
PAUSE_SECONDS = 0.05
"""Pause between two look-ups of the leader."""

T = TypeVar("T")


class RemotePartition:
    """A partition that another broker leads, or that has no leader at present. It follows changes of the leader, also
    to this broker. `lookup_seconds` says how long a leader is looked for; None means the limit of the server. Another
    broker judges the requests as those of `caller`; without one, of this broker. `recheck` is called after each wait
    for a leader: it raises an error if the caller lost its login or its rights."""

    def __init__(
        self,
        context: HttpContext,
        tp: TopicPartition,
        topic_id: TopicId,
        lookup_seconds: float | None = None,
        caller: Caller | None = None,
        recheck: Callable[[], None] = lambda: None,
    ) -> None:
        self.tp = tp
        self.topic, self.partition = tp
        self.topic_id = topic_id
        self.caller = caller
        self._context = context
        self._recheck = recheck
        self._lookup_seconds = context.limits.leader_lookup_seconds if lookup_seconds is None else lookup_seconds

    @property
    def config(self) -> TopicConfig:
        """The settings in force, by this broker's metadata."""
        remote_brokers, broker = self._context.remote_brokers, self._context.broker
        return topic_config(remote_brokers.topic(self.tp, self.topic_id), broker.settings.topic_defaults())

    def leader(self) -> Leader:
        """Returns the leader. Raises `LeaderNotFound` if there is none, or if it is this broker."""
        return self._context.remote_brokers.leader(self.tp, self.topic_id)

    def local_replica(self) -> LeaderReplica | None:
        """Returns the local leader replica; None if this broker does not lead the partition."""
        replica = self._context.broker.hosted_replicas.find_leader(self.tp)
        return replica if replica is not None and replica.topic_id == self.topic_id and not replica.is_stopped else None

    async def append(self, data: bytearray, *, timeout_ms: int, holder: str = "") -> LogAppendInfo:
        """Appends one batch, as `LeaderReplica.append` does. A batch that may have been written is not sent again. The
        leader elsewhere knows the holder by the caller."""
        deadline = self._deadline(timeout_ms / 1000)
        while True:
            here = self.local_replica()
            if here is not None:
                return await here.append(data, timeout_ms=timeout_ms, holder=holder)
            try:
                leader = self.leader()
                return await self._context.remote_brokers.produce(
                    leader, self.tp, self.topic_id, data, timeout_ms, self.caller
                )
            except LeaderNotFound as no:
                await self._pause(no, deadline)

    async def read(self, offset: int, max_bytes: int, read_committed: bool = False) -> ReadResult:
        """Reads as `LeaderReads.read` does, without a wait."""
        fetched = await self._fetch(offset, max_bytes, 0, read_committed)
        if fetched.size or offset >= fetched.end_offset(read_committed):
            return fetched
        # A read from the bucket takes longer.
        return await self._fetch(offset, max_bytes, COLD_READ_MS, read_committed)

    async def wait_for_more(self, end: int, wait_ms: int, read_committed: bool = False) -> None:
        """Returns once there are records at or behind `end`, or the time is over. Returns no records."""
        deadline = self._deadline(wait_ms / 1000)
        while (left := (deadline - self._context.clock.mono_ns()) // 1_000_000) > 0:
            fetched = await self._fetch(end, 1, min(left, POLL_SLICE_MS), read_committed)
            if fetched.size or fetched.end_offset(read_committed) > end:
                return

    async def _fetch(self, offset: int, max_bytes: int, wait_ms: int, read_committed: bool) -> ReadResult:
        return await self._call_leader(
            lambda here: here.reads.read(offset, max_bytes, max_wait_ms=wait_ms, read_committed=read_committed),
            lambda leader: self._context.remote_brokers.fetch(
                leader, self.tp, self.topic_id, offset, max_bytes, wait_ms, read_committed, self.caller
            ),
        )

    async def offset_for_timestamp(
        self, timestamp: int, lookups: TimeLookups | None = None
    ) -> tuple[int, int, int] | None:
        """Returns the same as `LeaderReads.offset_for_timestamp`, but with the offset only.

        No request can name a time before 1970: such a time means the log start, so that no record is skipped.
        """

        async def there(leader: Leader) -> tuple[int, int, int] | None:
            offset = await self._list_offset(leader, timestamp if timestamp >= 0 else EARLIEST)
            return (offset, -1, -1) if offset >= 0 else None

        return await self._call_leader(lambda here: here.reads.offset_for_timestamp(timestamp, lookups), there)

    async def fetch_bounds(self, read_committed: bool = False) -> tuple[int, int]:
        """Returns log start offset, and high watermark or last stable offset."""

        async def here(replica: LeaderReplica) -> tuple[int, int]:
            return _local_bounds(replica, read_committed)

        async def there(leader: Leader) -> tuple[int, int]:
            start, end = await asyncio.gather(
                self._list_offset(leader, EARLIEST), self._list_offset(leader, LATEST, read_committed)
            )
            return start, end

        return await self._call_leader(here, there)

    async def _list_offset(self, leader: Leader, timestamp: int, read_committed: bool = False) -> int:
        query = OffsetQuery(self.topic_id, leader.epoch, timestamp)
        remote_brokers = self._context.remote_brokers
        found = (await remote_brokers.list_offsets(leader, {self.tp: query}, read_committed, self.caller)).get(self.tp)
        if not isinstance(found, int):
            raise found or LeaderNotFound(
                Code.LEADER_NOT_AVAILABLE, f"broker {leader.node_id} says nothing of {self.tp}"
            )
        return found

    # -- remote leader ------------------------------------------------------------------------------------------------

    async def _call_leader(
        self, on_local: Callable[[LeaderReplica], Awaitable[T]], on_remote: Callable[[Leader], Awaitable[T]]
    ) -> T:
        """Returns the result of a request to the leader. The request must be safe to repeat: it is repeated until a
        leader replies."""
        deadline = self._deadline(self._lookup_seconds)
        while True:
            try:
                replica = self.local_replica()
                return await (on_local(replica) if replica is not None else on_remote(self.leader()))
            except Refused as refused:
                if refused.code not in STALE_LEADER_CODES or (
                    replica is None and not isinstance(refused, LeaderNotFound)
                ):
                    raise
                refusal = refused
            except Unavailable as fault:
                if replica is not None:
                    raise
                refusal = LeaderNotFound(
                    Code.LEADER_NOT_AVAILABLE, f"the broker that leads {self.tp} does not reply: {fault}"
                )
            await self._pause(refusal, deadline)

    def _deadline(self, seconds: float) -> int:
        return self._context.clock.mono_ns() + int(seconds * 1e9)

    async def _pause(self, refusal: Refused, deadline: int) -> None:
        """Waits before the next try. Raises `refusal` if no time is left, or the error of `recheck`."""
        left = (deadline - self._context.clock.mono_ns()) / 1e9
        if left <= 0 or self._context.closing:
            raise refusal
        await self._context.clock.sleep(min(PAUSE_SECONDS, left))
        self._recheck()


AnyPartition = LeaderReplica | RemotePartition
"""A partition that can be read and written, led here or elsewhere."""


def open_partition(
    context: HttpContext,
    tp: TopicPartition,
    topic_id: TopicId,
    lookup_seconds: float | None = None,
    caller: Caller | None = None,
    recheck: Callable[[], None] = lambda: None,
) -> AnyPartition:
    """Returns a partition that exists. Raises `Refused` if its topic was deleted, also if another topic has its name by
    now, and if this broker leads the partition and cannot open it."""
    context.remote_brokers.topic(tp, topic_id)
    try:
        return context.broker.leader_replica(*tp)
    except Refused as refused:
        if refused.code is not Code.NOT_LEADER_OR_FOLLOWER:
            raise
    return RemotePartition(context, tp, topic_id, lookup_seconds, caller, recheck)


def resolve_leader(context: HttpContext, source: AnyPartition, caller: Caller | None = None) -> AnyPartition:
    """Returns the same partition at its current leader, here or elsewhere."""
    if isinstance(source, RemotePartition):
        return source.local_replica() or source
    return RemotePartition(context, source.tp, source.topic_id, caller=caller) if source.is_stopped else source


async def fetch_bounds(source: AnyPartition, read_committed: bool = False) -> tuple[int, int]:
    """Returns the first offset that can be read, and the one after the last."""
    if isinstance(source, RemotePartition):
        return await source.fetch_bounds(read_committed)
    return _local_bounds(source, read_committed)


def _local_bounds(replica: LeaderReplica, read_committed: bool) -> tuple[int, int]:
    return replica.log_start_offset, replica.last_stable_offset if read_committed else replica.high_watermark


async def offset_for_timestamp(
    source: AnyPartition, timestamp: int, lookups: TimeLookups
) -> tuple[int, int, int] | None:
    """Returns the offset of the first record at or after `timestamp` (ms), as `LeaderReads.offset_for_timestamp`. A
    remote partition fills in the offset only. The look-ups of one request share `lookups`."""
    if isinstance(source, RemotePartition):
        return await source.offset_for_timestamp(timestamp, lookups)
    return await source.reads.offset_for_timestamp(timestamp, lookups)

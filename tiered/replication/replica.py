"""One partition on this broker: its hot log, what is cold of it, and the callers that wait for it.

Binds the rules of `partition.py` to a log and a cold reader. Reads go to the hot log where it reaches, to the bucket
below; a reader cannot tell which. Nothing here decides what is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from tiered.cold.manifest import Manifest
from tiered.config import TopicConfig
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.hot.disk_log import Appended, DiskLog
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.ports import Clock, FileSlice
from tiered.replication.leading import Begun
from tiered.replication.partition import Partition
from tiered.replication.storage import ColdTier, DiskState
from tiered.replication.waiting import Waiting

Data = bytes | FileSlice
ALL = -1
"""acks: every in-sync replica."""


class Fetched(NamedTuple):
    """Whole batches from the one that holds the offset asked for, or none. A `FileSlice` is sent uncopied."""

    data: Data
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int

    @property
    def size(self) -> int:
        """Bytes of `data`."""
        return self.data.length if isinstance(self.data, FileSlice) else len(self.data)


class Replica:
    """A partition that this broker leads. Only this leader changes its manifest."""

    def __init__(
        self,
        at: TopicPartition,
        topic_id: TopicId,
        log: DiskLog,
        partition: Partition,
        *,
        cold: ColdTier,
        begun: Begun,
        clock: Clock,
        disk: DiskState,
        segment_closed: Callable[[Replica], None],
    ) -> None:
        self.at = at
        self.topic, self.partition = at
        self.topic_id = topic_id
        self.pid = self.id_of(at, topic_id)
        self.log = log
        self.cold = cold
        self._manifest: Manifest | None = begun.manifest
        self.restarted = begun.restart is not None
        self.epoch_start = log.end_offset
        self.upload_problem = ""
        self.possible_loss: dict[str, int] | None = None
        self._state = partition
        self._clock = clock
        self._disk = disk
        self._segment_closed = segment_closed
        self._committed: Waiting[asyncio.Future[None]] = Waiting()
        self._gone: Refused | None = None
        self._segments_seen = log.segment_count
        self._advance(log.flushed_offset if self.config.flush == "ack" else log.end_offset)

    @staticmethod
    def id_of(at: TopicPartition, topic_id: TopicId) -> PartitionId:
        """The name under which the bucket knows it."""
        return PartitionId(topic_id, at.partition)

    @property
    def manifest(self) -> Manifest | None:
        """What is cold, as of the newest change; None when nothing ever was."""
        return self._manifest

    @manifest.setter
    def manifest(self, manifest: Manifest) -> None:
        """Changes are made by several tasks: one whose answer comes late is older than what is known by then."""
        if self._manifest is None or manifest.sequence >= self._manifest.sequence:
            self._manifest = manifest

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def config(self) -> TopicConfig:
        """The settings in force; may change at any time."""
        return self.log.config

    @property
    def leader_epoch(self) -> int:
        return self._state.leader_epoch

    @property
    def high_watermark(self) -> int:
        return self._state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Everything below is committed and of no open transaction."""
        return min(self._state.high_watermark, self.log.first_unstable_offset)

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read, hot or cold."""
        if self.manifest is not None and self.manifest.nodes:
            return self.manifest.log_start_offset
        expired_to = self.manifest.log_start_offset if self.manifest is not None else 0
        return max(expired_to, self.log.local_start_offset)

    @property
    def local_start_offset(self) -> int:
        return self.log.local_start_offset

    @property
    def cold_end_offset(self) -> int:
        """Everything from the log start up to here is in the bucket; 0 while nothing ever was."""
        return self.manifest.cold_end_offset if self.manifest is not None else 0

    @property
    def cold_bytes(self) -> int:
        return self.manifest.cold_bytes if self.manifest is not None else 0

    @property
    def cold_segments(self) -> int:
        return self.manifest.segment_count if self.manifest is not None else 0

    @property
    def local_bytes(self) -> int:
        return self.log.size_bytes

    @property
    def local_segments(self) -> int:
        return self.log.segment_count

    @property
    def gone(self) -> bool:
        """Whether this broker has stopped leading it."""
        return self._gone is not None

    @property
    def bytes_above_cold(self) -> int:
        """Bytes of log that are here only."""
        views = (*self.log.closed_segments(), self.log.active_view)
        return sum(segment.size for segment in views if segment.next_offset > self.cold_end_offset)

    @property
    def waiting_segments(self) -> int:
        """Closed segments that are not cold, though they should be."""
        if not self.config.remote_storage_enable:
            return 0
        return sum(1 for segment in self.log.closed_segments() if segment.next_offset > self.cold_end_offset)

    def explain(self) -> dict[str, Any]:
        """Where the records are, and what stands in the way of their going elsewhere."""
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partition": self.partition,
            "leader": self._state.node_id,
            "leader_epoch": self.leader_epoch,
            "isr": sorted(self._state.isr),
            "log_start_offset": self.log_start_offset,
            "local_start_offset": self.local_start_offset,
            "cold_end_offset": self.cold_end_offset,
            "last_stable_offset": self.last_stable_offset,
            "high_watermark": self.high_watermark,
            "log_end_offset": self.log.end_offset,
            "flushed_offset": self.log.flushed_offset,
            "local_bytes": self.local_bytes,
            "cold_bytes": self.cold_bytes,
            "local_segments": self.local_segments,
            "cold_segments": self.cold_segments,
            "waiting_segments": self.waiting_segments,
            "upload_problem": self.upload_problem or None,
            "possible_loss": self.possible_loss,
        }

    @property
    def alone(self) -> bool:
        """Whether `append` answers in the same turn of the loop: it waits for no other replica and for no fsync."""
        return self._state.alone and self.config.flush != "ack"

    # -- produce ------------------------------------------------------------------------------------------------------

    async def append(
        self, data: bytearray | memoryview, *, acks: int = ALL, timeout_ms: int = 30_000, deep: bool = False
    ) -> Appended:
        """One or more produced batches, stamped in place. With acks=all it answers once they are committed, and fsynced
        where the topic says `flush=ack`; alone in the ISR and without that, in the same turn of the loop.

        `Refused`: what admission says, NOT_ENOUGH_REPLICAS, KAFKA_STORAGE_ERROR (full or dead disk), REQUEST_TIMED_OUT
        (the records are in the log and may yet be committed).
        """
        if self._gone is not None:
            raise self._gone
        config = self.log.config
        if acks == ALL:
            if not self._state.may_ack(config.min_insync_replicas):
                raise Refused(Code.NOT_ENOUGH_REPLICAS, f"{len(self._state.isr)} replicas of {self.at} are in sync")
        elif acks not in (0, 1):
            raise Refused(Code.INVALID_REQUIRED_ACKS, f"acks={acks} is not -1, 0 or 1")
        appended = self._write(data, deep)
        end = appended.last_offset + 1
        if config.flush == "ack":
            await self._flush_ack(end, acks, timeout_ms)
        else:
            self._advance(self.log.end_offset)
        if acks == ALL and self._state.high_watermark < end:
            await self._until_committed(end, timeout_ms)
        return appended

    def _write(self, data: bytearray | memoryview, deep: bool) -> Appended:
        disk, hot = self._disk, self.log
        if disk.dead is not None:
            raise Refused(Code.KAFKA_STORAGE_ERROR, f"the data directory failed: {disk.dead.why}")
        try:
            appended = hot.append(data, leader_epoch=self._state.leader_epoch, now_ms=self._clock.wall_ms(), deep=deep)
        except Refused as refused:
            if refused.code is Code.KAFKA_STORAGE_ERROR and hot.broken:
                disk.died(refused.why)
            elif refused.code is Code.KAFKA_STORAGE_ERROR:
                disk.refused(refused.why)
            raise
        if disk.full is not None:
            disk.worked()
        if hot.segment_count != self._segments_seen:
            self._segments_seen = hot.segment_count
            self._segment_closed(self)
        return appended

    async def _flush_ack(self, end: int, acks: int, timeout_ms: int) -> None:
        """The high watermark of such a topic counts what is fsynced; who does not wait for it leaves it to the loop."""
        if acks != ALL:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.flush(end)
        except TimeoutError:
            raise Refused(Code.REQUEST_TIMED_OUT, f"no fsync of {self.at} within {timeout_ms} ms") from None
        except Unavailable as error:
            raise Refused(Code.KAFKA_STORAGE_ERROR, f"fsync of {self.at} failed: {error}") from None

    async def flush(self, end: int | None = None) -> None:
        """fsyncs up to `end` (None: all). A failed fsync ends the use of the directory, a full disk does not."""
        try:
            flushed = await self.log.flush(end)
        except Unavailable as error:
            if error.final:
                self._disk.died(str(error))
            else:
                self._disk.refused(str(error))
            raise
        if self.config.flush == "ack":
            self._advance(flushed)

    async def _until_committed(self, end: int, timeout_ms: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number = self._committed.park(future, end)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await future
        except TimeoutError:
            raise Refused(
                Code.REQUEST_TIMED_OUT, f"records below {end} of {self.at} are not committed after {timeout_ms} ms"
            ) from None
        finally:
            self._committed.leave(number)

    def _advance(self, position: int) -> None:
        if not self._state.advance(position, self.log.config.min_insync_replicas):
            return
        self.log.producers.on_high_watermark(self._state.high_watermark)
        if self._committed:
            for future in self._committed.wake(self._state.high_watermark):
                if not future.done():
                    future.set_result(None)

    # -- fetch --------------------------------------------------------------------------------------------------------

    async def read(
        self, offset: int, max_bytes: int, *, max_wait_ms: int = 0, min_bytes: int = 1, read_committed: bool = False
    ) -> Fetched:
        """Whole batches from the one that holds `offset`: at least one where there is any, else about `max_bytes` at
        most. At the end it waits up to `max_wait_ms` for `min_bytes`, then answers with what there is.

        `Refused(OFFSET_OUT_OF_RANGE)` outside [log start, log end]; `Unavailable`, `Corrupt` from the bucket.
        """
        fetched = await self._read_now(offset, max_bytes, read_committed)
        if fetched.size >= min_bytes or max_wait_ms <= 0:
            return fetched
        try:
            async with asyncio.timeout(max_wait_ms / 1000):
                while fetched.size < min_bytes:
                    await self._until_more(fetched)
                    fetched = await self._read_now(offset, max_bytes, read_committed)
        except TimeoutError:
            return await self._read_now(offset, max_bytes, read_committed)
        return fetched

    async def _read_now(self, offset: int, max_bytes: int, read_committed: bool) -> Fetched:
        if self._gone is not None:
            raise self._gone
        start, committed, stable = self.log_start_offset, self.high_watermark, self.last_stable_offset
        if not start <= offset <= self.log.end_offset:
            raise Refused(
                Code.OFFSET_OUT_OF_RANGE, f"offset {offset} of {self.at} is not in [{start}, {self.log.end_offset}]"
            )
        bound = stable if read_committed else committed
        data: Data | None = b""
        if offset < bound:
            if offset >= self.log.local_start_offset:
                data = await self._read_hot(offset, max_bytes, bound)
            else:
                data = await self.cold.reader.read(self.pid, self.manifest, offset, max_bytes)
        return Fetched(data or b"", committed, start, stable)

    async def _read_hot(self, offset: int, max_bytes: int, bound: int) -> Data | None:
        """What a damaged local file lacks may be cold."""
        try:
            return self.log.read(offset, max_bytes, end_offset=bound)
        except Corrupt:
            if offset >= self.cold_end_offset:
                raise
            return await self.cold.reader.read(self.pid, self.manifest, offset, max_bytes)

    async def _until_more(self, seen: Fetched) -> None:
        """Returns once the high watermark is beyond what `seen` saw."""
        if self.high_watermark > seen.high_watermark:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number = self._committed.park(future, seen.high_watermark + 1)
        try:
            await future
        finally:
            self._committed.leave(number)

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record, hot or cold, at or after `timestamp` (ms); None when
        there is none."""
        if self.log_start_offset < self.log.local_start_offset:
            found = await self.cold.reader.offset_for_timestamp(self.pid, timestamp, manifest=self.manifest)
            if found is not None and found[0] < self.log.local_start_offset:
                return found
        return self.log.offset_for_timestamp(timestamp)

    # -- the end of things --------------------------------------------------------------------------------------------

    async def delete_records(self, before: int) -> int:
        """The log starts at `before` (-1: the high watermark) from now on; returns the new log start once it is in the
        manifest. `Refused(OFFSET_OUT_OF_RANGE)` beyond the high watermark."""
        before = self.high_watermark if before == -1 else before
        if not 0 <= before <= self.high_watermark:
            raise Refused(Code.OFFSET_OUT_OF_RANGE, f"offset {before} of {self.at} is beyond the high watermark")
        if before > self.log_start_offset:
            if self.config.remote_storage_enable or self.manifest is not None:
                manifest = self.manifest or await self.cold.manifests.take_over(self.pid, self.topic, self.leader_epoch)
                self.manifest = await self.cold.collector.advance_start(manifest, self.leader_epoch, before)
            self.log.advance_start(before)
        return self.log_start_offset

    def roll(self) -> None:
        """Closes the active segment, so that it can go up."""
        self.log.roll()
        self._segments_seen = self.log.segment_count
        self._segment_closed(self)

    def resign(self, why: Refused) -> None:
        """Nobody is served here any more: `why` is the answer to all, those who wait included."""
        self._gone = why
        for future in self._committed.wake_all():
            if not future.done():
                future.set_exception(why)

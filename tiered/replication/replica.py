"""One partition on this broker: its hot log, what is cold of it, and the callers that wait for it.

Binds the rules of `partition.py` to a log and a cold reader. Reads go to the hot log where it reaches, to the bucket
below; a reader cannot tell which. Nothing here decides what is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tiered.cold.manifest import Manifest
from tiered.config import TopicConfig
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.hot.disk_log import Appended, DiskLog
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.ports import Clock
from tiered.replication.explain import explain
from tiered.replication.fetched import Fetched
from tiered.replication.leading import Begun
from tiered.replication.partition import Partition
from tiered.replication.storage import ColdTier, DiskState
from tiered.replication.waiting import PARKED_MAX, Waiting, Watcher

ALL = -1
"""acks: every in-sync replica."""


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
        self.state = partition
        self._clock = clock
        self._disk = disk
        self._segment_closed = segment_closed
        self._parked: Waiting[Callable[[], None]] = Waiting()
        self._watchers: dict[tuple[Watcher, int], None] = {}
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
        return self.state.leader_epoch

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Everything below is committed and of no open transaction."""
        return min(self.state.high_watermark, self.log.first_unstable_offset)

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read, hot or cold."""
        manifest = self._manifest
        if manifest is None:
            return self.log.local_start_offset
        start = manifest.log_start_offset
        return start if manifest.nodes else max(start, self.log.local_start_offset)

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
        return explain(self)

    @property
    def alone(self) -> bool:
        """Whether what `append_now` wrote is committed by then: it waits for no other replica and for no fsync."""
        return self.state.alone and self.log.config.flush != "ack"

    # -- produce ------------------------------------------------------------------------------------------------------

    async def append(
        self, data: bytearray | memoryview, *, acks: int = ALL, timeout_ms: int = 30_000, deep: bool = False
    ) -> Appended:
        """One or more produced batches, stamped in place. With acks=all it answers once they are committed, and fsynced
        where the topic says `flush=ack`; alone in the ISR and without that, in the same turn of the loop.

        `Refused`: what admission says, NOT_ENOUGH_REPLICAS, KAFKA_STORAGE_ERROR (full or dead disk), REQUEST_TIMED_OUT
        (the records are in the log and may yet be committed).
        """
        appended = self.append_now(data, acks, deep)
        end = appended.last_offset + 1
        if acks == ALL and not self.committed(end):
            await self.until_committed(end, timeout_ms)
        return appended

    def append_now(self, data: bytearray | memoryview, acks: int, deep: bool = False) -> Appended:
        """Judges, stamps in place and writes. Where acks=all asks for more than that, `committed` says whether it is
        done already and `until_committed` waits for it. `Refused` as with `append`, but never REQUEST_TIMED_OUT."""
        if self._gone is not None:
            raise self._gone
        config = self.log.config
        if acks == ALL:
            if not self.state.may_ack(config.min_insync_replicas):
                raise Refused(Code.NOT_ENOUGH_REPLICAS, f"{len(self.state.isr)} replicas of {self.at} are in sync")
        elif acks not in (0, 1):
            raise Refused(Code.INVALID_REQUIRED_ACKS, f"acks={acks} is not -1, 0 or 1")
        appended = self._write(data, deep)
        if config.flush != "ack":
            self._advance(self.log.end_offset)
        return appended

    def committed(self, end: int) -> bool:
        """Whether everything below `end` is."""
        return self.state.high_watermark >= end

    async def until_committed(self, end: int, timeout_ms: int) -> None:
        """Returns once everything below `end` is committed, which with `flush=ack` takes an fsync that is made here.
        `Refused`: REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR, or why this broker leads the partition no more."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if self.log.config.flush == "ack":
                    await self.flush(end)
                await self._until(end)
        except TimeoutError:
            raise Refused(
                Code.REQUEST_TIMED_OUT, f"records below {end} of {self.at} are not committed after {timeout_ms} ms"
            ) from None
        except Unavailable as error:
            raise Refused(Code.KAFKA_STORAGE_ERROR, f"fsync of {self.at} failed: {error}") from None

    def _write(self, data: bytearray | memoryview, deep: bool) -> Appended:
        disk, hot = self._disk, self.log
        if disk.dead is not None:
            raise Refused(Code.KAFKA_STORAGE_ERROR, f"the data directory failed: {disk.dead.why}")
        try:
            appended = hot.append(data, leader_epoch=self.state.leader_epoch, now_ms=self._clock.wall_ms(), deep=deep)
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

    def _advance(self, position: int) -> None:
        if not self.state.advance(position, self.log.config.min_insync_replicas):
            return
        committed = self.state.high_watermark
        self.log.producers.on_high_watermark(committed)
        if self._parked:
            for call in self._parked.wake(committed):
                call()
        for watcher, place in self._watchers:
            watcher.woken(place)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def park(self, call: Callable[[], None], offset: int) -> int:
        """Calls `call` once, in the turn in which the high watermark reaches `offset` or this broker leads the
        partition no more; the caller looks which. Returns the number to `leave` with. `Refused` when too many wait."""
        if self._gone is not None:
            raise self._gone
        return self._parked.park(call, offset)

    def leave(self, number: int) -> None:
        """The caller does not wait any more; harmless when it was called."""
        self._parked.leave(number)

    def watch(self, watcher: Watcher, place: int) -> None:
        """Tells `watcher.woken(place)` whenever the high watermark moves or this broker leads the partition no more,
        until `unwatch`. It must not change who watches. `Refused` when too many do."""
        if self._gone is not None:
            raise self._gone
        if len(self._watchers) >= PARKED_MAX:
            raise Refused(Code.THROTTLING_QUOTA_EXCEEDED, f"{PARKED_MAX} requests wait on this partition already")
        self._watchers[watcher, place] = None

    def unwatch(self, watcher: Watcher, place: int) -> None:
        """No more of that; harmless when there was none."""
        self._watchers.pop((watcher, place), None)

    async def _until(self, offset: int) -> None:
        """Returns once the high watermark is at `offset` or beyond."""
        if self.state.high_watermark >= offset:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number = self.park(lambda: None if reached.done() else reached.set_result(None), offset)
        try:
            await reached
        finally:
            self.leave(number)
        if self._gone is not None and self.state.high_watermark < offset:
            raise self._gone

    # -- fetch --------------------------------------------------------------------------------------------------------

    async def read(
        self, offset: int, max_bytes: int, *, max_wait_ms: int = 0, min_bytes: int = 1, read_committed: bool = False
    ) -> Fetched:
        """Whole batches from the one that holds `offset`: at least one where there is any, else about `max_bytes` at
        most. At the end it waits up to `max_wait_ms` for `min_bytes`, then answers with what there is.

        `Refused(OFFSET_OUT_OF_RANGE)` outside [log start, log end]; `Unavailable`, `Corrupt` from the bucket.
        """
        fetched = await self._read(offset, max_bytes, read_committed)
        if fetched.size >= min_bytes or max_wait_ms <= 0:
            return fetched
        try:
            async with asyncio.timeout(max_wait_ms / 1000):
                while fetched.size < min_bytes:
                    await self._until(fetched.high_watermark + 1)
                    fetched = await self._read(offset, max_bytes, read_committed)
        except TimeoutError:
            return await self._read(offset, max_bytes, read_committed)
        return fetched

    def read_now(self, offset: int, max_bytes: int, read_committed: bool = False) -> Fetched | None:
        """The same from what is local, without a wait; None where only the bucket can answer. `Refused` as `read`."""
        if self._gone is not None:
            raise self._gone
        hot = self.log
        committed, stable, start = self.ends()
        if offset < start or (offset > committed and offset > hot.end_offset):
            raise Refused(
                Code.OFFSET_OUT_OF_RANGE, f"offset {offset} of {self.at} is not in [{start}, {hot.end_offset}]"
            )
        bound = stable if read_committed else committed
        if offset >= bound:
            return Fetched(b"", committed, start, stable)
        if offset < hot.local_start_offset:
            return None
        try:
            data = hot.read(offset, max_bytes, end_offset=bound)
        except Corrupt:
            if offset >= self.cold_end_offset:
                raise
            return None  # what a damaged local file lacks may be cold
        return Fetched(data or b"", committed, start, stable)

    def ends(self) -> tuple[int, int, int]:
        """High watermark, last stable offset and log start."""
        log, committed, manifest = self.log, self.state.high_watermark, self._manifest
        unstable = log.producers.first_unstable_offset
        stable = committed if unstable is None or unstable > committed else unstable
        return committed, stable, log.local_start_offset if manifest is None else self.log_start_offset

    def at_end(self, offset: int) -> bool:
        """Whether all that is committed lies below `offset`, so that `read_now` would give nothing yet."""
        return offset == self.state.high_watermark and self._gone is None

    async def _read(self, offset: int, max_bytes: int, read_committed: bool) -> Fetched:
        fetched = self.read_now(offset, max_bytes, read_committed)
        if fetched is not None:
            return fetched
        committed, stable, start = self.ends()
        data = await self.cold.reader.read(self.pid, self.manifest, offset, max_bytes)
        return Fetched(data, committed, start, stable)

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
        for call in self._parked.wake_all():
            call()
        for watcher, place in self._watchers:
            watcher.woken(place)

"""What can be read of a partition that is led here, hot or cold, and who waits for more of it.

Reads go to the hot log where it reaches, to the bucket below; a reader cannot tell which. Nothing here decides what is
committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tiered.cold.manifest import Manifest
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Corrupt, Refused
from tiered.hot.disk_log import DiskLog
from tiered.hot.segment_view import SegmentView
from tiered.hot.time_lookup import TimeLookups, offset_for_timestamp
from tiered.ids import UNKNOWN_END, PartitionId, TopicId, TopicPartition
from tiered.replication.leader_state import LeaderState
from tiered.replication.partition_report import explain
from tiered.replication.purgatory import ProgressListener, Purgatory, add_listener
from tiered.replication.read_result import ReadResult
from tiered.replication.storage import ColdTier


class LeaderReads:
    """A partition's log, what is cold of it, and the callers that wait for it."""

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        log: DiskLog,
        state: LeaderState,
        cold: ColdTier,
        manifest: Manifest | None,
    ) -> None:
        self.tp = tp
        self.topic, self.partition = tp
        self.topic_id = topic_id
        self.partition_id = self.id_of(tp, topic_id)
        self.log = log
        self.cold = cold
        self.traffic = log.traffic
        self.state = state
        self.epoch_start = log.end_offset
        self.upload_problem = ""
        self.possible_loss: dict[str, int] | None = None
        self._manifest = manifest
        self._parked: Purgatory[Callable[[], None]] = Purgatory()
        self._listeners: dict[tuple[ProgressListener, int], None] = {}
        self._stop_error: Refused | None = None

    @staticmethod
    def id_of(tp: TopicPartition, topic_id: TopicId) -> PartitionId:
        """The name under which the bucket knows it."""
        return PartitionId(topic_id, tp.partition)

    @property
    def manifest(self) -> Manifest | None:
        """What is cold, as far as is known; None when nothing is known to be."""
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
    def stored_end(self) -> int:
        """The log end where all that was ever written here is committed, and either in the bucket or deleted; else
        `UNKNOWN_END`. (The log of `__consumer_offsets` starts where its last image in the bucket ends.)"""
        end = self.log.end_offset
        whole = self.state.high_watermark == end <= max(self.cold_end_offset, self.log_start_offset)
        return end if whole else UNKNOWN_END

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
    def is_stopped(self) -> bool:
        """Whether this broker has stopped leading it."""
        return self._stop_error is not None

    @property
    def bytes_above_cold(self) -> int:
        """Bytes of log that are here only. A segment of which an earlier leader made a part cold does not count: bytes
        that are in two places must not make others go."""
        views = (*self.log.closed_segments(), self.log.active_view)
        return sum(segment.size for segment in views if segment.base_offset >= self.cold_end_offset)

    @property
    def waiting_segments(self) -> int:
        """Closed segments that are not cold, though they should be."""
        return len(self._segments_to_upload())

    @property
    def waiting_bytes(self) -> int:
        """What these are together."""
        return sum(segment.size for segment in self._segments_to_upload())

    def _segments_to_upload(self) -> list[SegmentView]:
        if not self.config.remote_storage_enable:
            return []
        return [segment for segment in self.log.closed_segments() if segment.next_offset > self.cold_end_offset]

    @property
    def upload_lag_since_ms(self) -> int | None:
        """When the oldest record that should be in the bucket and is not came here; None where there is none."""
        first = max(self.cold_end_offset, self.log_start_offset)
        if not self.config.remote_storage_enable or first >= self.log.end_offset:
            return None
        return self.log.segment_created_ms(first)

    def explain(self) -> dict[str, Any]:
        """Where the records are, and what stands in the way of their going elsewhere."""
        return explain(self)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def park(self, call: Callable[[], None], offset: int) -> int:
        """Calls `call` once, in the turn in which the high watermark reaches `offset`, this broker leads the partition
        no more, or too few replicas are in sync; the caller looks which. Returns the number to `leave` with. `Refused`
        when too many wait."""
        if self._stop_error is not None:
            raise self._stop_error
        return self._parked.park(call, offset)

    def unpark(self, number: int) -> None:
        """The caller does not wait any more; harmless when it was called."""
        self._parked.unpark(number)

    def add_listener(self, listener: ProgressListener, index: int) -> None:
        """Tells `watcher.woken(place)` whenever the high watermark moves, or what else `park` says happens,
        until `unwatch`. It must not change who watches. `Refused` when too many do."""
        if self._stop_error is not None:
            raise self._stop_error
        add_listener(self._listeners, listener, index)

    def remove_listener(self, listener: ProgressListener, index: int) -> None:
        """No more of that; harmless when there was none."""
        self._listeners.pop((listener, index), None)

    async def _wait_high_watermark(self, offset: int) -> None:
        """Returns once the high watermark is at `offset` or beyond."""
        while self.state.high_watermark < offset:
            await self._wait_wakeup(offset)

    async def _wait_wakeup(self, offset: int) -> None:
        """Returns once the high watermark is at `offset` or beyond, or all were woken to look whether it still may."""
        wakeup: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number = self.park(lambda: None if wakeup.done() else wakeup.set_result(None), offset)
        try:
            await wakeup
        finally:
            self.unpark(number)
        if self._stop_error is not None and self.state.high_watermark < offset:
            raise self._stop_error

    def _wake_up_to(self, high_watermark: int) -> None:
        """The high watermark is there now."""
        if self._parked:
            for call in self._parked.wake(high_watermark):
                call()
        for listener, index in self._listeners:
            listener.on_progress(index)

    def _wake_all(self) -> None:
        """All callers look again: whether it is led here, whether enough replicas are in sync."""
        for call in self._parked.wake_all():
            call()
        for listener, index in self._listeners:
            listener.on_progress(index)

    # -- fetch --------------------------------------------------------------------------------------------------------

    async def read(
        self, offset: int, max_bytes: int, *, max_wait_ms: int = 0, min_bytes: int = 1, read_committed: bool = False
    ) -> ReadResult:
        """Whole batches from the one that holds `offset`: at least one where there is any, else about `max_bytes` at
        most. At the end it waits up to `max_wait_ms` for `min_bytes`, then answers with what there is.

        `Refused(OFFSET_OUT_OF_RANGE)` outside [log start, log end]; `Unavailable`, `Corrupt` from the bucket.
        """
        fetched = await self._read(offset, max_bytes, read_committed)
        if fetched.size < min_bytes and max_wait_ms > 0:
            try:
                async with asyncio.timeout(max_wait_ms / 1000):
                    while fetched.size < min_bytes:
                        await self._wait_high_watermark(fetched.high_watermark + 1)
                        fetched = await self._read(offset, max_bytes, read_committed)
            except TimeoutError:
                fetched = await self._read(offset, max_bytes, read_committed)
        self.traffic.bytes_out += fetched.size
        return fetched

    def read_now(self, offset: int, max_bytes: int, read_committed: bool = False) -> ReadResult | None:
        """The same from what is local, without a wait; None where only the bucket can answer. `Refused` as `read`."""
        if self._stop_error is not None:
            raise self._stop_error
        hot = self.log
        committed, stable, start = self.offset_snapshot()
        if offset < start or (offset > committed and offset > hot.end_offset):
            raise Refused(
                Code.OFFSET_OUT_OF_RANGE, f"offset {offset} of {self.tp} is not in [{start}, {hot.end_offset}]"
            )
        bound = stable if read_committed else committed
        if offset >= bound:
            return ReadResult(b"", committed, start, stable)
        if offset < hot.local_start_offset:
            return None
        try:
            data = hot.read(offset, max_bytes, end_offset=bound)
        except Corrupt:
            if offset >= self.cold_end_offset:
                raise
            return None  # what a damaged local file lacks may be cold
        return ReadResult(data or b"", committed, start, stable)

    def offset_snapshot(self) -> tuple[int, int, int]:
        """High watermark, last stable offset and log start."""
        log, committed, manifest = self.log, self.state.high_watermark, self._manifest
        unstable = log.producers.first_unstable_offset
        stable = committed if unstable is None or unstable > committed else unstable
        return committed, stable, log.local_start_offset if manifest is None else self.log_start_offset

    def is_at_end(self, offset: int) -> bool:
        """Whether all that is committed lies below `offset`, so that `read_now` would give nothing yet."""
        return offset == self.state.high_watermark and self._stop_error is None

    async def _read(self, offset: int, max_bytes: int, read_committed: bool) -> ReadResult:
        fetched = self.read_now(offset, max_bytes, read_committed)
        if fetched is not None:
            return fetched
        committed, stable, start = self.offset_snapshot()
        data = await self.cold.reader.read(self.partition_id, self.manifest, offset, max_bytes)
        return ReadResult(data, committed, start, stable)

    async def offset_for_timestamp(
        self, timestamp: int, lookups: TimeLookups | None = None
    ) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record, hot or cold, at or after `timestamp` (ms); None when
        there is none. `lookups` are those of the request that asks, where it asks for more than one."""
        lookups = lookups or TimeLookups()
        if self.log_start_offset < self.log.local_start_offset:
            found = await self.cold.reader.offset_for_timestamp(
                self.partition_id, timestamp, manifest=self.manifest, lookups=lookups
            )
            if found is not None and found[0] < self.log.local_start_offset:
                return found
        return await offset_for_timestamp(self.log, timestamp, lookups)

"""Reads from a partition that this broker leads, hot or cold, and the callers that wait for more records.

Reads from the local start offset on come from the hot log, older ones from the bucket; a reader cannot tell the
difference. Serves nothing above the high watermark, and does not decide what is committed: `leader_state` does.
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
    """The log of one partition, its cold segments, and the callers that wait for it."""

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
        """Returns the id under which the bucket stores the partition."""
        return PartitionId(topic_id, tp.partition)

    @property
    def manifest(self) -> Manifest | None:
        """The newest known list of cold segments; None if there is none as far as is known."""
        return self._manifest

    @manifest.setter
    def manifest(self, manifest: Manifest) -> None:
        """Keeps the newer of the two manifests. Several tasks change the manifest, so a late reply may carry one that
        is older than the known one."""
        if self._manifest is None or manifest.sequence >= self._manifest.sequence:
            self._manifest = manifest

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> TopicConfig:
        """The topic settings in force; they may change at any time."""
        return self.log.config

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """All records below are committed and belong to no open transaction."""
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
        """All records from the log start up to here are in the bucket; 0 if none ever was."""
        return self.manifest.cold_end_offset if self.manifest is not None else 0

    @property
    def stored_end(self) -> int:
        """The log end, if all records ever written are committed and each is in the bucket or deleted; else
        `UNKNOWN_END`. The log of `__consumer_offsets` starts where its last snapshot in the bucket ends."""
        end = self.log.end_offset
        is_stored = self.state.high_watermark == end <= max(self.cold_end_offset, self.log_start_offset)
        return end if is_stored else UNKNOWN_END

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
        """True if this broker has stopped leading the partition."""
        return self._stop_error is not None

    @property
    def bytes_above_cold(self) -> int:
        """Bytes of log that are only on this disk. Leaves out a segment of which an earlier leader uploaded a part:
        bytes that were counted twice would make retention by size delete other records."""
        views = (*self.log.closed_segments(), self.log.active_view)
        return sum(segment.size for segment in views if segment.base_offset >= self.cold_end_offset)

    @property
    def waiting_segments(self) -> int:
        """The number of closed segments that wait for their upload."""
        return len(self._segments_to_upload())

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the closed segments that wait for their upload."""
        return sum(segment.size for segment in self._segments_to_upload())

    def _segments_to_upload(self) -> list[SegmentView]:
        if not self.config.remote_storage_enable:
            return []
        return [segment for segment in self.log.closed_segments() if segment.next_offset > self.cold_end_offset]

    @property
    def upload_lag_since_ms(self) -> int | None:
        """When the oldest record that should be in the bucket and is not was written here; None if there is no such
        record."""
        first = max(self.cold_end_offset, self.log_start_offset)
        if not self.config.remote_storage_enable or first >= self.log.end_offset:
            return None
        return self.log.segment_created_ms(first)

    def explain(self) -> dict[str, Any]:
        """Describes where the records are, and what keeps them from moving to the bucket."""
        return explain(self)

    # -- parked callers -----------------------------------------------------------------------------------------------

    def park(self, call: Callable[[], None], offset: int) -> int:
        """Calls `call` once: when the high watermark reaches `offset`, when this broker stops leading the partition, or
        when too few replicas are in the ISR. The call comes in the same turn of the event loop, and the caller checks
        which of these it was. Returns the number to `unpark` with. Raises `Refused` if too many callers wait."""
        if self._stop_error is not None:
            raise self._stop_error
        return self._parked.park(call, offset)

    def unpark(self, number: int) -> None:
        """Stops the wait; does nothing if `call` was called already."""
        self._parked.unpark(number)

    def add_listener(self, listener: ProgressListener, index: int) -> None:
        """Calls `listener.on_progress(index)` whenever the high watermark moves, or one of the other events of `park`
        happens, until `remove_listener`. The call must not add or remove listeners. Raises `Refused` if there are too
        many listeners."""
        if self._stop_error is not None:
            raise self._stop_error
        add_listener(self._listeners, listener, index)

    def remove_listener(self, listener: ProgressListener, index: int) -> None:
        """Removes a listener; does nothing if it was not registered."""
        self._listeners.pop((listener, index), None)

    async def _wait_high_watermark(self, offset: int) -> None:
        """Returns once the high watermark is at or above `offset`."""
        while self.state.high_watermark < offset:
            await self._wait_wakeup(offset)

    async def _wait_wakeup(self, offset: int) -> None:
        """Returns once the high watermark is at or above `offset`, or all callers were woken to check whether it can
        still get there."""
        wakeup: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number = self.park(lambda: None if wakeup.done() else wakeup.set_result(None), offset)
        try:
            await wakeup
        finally:
            self.unpark(number)
        if self._stop_error is not None and self.state.high_watermark < offset:
            raise self._stop_error

    def _wake_up_to(self, high_watermark: int) -> None:
        """Wakes callers that wait for this high watermark or a lower one."""
        if self._parked:
            for call in self._parked.wake(high_watermark):
                call()
        for listener, index in self._listeners:
            listener.on_progress(index)

    def _wake_all(self) -> None:
        """Wakes all callers, to check whether this broker still leads the partition and enough replicas are in the
        ISR."""
        for call in self._parked.wake_all():
            call()
        for listener, index in self._listeners:
            listener.on_progress(index)

    # -- fetch --------------------------------------------------------------------------------------------------------

    async def read(
        self, offset: int, max_bytes: int, *, max_wait_ms: int = 0, min_bytes: int = 1, read_committed: bool = False
    ) -> ReadResult:
        """Returns whole batches, starting with the one that holds `offset`: at least one if there is any, otherwise
        about `max_bytes` at most. At the end of the log, waits up to `max_wait_ms` for `min_bytes`, then returns what
        there is.

        Raises `Refused(OFFSET_OUT_OF_RANGE)` outside [log start, log end], and `Unavailable` and `Corrupt` from the
        bucket.
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
        """Like `read`, but from the local log and without waiting. Returns None if only the bucket has the records.
        Raises `Refused` like `read`."""
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
            return None  # records of a damaged local file may be cold
        return ReadResult(data or b"", committed, start, stable)

    def offset_snapshot(self) -> tuple[int, int, int]:
        """Returns the high watermark, the last stable offset and the log start offset."""
        log, committed, manifest = self.log, self.state.high_watermark, self._manifest
        unstable = log.producers.first_unstable_offset
        stable = committed if unstable is None or unstable > committed else unstable
        return committed, stable, log.local_start_offset if manifest is None else self.log_start_offset

    def is_at_end(self, offset: int) -> bool:
        """True if this broker leads the partition and `offset` is the high watermark, so that `read_now` would return
        no records yet."""
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
        """Returns (offset, timestamp, leader epoch) of the first record, hot or cold, at or after `timestamp` (ms);
        None if there is none. A request that looks up several timestamps passes the same `lookups` for all of them."""
        lookups = lookups or TimeLookups()
        if self.log_start_offset < self.log.local_start_offset:
            found = await self.cold.reader.offset_for_timestamp(
                self.partition_id, timestamp, manifest=self.manifest, lookups=lookups
            )
            if found is not None and found[0] < self.log.local_start_offset:
                return found
        return await offset_for_timestamp(self.log, timestamp, lookups)

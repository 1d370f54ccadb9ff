"""Reads from a partition that this broker leads, hot or cold, and the callers that wait for its log to grow.

Reads from the local start offset on come from the hot log, older ones from the bucket; a reader cannot tell the
difference. A look-up by time passes over no record (I33). Serves nothing above the high watermark, and does not decide
what is committed: `leader_state` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tiered.errors import Code, Corrupt, Refused
from tiered.hot.time_lookup import TimeLookups, TimeSearch, search_log
from tiered.ports import FileSlice
from tiered.replication.leader_state import LeaderState
from tiered.replication.purgatory import ProgressListener, ProgressListeners, Purgatory
from tiered.replication.read_result import AbortedTxns, ReadResult, RecordBytes
from tiered.replication.unified_log import UnifiedLog


class LeaderReads:
    """Readers of one leader replica: consumers, which see committed records only, and callers that wait for the high
    watermark or for the log end. `stop_error` is set once this broker stops leading the partition; every caller gets
    it then."""

    __slots__ = (
        "_hot",
        "_listeners",
        "_parked",
        "end_listeners",
        "follower_reads_enabled",
        "leader_epoch",
        "partition",
        "state",
        "stop_error",
        "topic_id",
        "traffic",
        "unified_log",
    )

    def __init__(self, unified_log: UnifiedLog, state: LeaderState) -> None:
        self.topic_id = unified_log.topic_id
        self.partition = unified_log.tp.partition
        self.leader_epoch = state.leader_epoch
        self.traffic = unified_log.hot.traffic
        self.unified_log = unified_log
        self.state = state
        self.follower_reads_enabled = False
        """True once consumers were sent to followers: followers must then learn a new high watermark at once."""
        self.end_listeners = ProgressListeners()
        """Listeners to the log end: the fetches of followers."""
        self.stop_error: Refused | None = None
        self._hot = unified_log.hot
        self._parked: Purgatory[Callable[[], None]] = Purgatory()
        self._listeners = ProgressListeners()

    @property
    def is_stopped(self) -> bool:
        """True if this broker has stopped leading the partition."""
        return self.stop_error is not None

    def stop(self, why: Refused) -> None:
        """Stops serving: every caller gets `why`, those that already wait included."""
        self.stop_error = why
        self.wake_all()
        self.end_listeners.notify()

    def check_not_stopped(self) -> None:
        """Raises the reason if this broker has stopped leading the partition. A caller that waited for the bucket
        calls it again: by then another topic may have the name of this one."""
        if self.stop_error is not None:
            raise self.stop_error

    # -- parked callers -----------------------------------------------------------------------------------------------

    def park(self, call: Callable[[], None], offset: int) -> int:
        """Calls `call` once: when the high watermark reaches `offset`, when this broker stops leading the partition, or
        when too few replicas are in the ISR. The call comes in the same turn of the event loop, and the caller checks
        which of these it was. Returns the number to `unpark` with. Raises `Refused` if too many callers wait."""
        if self.stop_error is not None:
            raise self.stop_error
        return self._parked.park(call, offset)

    def unpark(self, number: int) -> None:
        """Stops the wait; does nothing if `call` was called already."""
        self._parked.unpark(number)

    def add_listener(self, listener: ProgressListener, index: int) -> None:
        """Calls `listener.on_progress(index)` whenever the high watermark moves, or one of the other events of `park`
        happens, until `remove_listener`. The call must not add or remove listeners. Raises `Refused` if there are too
        many listeners."""
        if self.stop_error is not None:
            raise self.stop_error
        self._listeners.add(listener, index)

    def remove_listener(self, listener: ProgressListener, index: int) -> None:
        """Removes a listener; does nothing if it was not registered."""
        self._listeners.pop((listener, index), None)

    async def _wait_high_watermark(self, offset: int) -> None:
        """Returns once the high watermark is at or above `offset`."""
        while self.state.high_watermark < offset:
            await self.wait_wakeup(offset)

    async def wait_wakeup(self, offset: int) -> None:
        """Returns once the high watermark is at or above `offset`, or all callers were woken to check whether it can
        still get there."""
        wakeup: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number = self.park(lambda: None if wakeup.done() else wakeup.set_result(None), offset)
        try:
            await wakeup
        finally:
            self.unpark(number)
        if self.stop_error is not None and self.state.high_watermark < offset:
            raise self.stop_error

    def on_high_watermark(self, high_watermark: int) -> None:
        """Wakes callers that wait for this high watermark or a lower one."""
        if self._parked.waiting:
            for call in self._parked.wake(high_watermark):
                call()
        if self._listeners:
            self._listeners.notify()

    def wake_all(self) -> None:
        """Wakes all callers that wait for the high watermark, to check whether this broker still leads the partition
        and enough replicas are in the ISR."""
        if self._parked.waiting:
            for call in self._parked.wake_all():
                call()
        if self._listeners:
            self._listeners.notify()

    def add_end_listener(self, listener: ProgressListener, index: int) -> None:
        """Calls `listener.on_progress(index)` whenever records were appended, followers must learn other offsets at
        once, or this broker stops leading the partition; until `remove_end_listener`. The call must not add or remove
        listeners. Raises `Refused` if there are too many listeners."""
        if self.stop_error is not None:
            raise self.stop_error
        self.end_listeners.add(listener, index)

    def remove_end_listener(self, listener: ProgressListener, index: int) -> None:
        """Removes a listener; does nothing if it was not registered."""
        self.end_listeners.pop((listener, index), None)

    def enable_follower_reads(self) -> None:
        """Notes that consumers are sent to followers. From now on followers learn a new high watermark as soon as it
        moves."""
        if not self.follower_reads_enabled:
            self.follower_reads_enabled = True
            self.end_listeners.notify()

    # -- fetch --------------------------------------------------------------------------------------------------------

    async def read(
        self, offset: int, max_bytes: int, *, max_wait_ms: int = 0, min_bytes: int = 1, read_committed: bool = False
    ) -> ReadResult:
        """Returns whole batches, starting with the one that holds `offset`: at least one if there is any, otherwise
        about `max_bytes` at most. At the end of the log, waits up to `max_wait_ms` for `min_bytes`, then returns what
        there is.

        Raises `Refused(OFFSET_OUT_OF_RANGE)` outside [log start, log end], the reason if this broker stops leading the
        partition, and `Unavailable` and `Corrupt` from the bucket.
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
        if self.stop_error is not None:
            raise self.stop_error
        hot = self._hot
        committed, stable, start = self.offset_snapshot()
        if offset < start or (offset > committed and offset > hot.end_offset):
            raise Refused(
                Code.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.unified_log.tp} is not in [{start}, {hot.end_offset}]",
            )
        bound = stable if read_committed else committed
        if offset >= bound:
            return ReadResult(b"", committed, start, stable)
        if offset < hot.local_start_offset:
            return None
        aborted: AbortedTxns = ()
        try:
            if read_committed:
                data, aborted = hot.read_committed(offset, max_bytes, end_offset=bound)
            else:
                data = hot.read(offset, max_bytes, end_offset=bound)
        except Corrupt:
            if offset >= self.unified_log.cold_end_offset:
                raise
            return None  # records of a damaged local file may be cold
        return ReadResult(data or b"", committed, start, stable, aborted)

    def offset_snapshot(self) -> tuple[int, int, int]:
        """Returns the high watermark, the last stable offset and the log start offset."""
        log, hot, committed = self.unified_log, self._hot, self.state.high_watermark
        unstable, stable = hot.producers.txns.first_unstable_offset, committed
        start = hot.local_start_offset if log.manifest is None else log.log_start_offset
        if unstable is not None and unstable < committed:
            stable = max(unstable, min(start, committed))
        return committed, stable, start

    def is_at_end(self, offset: int) -> bool:
        """True if this broker leads the partition and `offset` is the high watermark, so that `read_now` would return
        no records yet."""
        return offset == self.state.high_watermark and self.stop_error is None

    async def _read(self, offset: int, max_bytes: int, read_committed: bool) -> ReadResult:
        fetched = self.read_now(offset, max_bytes, read_committed)
        if fetched is not None:
            return fetched
        committed, stable, start = self.offset_snapshot()
        log, aborted = self.unified_log, AbortedTxns()
        cold_end = log.cold_end_offset
        if read_committed:
            data, aborted = await log.cold.reader.read_committed(log.partition_id, log.manifest, offset, max_bytes)
        else:
            data = await log.cold.reader.read(log.partition_id, log.manifest, offset, max_bytes)
        self.check_not_stopped()
        if not data and offset < cold_end:  # no batch is between them: the next one is at the cold end or above
            following = await self._read(cold_end, max_bytes, read_committed)
            return following._replace(data=_load(following.data))
        # Every cold transaction is decided, also where this leader does not know yet that its marker is committed.
        committed = self.state.high_watermark
        stable = max(stable, min(log.cold_end_offset, committed))
        return ReadResult(data, committed, start, stable, aborted)

    async def offset_for_timestamp(
        self, timestamp: int, lookups: TimeLookups | None = None
    ) -> tuple[int, int, int] | None:
        """Returns (offset, timestamp, leader epoch) of the first record, hot or cold, at or after `timestamp` (ms);
        None if there is none. A request that looks up several timestamps passes the same `lookups` for all of them.
        Raises the reason if this broker stops leading the partition."""
        lookups, log = lookups or TimeLookups(), self.unified_log
        start = log.log_start_offset
        while True:
            found, end = await self._search_by_time(timestamp, start, lookups)
            self.check_not_stopped()
            if found is None and end >= log.hot.end_offset:
                return None
            if found is not None and found[0] >= log.log_start_offset:
                return found
            start = max(end, log.log_start_offset)  # records were deleted or moved to the bucket meanwhile

    async def _search_by_time(self, timestamp: int, start: int, lookups: TimeLookups) -> TimeSearch:
        """Searches the tier that has `start`. Its records may move to the other tier while the search waits."""
        log, hot, manifest = self.unified_log, self._hot, self.unified_log.manifest
        if start >= hot.local_start_offset or manifest is None:
            return await search_log(hot, timestamp, start, lookups)
        found = await log.cold.reader.offset_for_timestamp(
            log.partition_id, timestamp, start=start, manifest=manifest, lookups=lookups
        )
        if found is not None and found[0] < hot.local_start_offset:
            return TimeSearch(found, found[0])
        # Records that are in both tiers are read from the disk, where a clean may have left others.
        end = min(manifest.cold_end_offset, hot.local_start_offset)
        return TimeSearch(None, end if end > start else hot.local_start_offset)


def _load(data: RecordBytes) -> bytes:
    """Returns the batches in memory, as a read of the bucket does."""
    if not isinstance(data, FileSlice):
        return data
    read = data.file.pread(data.start, data.length)
    if len(read) != data.length:
        raise Corrupt("segment file is shorter than its index says", where=data.file.name, position=data.start)
    return read

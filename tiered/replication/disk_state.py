"""The state of a broker's data directory, which all its partitions share: in use, full, stalled or dead.

The directory is full from the first write for which there is no room, whoever makes it. Small writes may succeed in
between: a file system has room in the last block of a file. Therefore only `has_room` ends the state.

The directory is stalled while records wait for an fsync and none ends (`is_stalled`). A leader would wait with them,
without an error, for as long as the disk does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from tiered.errors import Code, Refused, Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.metrics import Metrics
from tiered.ports import Clock, Disk, Space

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class DiskProblem(NamedTuple):
    """A fault of the data directory, and when it began (wall clock)."""

    since_ms: int
    why: str


ROOM_SECONDS = 10.0
"""Time without a write that found no room, after which a full disk may count as writable."""
ROOM_BYTES = 64 << 20
"""Free space at which a full disk has room, although nobody appends..."""
ROOM_SHARE = 20
"""... or this part of a small file system."""
TAKEN_BYTES = 1 << 20
"""Appended bytes that show room although the file system has little free space, or does not know a quota."""


RECOVERY_SECONDS = 60.0
"""Time after which a disk that was full or stalled counts as usable: the broker gets its leaderships back then."""
STALL_MS = 2_250
"""Time without the end of an fsync after which a disk is stalled. A disk that is only slow takes up to two seconds."""
STALL_LOOK_MS = 100
"""Pause between two looks at the fsyncs that records wait for."""


class FullDisk(NamedTuple):
    """The last write that found no room on a full disk (monotonic time), and the bytes appended since."""

    refused_ns: int
    taken_bytes: int = 0


def has_room(full: FullDisk, now_ns: int, space: Space) -> bool:
    """Returns True once a full disk takes writes again: no write failed for a while, and there is proof of room."""
    if now_ns - full.refused_ns < ROOM_SECONDS * 1e9:
        return False
    return full.taken_bytes >= TAKEN_BYTES or space.free >= min(ROOM_BYTES, space.total // ROOM_SHARE)


def is_stalled(looks: int, stall_ms: int = STALL_MS) -> bool:
    """Returns True after so many looks in a row at which records waited for an fsync, and no file was synced. Looks
    count, and not the time: it passes too while the process pauses. With `stall_ms` 0 no wait is too long."""
    return stall_ms > 0 and looks * STALL_LOOK_MS >= stall_ms


class DiskState:
    """The state of the data directory. Full: appends may be refused, each is tried. Stalled: fsyncs do not end. Dead
    (EIO, or a failed fsync): nothing is tried again, the broker must stop, and the next start does not trust its log.

    `changed` is set when the disk becomes full or stalled. `stall_ms` is `tiered.disk.stall.timeout.ms`.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        metrics: Metrics,
        on_dead: Callable[[str], None],
        stall_ms: Callable[[], int] = lambda: STALL_MS,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._on_dead = on_dead
        self._stall_ms = stall_ms
        self.full: DiskProblem | None = None
        self.stalled: DiskProblem | None = None
        self.dead: DiskProblem | None = None
        self.changed = asyncio.Event()
        self._flushing: dict[DiskLog, int] = {}
        """Logs whose records wait for an fsync, and how many callers wait."""
        self._last_end_ns = 0
        self._looks, self._progress_ns = 0, 0
        """Looks in a row at which records waited and nothing was synced, and the last progress that they saw."""
        self._wait_began = asyncio.Event()
        self._full_disk = FullDisk(0)
        self._recovering_until_ns = 0
        self._full_count = disk.write_errors().full_count
        metrics.gauge("tiered_disk_full", "1 while the disk has no room for writes of any kind.").set_function(
            lambda: float(bool(self.full))
        )
        metrics.gauge("tiered_disk_stalled", "1 while records wait for fsyncs that do not end.").set_function(
            lambda: float(bool(self.stalled))
        )
        metrics.gauge("tiered_disk_dead", "1 after an I/O error or a failed fsync.").set_function(
            lambda: float(bool(self.dead))
        )

    @property
    def is_recovering(self) -> bool:
        """True for some time after a full or stalled disk took writes again."""
        return self.full is None and self.stalled is None and self._clock.mono_ns() < self._recovering_until_ns

    def mark_full(self, why: str) -> None:
        """Notes that a write did not fit."""
        self._full_disk = FullDisk(self._clock.mono_ns())
        if self.full is None:
            self.full = DiskProblem(self._clock.wall_ms(), why)
            self.changed.set()
            log.error("disk full, appends are refused why=%s", why)

    def note_append(self, size: int) -> None:
        """Notes that a full disk took an append of `size` bytes."""
        self._full_disk = self._full_disk._replace(taken_bytes=self._full_disk.taken_bytes + size)

    def check(self) -> None:
        """Marks the disk after writes that failed, whoever made them, and ends the full state once there is room."""
        errors = self._disk.write_errors()
        if errors.failure:
            self.mark_dead(errors.failure)
        if errors.full_count != self._full_count:
            self._full_count = errors.full_count
            self.mark_full(errors.full)
        if self.stalled is not None:
            self._look_for_stall()
        if self.full is not None and has_room(self._full_disk, self._clock.mono_ns(), self._disk.space()):
            log.info("disk takes appends again after_ms=%d", self._clock.wall_ms() - self.full.since_ms)
            self.full = None
            self._recovering_until_ns = self._clock.mono_ns() + int(RECOVERY_SECONDS * 1e9)

    async def watch_stalls(self) -> None:
        """Marks the disk as stalled when records wait for fsyncs that do not end, until it is cancelled."""
        while True:
            while not self._flushing:
                self._wait_began.clear()
                await self._wait_began.wait()
            await self._clock.sleep(STALL_LOOK_MS / 1000)
            self._look_for_stall()

    def _look_for_stall(self) -> None:
        now_ns, progress_ns = self._clock.mono_ns(), self._last_end_ns
        for hot in list(self._flushing):
            self._count_waiting(hot, 0)
            began_ns = hot.flush_progress_ns
            progress_ns = max(progress_ns, now_ns if began_ns is None else began_ns)  # None: one is about to run
        self._looks = self._looks + 1 if self._flushing and progress_ns == self._progress_ns else 0
        self._progress_ns = progress_ns
        stalled = is_stalled(self._looks, self._stall_ms())
        if stalled and self.stalled is None:
            self.stalled = DiskProblem(self._clock.wall_ms(), f"no file was synced for {self._stall_ms() / 1000} s")
            self.changed.set()
            log.error("disk stalled, other brokers lead if they can why=%s", self.stalled.why)
        elif not stalled and self.stalled is not None:
            log.info("fsyncs end again after_ms=%d", self._clock.wall_ms() - self.stalled.since_ms)
            self.stalled = None
            self._recovering_until_ns = now_ns + int(RECOVERY_SECONDS * 1e9)

    def _count_waiting(self, hot: DiskLog, change: int) -> None:
        """Counts the callers that wait for an fsync of a log, and forgets the log after the last. An fsync that runs
        goes on without its caller."""
        count = self._flushing.get(hot, 0) + change
        if count or hot.flush_progress_ns is not None:
            self._flushing[hot] = count
        elif self._flushing.pop(hot, None) is not None:
            self._last_end_ns = self._clock.mono_ns()

    def on_append_refused(self, error: Refused, hot: DiskLog) -> None:
        """Marks the disk dead or full if that is why an append or a roll was refused."""
        if hot.status.is_closed and not hot.status.has_disk_failed:
            return
        if error.code is Code.KAFKA_STORAGE_ERROR and hot.status.has_disk_failed:
            self.mark_dead(error.why)
        elif error.code is Code.KAFKA_STORAGE_ERROR:
            self.mark_full(error.why)

    def roll(self, hot: DiskLog) -> None:
        """Closes the active segment of a log. Raises `Refused` with KAFKA_STORAGE_ERROR, after the disk is marked."""
        try:
            hot.roll()
        except Refused as refused:
            self.on_append_refused(refused, hot)
            raise

    async def flush(self, hot: DiskLog, up_to: int | None = None) -> int:
        """Fsyncs a log up to `up_to` (None: all), and notes what that proves of the log. Returns the flushed offset.
        Raises `Unavailable`: a failed fsync ends the use of the directory, a full disk does not."""
        is_waited_for = hot.synced_entry.fsynced_only
        if is_waited_for:
            self._count_waiting(hot, 1)
            self._wait_began.set()
        try:
            flushed = await hot.flush(up_to)
            if hot.synced_entry.is_due:
                await hot.update_synced_entry()
            return flushed
        except Unavailable as error:
            if error.final:
                self.mark_dead(str(error))
            elif not hot.status.is_closed:
                self.mark_full(str(error))
            raise
        finally:
            if is_waited_for:
                self._count_waiting(hot, -1)

    async def guard(self, work: Awaitable[Result]) -> Result:
        """Awaits other work in the directory. An I/O error ends the use of the directory, whatever file it hit. Raises
        what the work raises."""
        try:
            return await work
        except Unavailable as error:
            if error.final:
                self.mark_dead(str(error))
            raise

    def mark_dead(self, why: str) -> None:
        """Ends the use of the directory."""
        if self.dead is None:
            self.dead = DiskProblem(self._clock.wall_ms(), why)
            log.critical("data directory failed, nothing is written to it any more why=%s", why)
            self._on_dead(why)

"""The state of a broker's data directory, which all its partitions share: in use, full or dead.

The directory is full from the first write for which there is no room, whoever makes it. Small writes may succeed in
between: a file system has room in the last block of a file. Therefore only `has_room` ends the state.
"""

from __future__ import annotations

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
"""Time with room after which a disk that was full counts as usable: the broker gets its leaderships back then."""


class FullDisk(NamedTuple):
    """The last write that found no room on a full disk (monotonic time), and the bytes appended since."""

    refused_ns: int
    taken_bytes: int = 0


def has_room(full: FullDisk, now_ns: int, space: Space) -> bool:
    """Returns True once a full disk takes writes again: no write failed for a while, and there is proof of room."""
    if now_ns - full.refused_ns < ROOM_SECONDS * 1e9:
        return False
    return full.taken_bytes >= TAKEN_BYTES or space.free >= min(ROOM_BYTES, space.total // ROOM_SHARE)


class DiskState:
    """The state of the data directory. Full: appends may be refused, each is tried. Dead (EIO, or a failed fsync):
    nothing is tried again, the broker must stop, and the next start does not trust its log."""

    def __init__(self, disk: Disk, clock: Clock, metrics: Metrics, on_dead: Callable[[str], None]) -> None:
        self._disk = disk
        self._clock = clock
        self._on_dead = on_dead
        self.full: DiskProblem | None = None
        self.dead: DiskProblem | None = None
        self._full_disk = FullDisk(0)
        self._recovering_until_ns = 0
        self._full_count = disk.write_errors().full_count
        metrics.gauge("tiered_disk_full", "1 while the disk has no room for writes of any kind.").set_function(
            lambda: float(bool(self.full))
        )
        metrics.gauge("tiered_disk_dead", "1 after an I/O error or a failed fsync.").set_function(
            lambda: float(bool(self.dead))
        )

    @property
    def is_recovering(self) -> bool:
        """True for some time after a full disk got room."""
        return self.full is None and self._clock.mono_ns() < self._recovering_until_ns

    def mark_full(self, why: str) -> None:
        """Notes that a write did not fit."""
        self._full_disk = FullDisk(self._clock.mono_ns())
        if self.full is None:
            self.full = DiskProblem(self._clock.wall_ms(), why)
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
        if self.full is not None and has_room(self._full_disk, self._clock.mono_ns(), self._disk.space()):
            log.info("disk takes appends again after_ms=%d", self._clock.wall_ms() - self.full.since_ms)
            self.full = None
            self._recovering_until_ns = self._clock.mono_ns() + int(RECOVERY_SECONDS * 1e9)

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

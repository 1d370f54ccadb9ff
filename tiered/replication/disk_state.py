"""The state of a broker's data directory, which all its partitions share: in use, full or dead."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from tiered.errors import Code, Refused, Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.metrics import Metrics
from tiered.ports import Clock

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class DiskProblem(NamedTuple):
    """A fault of the data directory, and when it began (wall clock)."""

    since_ms: int
    why: str


class DiskState:
    """The state of the data directory. Full: appends are refused until one succeeds. Dead (EIO, or a failed fsync):
    nothing is tried again, the broker must stop, and the next start does not trust its log."""

    def __init__(self, clock: Clock, metrics: Metrics, on_dead: Callable[[str], None]) -> None:
        self._clock = clock
        self._on_dead = on_dead
        self.full: DiskProblem | None = None
        self.dead: DiskProblem | None = None
        metrics.gauge("tiered_disk_full", "1 while appends fail for lack of space.").set_function(
            lambda: float(bool(self.full))
        )
        metrics.gauge("tiered_disk_dead", "1 after an I/O error or a failed fsync.").set_function(
            lambda: float(bool(self.dead))
        )

    def mark_full(self, why: str) -> None:
        """Notes that an append did not fit."""
        if self.full is None:
            self.full = DiskProblem(self._clock.wall_ms(), why)
            log.error("disk full, appends are refused why=%s", why)

    def mark_writable(self) -> None:
        """Notes that an append succeeded."""
        if self.full is not None:
            log.info("disk takes appends again after_ms=%d", self._clock.wall_ms() - self.full.since_ms)
            self.full = None

    def on_append_refused(self, error: Refused, hot: DiskLog) -> None:
        """Marks the disk dead or full if that is why an append or a roll was refused."""
        if hot.is_closed and not hot.has_disk_failed:
            return
        if error.code is Code.KAFKA_STORAGE_ERROR and hot.has_disk_failed:
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
            elif not hot.is_closed:
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

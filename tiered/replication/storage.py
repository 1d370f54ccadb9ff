"""What all partitions of a broker share below them: the state of the disk, and the cold tier."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from tiered.cold.collector import Collector
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.reader import ColdReader
from tiered.cold.uploader import Uploader
from tiered.errors import Code, Refused, Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.metrics import Metrics
from tiered.ports import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ColdTier:
    """The parts of the cold tier, one of each per broker."""

    manifests: ManifestStore
    reader: ColdReader
    uploader: Uploader
    collector: Collector


class DiskProblem(NamedTuple):
    """What is wrong with the data directory, and since when (wall clock)."""

    since_ms: int
    why: str


class DiskState:
    """Whether the data directory takes writes. Full: appends are refused until one succeeds. Dead (EIO, a failed
    fsync): nothing is tried again, the broker must stop and its log is not trusted by the next start."""

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
        """An append did not fit."""
        if self.full is None:
            self.full = DiskProblem(self._clock.wall_ms(), why)
            log.error("disk full, appends are refused why=%s", why)

    def mark_writable(self) -> None:
        """An append did."""
        if self.full is not None:
            log.info("disk takes appends again after_ms=%d", self._clock.wall_ms() - self.full.since_ms)
            self.full = None

    def on_append_refused(self, error: Refused, hot: DiskLog) -> None:
        """A write to a log was refused, perhaps by the disk."""
        if error.code is Code.KAFKA_STORAGE_ERROR and hot.has_disk_failed:
            self.mark_dead(error.why)
        elif error.code is Code.KAFKA_STORAGE_ERROR:
            self.mark_full(error.why)

    async def flush(self, hot: DiskLog, up_to: int | None = None) -> int:
        """fsyncs a log, and notes what that proves of it; returns the flushed offset. `Unavailable`: a failed fsync
        ends the use of the directory, a full disk does not."""
        try:
            flushed = await hot.flush(up_to)
            if hot.synced_entry.is_due:
                await hot.update_synced_entry()
            return flushed
        except Unavailable as error:
            if error.final:
                self.mark_dead(str(error))
            else:
                self.mark_full(str(error))
            raise

    async def guard(self, work: Awaitable[None]) -> None:
        """Does something else in the directory. An I/O error ends its use, whatever it hit. `Unavailable`."""
        try:
            await work
        except Unavailable as error:
            if error.final:
                self.mark_dead(str(error))
            raise

    def mark_dead(self, why: str) -> None:
        """The directory may not be used any more."""
        if self.dead is None:
            self.dead = DiskProblem(self._clock.wall_ms(), why)
            log.critical("data directory is dead why=%s", why)
            self._on_dead(why)

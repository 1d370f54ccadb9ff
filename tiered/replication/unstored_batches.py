"""The log of a leader replica as its write-ahead chain sees it: the batches that are in no object yet."""

from __future__ import annotations

from tiered.errors import Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.replication.disk_state import DiskState
from tiered.replication.leader_state import LeaderState
from tiered.replication.unified_log import UnifiedLog


class UnstoredBatches:
    """Whole batches of a log from any offset of the disk on."""

    __slots__ = ("_disk", "_log", "_state", "_unified_log")

    def __init__(self, log: DiskLog, unified_log: UnifiedLog, state: LeaderState, disk: DiskState) -> None:
        self._log = log
        self._unified_log = unified_log
        self._state = state
        self._disk = disk

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def high_watermark(self) -> int:
        return self._state.high_watermark

    @property
    def cold_end_offset(self) -> int:
        tiered = self._log.config.remote_storage_enable
        return self._unified_log.cold_end_offset if tiered else self._unified_log.log_start_offset

    def read_batches(self, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Returns whole batches from `offset` on, and the offset after them; at least one batch. Raises `Unavailable`:
        the directory is not used any more if the disk has failed."""
        found = self._log.read(offset, max_bytes, end_offset=self._log.end_offset)
        assert found is not None, (offset, self._log.end_offset)
        try:
            return found.file.pread(found.start, found.length), self._log.last_read_end
        except Unavailable as error:
            if error.final:
                self._disk.mark_dead(str(error))
            raise

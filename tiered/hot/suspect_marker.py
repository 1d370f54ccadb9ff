"""The file that marks a log as suspect: it lost records to corruption, and the cluster may not know it yet (R1).

The file is durable before the records are truncated. Otherwise a crash after the truncation would hide the loss. Each
start finds the mark, until the cluster knows which records are missing.
"""

from __future__ import annotations

from tiered.hot import checkpoints
from tiered.hot.segment_files import SegmentFiles


class SuspectMarker:
    """The mark in the directory of one log."""

    __slots__ = ("_files",)

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files

    @property
    def is_set(self) -> bool:
        """True if the directory has the mark."""
        return self._files.disk.exists(f"{self._files.directory}/{checkpoints.SUSPECT_FILE}")

    async def set(self, why: str) -> None:
        """Marks the log durably. Raises `Unavailable`."""
        await checkpoints.save(self._files.disk, self._files.directory, checkpoints.SUSPECT_FILE, f"{why}\n".encode())

    async def clear(self) -> None:
        """Removes the mark durably. Raises `Unavailable`."""
        self._files.disk.remove(f"{self._files.directory}/{checkpoints.SUSPECT_FILE}")
        await self._files.disk.sync_dir(self._files.directory)

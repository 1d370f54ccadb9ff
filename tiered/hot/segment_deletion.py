"""Drops segments from the front of a log: out of the log at once, off the disk after a delay.

The files are renamed first, the log file before the rest, so that a start after a crash in the middle sees the segment
gone; a reader in their middle may finish.
"""

from __future__ import annotations

from collections import deque

from tiered.hot.log_writer import SUFFIXES, LogWriter

DELETED = ".deleted"


class SegmentDeletion:
    """The dropped segments of one log."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._renamed_files: deque[tuple[int, str]] = deque()
        """(renamed at, path), in order."""

    async def sync_producer_snapshot(self, offset: int) -> None:
        """What is known of producers where the log begins after `below` is durable: the segments that it was made from
        go, and a start after a power cut would know nobody who wrote them. `Unavailable`."""
        tail = self._writer
        kept = next((each for each in tail.segments if each.next_offset > offset), tail.active)
        path = tail.files.path(kept.base_offset, ".snapshot")
        if kept is not tail.segments[0] and tail.files.disk.exists(path):
            await tail.files.open(path).sync()
            await tail.files.disk.sync_dir(tail.files.directory)

    def drop_segments_below(self, offset: int, now_ms: int) -> int:
        """Drops closed segments that end at or below `offset`; returns how many."""
        tail, files, dropped = self._writer, self._writer.files, 0
        while len(tail.segments) > 1 and tail.segments[0].next_offset <= offset:
            segment = tail.segments.pop(0)
            tail.index.unmap(segment.base_offset)
            for suffix in SUFFIXES:
                path = files.path(segment.base_offset, suffix)
                if files.disk.exists(path):
                    files.forget(path)
                    files.disk.rename(path, path + DELETED)
                    self._renamed_files.append((now_ms, path + DELETED))
            dropped += 1
        if dropped:
            tail.rewrite_checkpoint()
        return dropped

    async def delete_files(self, renamed_before_ms: int) -> int:
        """Deletes what was renamed at or before that time; returns how many files."""
        count = 0
        while self._renamed_files and self._renamed_files[0][0] <= renamed_before_ms:
            await self._writer.files.disk.discard(self._renamed_files.popleft()[1])
            count += 1
        return count

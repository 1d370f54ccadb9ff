"""Drops segments from the start of a log: out of the log at once, off the disk after a delay.

Files are renamed first, the log file before the others: after a crash in the middle, a start finds the segment gone. A
reader inside the segment can finish.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.hot.log_writer import SUFFIXES, LogWriter
from tiered.hot.segments import Segment

DELETED = ".deleted"


class SegmentDeletion:
    """The dropped segments of one log whose files are not deleted yet."""

    __slots__ = ("_renamed_files", "_writer")

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._renamed_files: list[tuple[int, str]] | None = None
        """(time of the rename, path), in order. None before the first: an empty list takes memory in each idle log."""

    async def sync_producer_snapshot(self, offset: int) -> None:
        """Makes the producer snapshot at the next local start durable, before segments below `offset` are dropped.

        The snapshot was made from these segments: without both, a start after a power cut would not know their
        producers. Raises `Unavailable`.
        """
        writer = self._writer
        first_kept = next((each for each in writer.segments if each.next_offset > offset), writer.active)
        path = writer.files.path(first_kept.base_offset, ".snapshot")
        if first_kept is not writer.segments[0] and writer.files.disk.exists(path):
            await writer.files.open(path).sync()
            await writer.files.disk.sync_dir(writer.files.directory)

    def drop_segments_below(self, offset: int, now_ms: int) -> int:
        """Drops closed segments that end at or below `offset`. Returns how many."""
        writer, dropped = self._writer, 0
        while len(writer.segments) > 1 and writer.segments[0].next_offset <= offset:
            segment = writer.segments.pop(0)
            writer.index.unmap(segment.base_offset)
            writer.txn_index.drop(segment.base_offset)
            self._rename(segment, SUFFIXES, now_ms)
            dropped += 1
        if dropped:
            writer.rewrite_checkpoint()
        return dropped

    def retire(self, segments: Sequence[Segment], now_ms: int) -> None:
        """Renames the files of segments that a cleaned one replaces. Producer snapshots stay: they are of an offset."""
        for segment in segments:
            self._rename(segment, SUFFIXES[:-1], now_ms)

    def _rename(self, segment: Segment, suffixes: Sequence[str], now_ms: int) -> None:
        files = self._writer.files
        if self._renamed_files is None:
            self._renamed_files = []
        for suffix in suffixes:
            path = files.path(segment.base_offset, suffix)
            if files.disk.exists(path):
                files.forget(path)
                files.disk.rename(path, path + DELETED)
                self._renamed_files.append((now_ms, path + DELETED))

    async def delete_files(self, renamed_before_ms: int) -> int:
        """Deletes files that were renamed at or before `renamed_before_ms`. Returns how many."""
        count = 0
        while self._renamed_files and self._renamed_files[0][0] <= renamed_before_ms:
            await self._writer.files.disk.discard(self._renamed_files.pop(0)[1])
            count += 1
        return count

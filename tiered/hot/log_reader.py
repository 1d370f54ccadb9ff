"""Reads of one log: whole batches as slices of its files.

Caches the positions where readers continue, and the last read that reached the limit: consumers at the end of a log
mostly request the same. The cache keeps no file open.
"""

from __future__ import annotations

from tiered.errors import Corrupt
from tiered.hot.log_writer import LogWriter
from tiered.hot.segment_files import SegmentFiles
from tiered.hot.segment_index import SegmentIndex
from tiered.hot.segments import Segment, find_segment_number
from tiered.ports import FileSlice

HINTS_MAX = 64
_NO_READ = (-1, -1, -1, 0, 0)


class LogReader:
    """The look-up from offsets to bytes. Code that removes segments calls `clear_hints`."""

    __slots__ = ("_files", "_hints", "_index", "_last_read", "_writer", "next_offset")

    def __init__(self, writer: LogWriter, index: SegmentIndex, files: SegmentFiles) -> None:
        self._writer = writer
        self._index = index
        self._files = files
        self._hints: dict[int, tuple[Segment, int]] = {}
        """Offset -> position of the batch that begins with it: the next read of a reader that continues."""
        self._last_read = _NO_READ
        """Offset and limit of the last read that reached its limit; then base offset, position and size of its
        slice."""
        self.next_offset = 0
        """Offset after the records that the last `read` returned."""

    def clear_hints(self) -> None:
        """Clears the cache before segments are truncated or dropped."""
        self._hints.clear()
        self._last_read = _NO_READ

    def read(self, offset: int, max_bytes: int, limit: int) -> FileSlice | None:
        """Returns whole batches from the one that holds `offset`, which is below `limit`. See `DiskLog.read`."""
        last_offset, last_limit, base, position, size = self._last_read
        if offset == last_offset and limit == last_limit and size <= max_bytes:
            self.next_offset = limit
            return FileSlice(self._files.log_file(base), position, size)
        hint = self._hints.get(offset)
        if hint is not None and offset < hint[0].next_offset:
            segment, position = hint
        else:
            segment = find_segment(self._writer, offset)
            position = self._index.find_position(segment, offset)
            if position >= segment.size:
                segment, position = self._find_next_batch(segment), 0
        end, next_offset = segment.size, segment.next_offset
        if limit < next_offset:
            end, next_offset = self._index.find_position(segment, limit), limit
        if end - position > max_bytes:
            end, next_offset = self._index.find_last_batch_end(
                segment, position, min(end, position + max(max_bytes, 0))
            )
        if end <= position or next_offset > limit:
            return None
        if len(self._hints) >= HINTS_MAX:
            self._hints.clear()
        self._hints[next_offset] = (segment, end)
        self.next_offset = next_offset
        if next_offset == limit:
            self._last_read = (offset, limit, segment.base_offset, position, end - position)
        return FileSlice(self._files.log_file(segment.base_offset), position, end - position)

    def _find_next_batch(self, segment: Segment) -> Segment:
        """Returns the first segment after `segment` that has a batch, or the active one: compaction has removed what
        was at the end of `segment`."""
        segments = self._writer.segments
        number = find_segment_number(segments, segment.base_offset) + 1
        while number < len(segments) - 1 and not segments[number].size:
            number += 1
        return segments[min(number, len(segments) - 1)]


def find_segment(writer: LogWriter, offset: int) -> Segment:
    """Returns the segment that holds `offset`. Raises `Corrupt` if the offset is in a gap."""
    segment = writer.segments[find_segment_number(writer.segments, offset)]
    if offset >= segment.next_offset:
        why = f"offset {offset} is missing between two segments"
        raise Corrupt(why, where=writer.files.path(segment.base_offset, ".log"))
    return segment

"""The sparse indexes of a segment, as bytes in Kafka's formats.

Offset index: 8 bytes an entry, (offset - base offset, file position) of a batch; the offset is the *last* one of the
batch. Time index: 12 bytes an entry, (timestamp, offset - base offset): no record up to that offset has a later
timestamp. Both are hints: an entry counts only if the batch at its position has that last offset. Look-ups are binary
searches.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right

from tiered.ports import Buffer
from tiered.records.model import HEADER_BYTES

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
RELATIVE_MAX = 2**31 - 1
"""Limit on the offsets and on the bytes of a segment."""
FULL_BYTES_MIN = 64 << 10
"""Least size at which an index is full, whatever a topic sets: with an entry for each batch, some 5,000 batches. Else
the owner of a topic makes a segment of a few batches, with its files and its requests of the bucket."""
INTERVAL_MAX = 64 << 10
"""Limit on the interval in effect, whatever a topic sets. A look-up walks the batch headers between two entries, on the
event loop, so the interval bounds the look-up."""

_OFFSET_OF = struct.Struct(">i")
_POSITION_OF = struct.Struct(">4xi")
_TIMESTAMP_OF = struct.Struct(">q")


class IndexBuilder:
    """Both indexes of a growing segment.

    They depend only on the batches and on the interval. Therefore an index that is rebuilt from a log equals the
    original one.
    """

    __slots__ = (
        "_last_time",
        "base_offset",
        "interval",
        "max_timestamp",
        "max_timestamp_offset",
        "offsets",
        "times",
        "unindexed_bytes",
    )

    def __init__(self, base_offset: int, interval: int, offsets: Buffer = b"", times: Buffer = b"") -> None:
        self.base_offset = base_offset
        self.interval = min(interval, INTERVAL_MAX)
        self.offsets = bytearray(offsets)
        self.times = bytearray(times)
        self.unindexed_bytes = 0
        """Bytes of the log after the last offset entry."""
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self._last_time = -1
        if self.times:
            self.max_timestamp, relative = TIME_ENTRY.unpack_from(self.times, len(self.times) - TIME_ENTRY.size)
            self._last_time = self.max_timestamp
            self.max_timestamp_offset = base_offset + relative

    def add_batch(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Adds the batch of `size` bytes at `position`. A batch without records has no record with its timestamp."""
        if max_timestamp > self.max_timestamp and size > HEADER_BYTES:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.unindexed_bytes > self.interval:
            self.offsets += OFFSET_ENTRY.pack(last_offset - self.base_offset, position)
            self._add_time_entry()
            self.unindexed_bytes = 0
        self.unindexed_bytes += size

    def finish(self) -> None:
        """Adds the time entry of the greatest timestamp when the segment closes."""
        self._add_time_entry()

    def is_full(self, index_bytes: int) -> bool:
        """True if either index has reached `index_bytes`. Room for one time entry is reserved for `finish`."""
        index_bytes = max(index_bytes, FULL_BYTES_MIN)
        return (
            len(self.offsets) >= index_bytes // OFFSET_ENTRY.size * OFFSET_ENTRY.size
            or len(self.times) >= (index_bytes // TIME_ENTRY.size - 1) * TIME_ENTRY.size
        )

    def _add_time_entry(self) -> None:
        if self.max_timestamp > self._last_time:
            self.times += TIME_ENTRY.pack(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self._last_time = self.max_timestamp


def lookup_offset(offsets: Buffer, relative: int) -> tuple[int, int]:
    """Returns (relative last offset, position) of the last entry at or below `relative`, or (-1, 0) if there is none.

    The batch that holds the offset is at this position or after it.
    """
    at = bisect_right(range(len(offsets) // 8), relative, key=lambda i: _OFFSET_OF.unpack_from(offsets, i * 8)[0])
    return OFFSET_ENTRY.unpack_from(offsets, at * 8 - 8) if at else (-1, 0)


def lookup_position(offsets: Buffer, limit: int) -> int:
    """Returns the last indexed position <= `limit`, or 0. The search for the last whole batch below `limit` starts
    there."""
    at = bisect_right(range(len(offsets) // 8), limit, key=lambda i: _POSITION_OF.unpack_from(offsets, i * 8)[0])
    return _POSITION_OF.unpack_from(offsets, at * 8 - 8)[0] if at else 0


def lookup_timestamp(times: Buffer, timestamp: int) -> int:
    """Returns the relative offset of the last entry with an earlier timestamp, or -1.
    All records up to it are earlier."""
    at = bisect_left(range(len(times) // 12), timestamp, key=lambda i: _TIMESTAMP_OF.unpack_from(times, i * 12)[0])
    return TIME_ENTRY.unpack_from(times, at * 12 - 12)[1] if at else -1


def time_bytes_below(times: Buffer, relative: int) -> int:
    """Returns how many bytes of the time index to keep so that every entry's offset is below `relative`."""
    return 12 * bisect_left(range(len(times) // 12), relative, key=lambda i: TIME_ENTRY.unpack_from(times, i * 12)[1])


def valid_offset_bytes(offsets: Buffer, size: int) -> int:
    """Returns the size of the longest prefix that can be an offset index of a log of `size` bytes.

    Entries are whole, both columns strictly increase, and positions are inside the log. The rest was preallocated by
    the writer or torn by a crash.
    """
    offset, position, kept = -1, 0, 0
    whole = len(offsets) // 8 * 8
    for next_offset, next_position in OFFSET_ENTRY.iter_unpack(memoryview(offsets)[:whole]):
        if next_offset <= offset or not position < next_position < size:
            break
        offset, position, kept = next_offset, next_position, kept + 8
    return kept


def valid_time_bytes(times: Buffer) -> int:
    """Returns the size of the longest prefix that can be a time index: timestamps and offsets increase."""
    timestamp, offset, kept = -1, -1, 0
    whole = len(times) // 12 * 12
    for next_timestamp, next_offset in TIME_ENTRY.iter_unpack(memoryview(times)[:whole]):
        if next_timestamp <= timestamp or next_offset <= offset:
            break
        timestamp, offset, kept = next_timestamp, next_offset, kept + 12
    return kept


def rebase_indexes(offsets: Buffer, times: Buffer, first: int, position: int) -> tuple[bytes, bytes]:
    """Returns both indexes as if the segment began at relative offset `first` and file `position`, the start of a
    batch."""
    moved = [
        OFFSET_ENTRY.pack(offset - first, at - position)
        for offset, at in OFFSET_ENTRY.iter_unpack(offsets)
        if offset >= first and at > position
    ]
    later = [TIME_ENTRY.pack(time, offset - first) for time, offset in TIME_ENTRY.iter_unpack(times) if offset >= first]
    return b"".join(moved), b"".join(later)

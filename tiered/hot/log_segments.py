"""The segments of one log, for readers: sizes, look-ups by offset and time, and the data to upload.

Changes nothing: append, roll, truncation, deletion and swap change the segments that this file reads.
"""

from __future__ import annotations

from tiered.hot.log_reader import find_segment
from tiered.hot.log_writer import LogWriter
from tiered.hot.recovery import find_gaps
from tiered.hot.segment_index import CandidateBatch, HeaderBudget
from tiered.hot.segment_view import LogSegmentData, SegmentView, build_segment_data
from tiered.hot.segments import find_segment_number


class LogSegments:
    """The closed segments of a log, oldest first, and the active one after them (Kafka: LogSegments)."""

    __slots__ = ("_writer",)

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    @property
    def count(self) -> int:
        """Returns the number of segments, with the active one."""
        return len(self._writer.segments)

    @property
    def size_bytes(self) -> int:
        """Returns the total size of all log files."""
        return sum(segment.size for segment in self._writer.segments)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Returns offset ranges `[start, end)` that are missing between segments because of damage. A read there raises
        `Corrupt`."""
        return find_gaps(self._writer.segments)

    @property
    def active(self) -> SegmentView:
        """Returns the active segment as of now. `created_ms` has no meaning while the segment is empty."""
        return SegmentView.of(self._writer.active, self._writer.files)

    def closed(self, above: int = 0, limit: int | None = None) -> list[SegmentView]:
        """Returns the closed segments that end above an offset, oldest first; only the first `limit`, if it is set."""
        segments = self._writer.segments
        first = max(find_segment_number(segments, above), 0)
        if segments[first].next_offset <= above:
            first += 1
        end = len(segments) - 1 if limit is None else min(first + limit, len(segments) - 1)
        return [SegmentView.of(segment, self._writer.files) for segment in segments[first:end]]

    def created_ms(self, offset: int) -> int:
        """Returns when the segment that holds `offset` got its first batch, by the broker's clock."""
        segments = self._writer.segments
        return segments[max(find_segment_number(segments, offset), 0)].created_ms

    def data(self, base_offset: int, *, from_offset: int | None = None) -> LogSegmentData:
        """Returns all data that is uploaded with the closed segment at `base_offset`.

        The data starts at the batch that holds `from_offset`, if an earlier upload ended inside the segment.
        """
        return build_segment_data(self._writer, find_segment(self._writer, base_offset), from_offset)

    def find_batch_by_time(self, timestamp: int, offset: int, headers: HeaderBudget) -> CandidateBatch | None:
        """Returns the first batch that ends at or after `offset` and whose header names a timestamp of at least
        `timestamp` (ms).

        This is one step of a look-up by time (`time_lookup.py`).
        """
        return self._writer.index.find_batch_by_time(self._writer.segments, timestamp, offset, headers)

    def bound_timestamps(
        self, start: int, end: int, before: int, headers: HeaderBudget
    ) -> tuple[int, list[CandidateBatch]]:
        """Returns a bound on the timestamps of the records in `[start, end)` that are earlier than `before` (ms), and
        the batches that may have later ones."""
        return self._writer.index.bound_timestamps(self._writer.segments, start, end, before, headers)

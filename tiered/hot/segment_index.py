"""Look-ups inside the segments of one log: positions by offset, by size and by time.

Indexes of a closed segment are mapped read-only. The indexes are used only if their lengths and CRCs match the
segment's `index_checksums`. Otherwise they are rebuilt from the batch headers of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.hot.index import INTERVAL_MAX, IndexBuilder, lookup_offset, lookup_position, lookup_timestamp
from tiered.hot.segment_files import BatchPosition, SegmentFiles
from tiered.hot.segments import IndexChecksums, Segment
from tiered.metrics import Metrics
from tiered.ports import Buffer
from tiered.records.model import HEADER_BYTES

log = logging.getLogger(__name__)

MAPPED_MAX = 4
"""Limit on the closed segments of one log whose indexes stay mapped."""
HEADERS_MAX = 20_000
"""Limit on the headers that the look-ups by time of one request read beyond `INDEXED_HEADERS` for each step: some
milliseconds."""
INDEXED_HEADERS = INTERVAL_MAX // HEADER_BYTES + 1
"""Headers that may lie between two index entries: any step of a look-up may read as many."""


class HeaderBudget:
    """Headers that the look-ups by time of one request may still read."""

    def __init__(self) -> None:
        self._left = HEADERS_MAX

    def begin_step(self) -> int:
        """Returns how many headers the next step may read."""
        return INDEXED_HEADERS + self._left

    def end_step(self, left: int) -> None:
        """Takes off what a step has read, when `left` are left of what it was allowed."""
        self._left = max(0, min(self._left, left))


class CandidateBatch(NamedTuple):
    """A batch whose header names a timestamp that is late enough.

    `read` returns the first bytes of the batch, as many as requested, in any thread. It is None if the look-up ended
    before the batch. So a look-up that waits keeps no batch in memory.
    """

    base_offset: int
    last_offset: int
    max_timestamp: int
    size: int
    read: Callable[[int], Buffer] | None


class SegmentIndex:
    """Look-ups in all segments of one log. The active segment has its indexes in memory (`set_active`)."""

    __slots__ = ("_active", "_builder", "_files", "_mapped", "_rebuilt", "may_have_gaps")

    def __init__(self, files: SegmentFiles, metrics: Metrics) -> None:
        self._files = files
        self._mapped: dict[int, tuple[Buffer, Buffer]] = {}
        """Mapped indexes, least recently used first."""
        self.may_have_gaps = False
        """Compaction may have removed offsets of the log: an offset may belong to no batch."""
        self._active = -1
        self._builder = IndexBuilder(0, 0)
        self._rebuilt = metrics.counter("tiered_log_index_rebuilds_total", "Indexes that did not prove themselves.")

    def set_active(self, base_offset: int, builder: IndexBuilder) -> None:
        self._active, self._builder = base_offset, builder
        self._mapped.pop(base_offset, None)

    def unmap(self, base_offset: int) -> None:
        self._mapped.pop(base_offset, None)

    def indexes(self, segment: Segment) -> tuple[Buffer, Buffer]:
        """Returns (offset index, time index) of a segment."""
        base = segment.base_offset
        if base == self._active:
            return self._builder.offsets, self._builder.times
        mapped = self._mapped.pop(base, None) or self._map_verified(segment)
        self._mapped[base] = mapped
        if len(self._mapped) > MAPPED_MAX:
            del self._mapped[next(iter(self._mapped))]
        return mapped

    def find_position(self, segment: Segment, offset: int) -> int:
        """Returns the position of the batch that holds `offset`, or of the first one after it.

        Returns the segment's size if `offset` is after the last batch, which compaction may have moved forward.
        """
        if offset >= segment.next_offset:
            return segment.size
        start = lookup_offset(self.indexes(segment)[0], offset - segment.base_offset)[1]
        for batch in self._files.walk_positions(segment.base_offset, start, segment.size):
            if batch.last_offset >= offset:
                return batch.position
        if self.may_have_gaps:
            return segment.size
        raise Corrupt(
            f"offset {offset} is not at the position in the index", where=self._files.path(segment.base_offset, "")
        )

    def find_last_batch_end(self, segment: Segment, position: int, limit: int) -> tuple[int, int]:
        """Returns (end, next offset) of the last whole batch that ends at or below byte `limit`.

        The batch at `position` is always included.
        """
        start = max(position, lookup_position(self.indexes(segment)[0], limit))
        end, next_offset = start, segment.base_offset
        for batch in self._files.walk_positions(segment.base_offset, start, segment.size):
            if batch.position + batch.size > limit and batch.position > position:
                return batch.position, batch.base_offset
            end, next_offset = batch.position + batch.size, batch.last_offset + 1
        return end, next_offset

    def find_batch_by_time(
        self, segments: Sequence[Segment], timestamp: int, start_offset: int, headers: HeaderBudget
    ) -> CandidateBatch | None:
        """Returns the first batch that ends at or after `start_offset` and whose header names a timestamp >=
        `timestamp`. The last batch before it whose greatest timestamp is unset comes first: it may have such a record.

        When `headers` are used up, the look-up ends: it returns the batch that it has reached, which is not to be read.
        """
        left, unset = headers.begin_step(), None
        for number, segment in enumerate(segments):
            if segment.next_offset <= start_offset:
                continue
            if segment.max_timestamp < timestamp and not self._may_be_late(segments[number : number + 2], timestamp):
                continue
            offsets, times = self.indexes(segment)
            relative = max(lookup_timestamp(times, timestamp), start_offset - 1 - segment.base_offset)
            position = lookup_offset(offsets, relative)[1] if relative >= 0 else 0
            for batch in self._files.walk_positions(segment.base_offset, position, segment.size):
                left -= 1
                is_early = batch.max_timestamp < timestamp or batch.size == HEADER_BYTES
                if batch.last_offset < start_offset:
                    continue
                if is_early and left > 0:
                    unset = self._candidate(segment, batch) if batch.is_time_unset else unset
                    continue
                headers.end_step(left)
                reached = self._candidate(segment, batch)
                return unset or (reached if left > 0 else reached._replace(read=None))
        headers.end_step(left)
        return unset

    def _may_be_late(self, segments: Sequence[Segment], timestamp: int) -> bool:
        """True if the first of these segments may have a record at or after `timestamp`, although its greatest
        timestamp is earlier: headers leave it unset. Then the segment ends about when the next one begins."""
        if segments[0].max_timestamp >= 0 or self._first_timestamp(segments[0]) < 0:
            return False
        return len(segments) == 1 or not 0 <= self._first_timestamp(segments[1]) < timestamp

    def _first_timestamp(self, segment: Segment) -> int:
        """Returns the timestamp that the first batch of a segment names; -1 if there is none."""
        first = next(self._files.walk_positions(segment.base_offset, 0, segment.size), None)
        return first.max_timestamp if first is not None else -1

    def _candidate(self, segment: Segment, batch: BatchPosition) -> CandidateBatch:
        read = partial(self._files.log_file(segment.base_offset).pread, batch.position)
        return CandidateBatch(batch.base_offset, batch.last_offset, batch.max_timestamp, batch.size, read)

    def bound_timestamps(
        self, segments: Sequence[Segment], start: int, end: int, before: int, headers: HeaderBudget
    ) -> tuple[int, list[CandidateBatch]]:
        """Returns a bound on the timestamps of the records in `[start, end)` that are earlier than `before`, and the
        batches that name a later one: their records are to be read. The latest batch whose greatest timestamp is unset
        is among them.

        A segment is bounded by its greatest timestamp if that is below `before`. Otherwise its headers are read, as
        long as `headers` last.
        """
        newest, unsure, left = -1, list[CandidateBatch](), headers.begin_step()
        unset: CandidateBatch | None = None
        for segment in segments:
            if segment.next_offset <= start or segment.base_offset >= end:
                continue
            if segment.max_timestamp < before and not self._may_be_late([segment], before):
                newest = max(newest, segment.max_timestamp)
                continue
            position = self.find_position(segment, max(start, segment.base_offset))
            for batch in self._files.walk_positions(segment.base_offset, position, segment.size):
                left -= 1
                if left <= 0 or batch.base_offset >= end:
                    break
                if batch.max_timestamp < before:
                    newest = max(newest, batch.max_timestamp if batch.size > HEADER_BYTES else -1)
                    if batch.is_time_unset and (unset is None or batch.max_timestamp >= unset.max_timestamp):
                        unset = self._candidate(segment, batch)
                elif batch.size > HEADER_BYTES:
                    unsure.append(self._candidate(segment, batch))
        headers.end_step(left)
        return newest, [unset, *unsure] if unset is not None else unsure

    def _map_verified(self, segment: Segment) -> tuple[Buffer, Buffer]:
        if segment.index_checksums is not None:
            offsets, times = self._map(segment.base_offset)
            if IndexChecksums.of(offsets, times) == segment.index_checksums:
                return offsets, times
        self._rebuild(segment)
        return self._map(segment.base_offset)

    def _map(self, base_offset: int) -> tuple[Buffer, Buffer]:
        files = self._files
        return files.map(files.path(base_offset, ".index")), files.map(files.path(base_offset, ".timeindex"))

    def _rebuild(self, segment: Segment) -> None:
        log.warning("index is rebuilt from the log directory=%s base=%d", self._files.directory, segment.base_offset)
        self._rebuilt.inc()
        builder = IndexBuilder(segment.base_offset, self._builder.interval)
        for batch in self._files.walk_positions(segment.base_offset, 0, segment.size):
            if batch.last_offset >= segment.next_offset:
                where = self._files.path(segment.base_offset, ".log")
                raise Corrupt(f"offset {batch.last_offset} is of another segment", where=where, position=batch.position)
            builder.add_batch(batch.position, batch.size, batch.last_offset, batch.max_timestamp)
        builder.finish()
        self._files.replace(self._files.path(segment.base_offset, ".timeindex"), bytes(builder.times))
        self._files.replace(self._files.path(segment.base_offset, ".index"), bytes(builder.offsets))
        segment.index_checksums = IndexChecksums.of(builder.offsets, builder.times)

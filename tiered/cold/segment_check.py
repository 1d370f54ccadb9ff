"""Checks a local segment batch by batch before its upload, so that a corrupt copy never becomes the only one (I20)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from tiered.cold.layout import SegmentFacts
from tiered.errors import Corrupt
from tiered.hot.leader_epochs import Lineage
from tiered.ports import FileSlice
from tiered.records.model import NO_TIMESTAMP, WalkedBatch
from tiered.records.native import crc32c, walk

PIECE_BYTES = 512 << 10
"""Bytes that one turn of the event loop checks: less than 10 ms even with the smallest batches."""


class ClosedSegment(Protocol):
    """A local segment that gets no more records."""

    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def log(self) -> FileSlice: ...


async def check_segment(
    segment: ClosedSegment, from_offset: int, *, may_begin_before: bool
) -> tuple[FileSlice, SegmentFacts, Lineage]:
    """Checks every batch of a local segment, and the order of offsets.

    Returns the part from the batch that holds `from_offset`, its `SegmentFacts`, and its lineage. The part is of the
    file that was checked: a clean on the disk may put another one in its place meanwhile. The lineage of the log may
    begin inside that batch, at the log start, so it cannot be used.

    Raises `Corrupt` if a batch is invalid. Also raises it if `from_offset` is inside a batch and `may_begin_before` is
    false: the earlier part of that batch is cold already.
    """
    check = _SegmentCheck(segment, from_offset)
    position = 0
    while position < check.log.length:
        position += check.check_piece(position)
        await asyncio.sleep(0)  # a piece is read from the page cache and checked without a wait
    return check.finish(may_begin_before)


class _SegmentCheck:
    """The running state of `check_segment`: the sums over the batches so far."""

    def __init__(self, segment: ClosedSegment, from_offset: int) -> None:
        self.log = segment.log
        self._next_offset = segment.next_offset
        self._where = self.log.file.name
        self._from_offset = from_offset
        self._first: WalkedBatch | None = None
        self._start_position = 0
        self._last_offset = segment.base_offset - 1
        self._base_timestamp = self._max_timestamp = NO_TIMESTAMP
        self._is_time_unset = False
        self._records = 0
        self._lineage: list[tuple[int, int]] = []
        self._crc = 0

    def check_piece(self, position: int) -> int:
        """Checks the whole batches of one piece at `position`. Returns their bytes."""
        length = min(PIECE_BYTES, self.log.length - position)
        data = self.log.file.pread(self.log.start + position, length)
        found = walk(data)
        if found.why == "short" and not found.batches:
            length = self._size_at(data, position)
            data = self.log.file.pread(self.log.start + position, length)
            found = walk(data)
        if found.why not in ("", "short") or not found.batches:
            raise Corrupt(found.why or "log ends early", where=self._where, position=position + found.end)
        skipped = self._count_below_start(found.batches)
        self._add_batches(found.batches[skipped:], position)
        begin = found.batches[skipped].position if skipped < len(found.batches) else found.end
        self._crc = crc32c(memoryview(data)[begin : found.end], self._crc)
        return found.end

    def _size_at(self, data: bytes, position: int) -> int:
        """Returns the size of the batch at the start of `data`, which is larger than a piece."""
        size = 12 + int.from_bytes(data[8:12], "big") if len(data) >= 12 else 0
        if not len(data) < size <= self.log.length - position:
            raise Corrupt("log ends inside a batch", where=self._where, position=position)
        return size

    def _count_below_start(self, batches: Sequence[WalkedBatch]) -> int:
        """Returns how many of these batches end below the requested offset."""
        if self._first is not None:
            return 0
        return sum(1 for batch in batches if batch.last_offset < self._from_offset)

    def _add_batches(self, batches: Sequence[WalkedBatch], position: int) -> None:
        if not batches:
            return
        if self._first is None:
            self._first, self._start_position = batches[0], position + batches[0].position
        for batch in batches:
            if batch.base_offset <= self._last_offset:
                raise Corrupt("offsets do not increase", where=self._where, position=position + batch.position)
            if not self._lineage or self._lineage[-1][0] != batch.leader_epoch:
                self._lineage.append((batch.leader_epoch, batch.base_offset))
            self._last_offset = batch.last_offset
            self._records += batch.count
            self._is_time_unset |= batch.is_time_unset
            if self._base_timestamp < 0 and batch.count:
                self._base_timestamp = batch.first_timestamp
        self._max_timestamp = max(self._max_timestamp, max(batch.max_timestamp for batch in batches))

    def finish(self, may_begin_before: bool) -> tuple[FileSlice, SegmentFacts, Lineage]:
        """Returns the checked part, its facts and its lineage, once all pieces are checked."""
        first = self._first
        if first is None or self._last_offset >= self._next_offset:
            raise Corrupt("segment has other offsets than its log says", where=self._where)
        if first.base_offset < self._from_offset and not may_begin_before:
            raise Corrupt(
                f"offset {self._from_offset} is inside a batch", where=self._where, position=self._start_position
            )
        base_offset = min(first.base_offset, self._from_offset)
        facts = SegmentFacts(
            base_offset=base_offset,
            next_offset=self._next_offset,
            base_timestamp=self._base_timestamp,
            max_timestamp=NO_TIMESTAMP if self._is_time_unset else self._max_timestamp,
            record_count=self._records,
            log_bytes=self.log.length - self._start_position,
            crc=self._crc,
        )
        part = FileSlice(self.log.file, self.log.start + self._start_position, facts.log_bytes)
        return part, facts, ((first.leader_epoch, base_offset), *self._lineage[1:])

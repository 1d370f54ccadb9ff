"""The transaction index of one log: its aborted transactions, by the segment that has their marker (I14).

A segment without an aborted transaction has no index file, and costs a reader nothing. The index of a closed segment is
mapped read-only and proves itself by length and CRC; otherwise it is rebuilt from the log. The newest entries of the
active segment are in memory. The writer closes a segment once its index has `INDEX_BYTES_MAX` bytes, so that no index
is large.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence

from tiered.errors import Corrupt, Unavailable
from tiered.hot.producer_recovery import replay_aborted_txns
from tiered.hot.segment_files import SegmentFiles
from tiered.hot.segments import Segment, find_segment_number
from tiered.ports import Buffer
from tiered.producers.aborted_txns import (
    MAX_OFFSET,
    AbortedTxn,
    FoundTxns,
    encode_aborted_txns,
    find_in_entries,
    find_in_index,
)
from tiered.records.native import crc32c

log = logging.getLogger(__name__)

SUFFIX = ".txnindex"
INDEX_BYTES_MAX = 1 << 20
"""From this size of its index on a segment is closed."""
MAPPED_MAX = 4
"""Limit on the closed segments of one log whose index stays mapped."""
RECENT_MAX = 256
"""Limit on the newest entries of the active segment that are in memory."""


class TransactionIndex:
    """Aborted transactions of one log. `bases` are the base offsets of the segments that have any, in order."""

    __slots__ = ("_damaged", "_files", "_mapped", "_producers_max", "_recent", "_recent_from", "bases", "unwritten")

    def __init__(self, files: SegmentFiles, segments: Sequence[Segment], producers_max: int) -> None:
        self._files = files
        self._producers_max = producers_max
        # Most logs have no aborted transaction: what is empty takes no memory of its own.
        self._mapped: dict[int, Buffer] | None = None
        """Mapped indexes, least recently used first."""
        self.bases: Sequence[int] = tuple(segment.base_offset for segment in segments if segment.txn_index_bytes)
        self.unwritten: bytes | bytearray = b""
        """Entries of the active segment that are not in its file yet."""
        self._damaged: dict[int, str] | None = None
        """The reason why the index of a segment cannot be rebuilt: nobody reads the segment for it again."""
        self._recent: list[AbortedTxn] | None = None
        self._recent_from = segments[-1].next_offset
        """All entries of the active segment whose marker is at or above this offset are in `_recent`."""

    # -- growing ------------------------------------------------------------------------------------------------------

    def set_active(self, segment: Segment) -> None:
        """Makes `segment` the active one. Everything is written."""
        if self._mapped:
            self._mapped.pop(segment.base_offset, None)
        self._recent, self._recent_from = None, segment.next_offset

    def add(self, active: Segment, aborted: AbortedTxn) -> None:
        """Adds the entry of a marker that is in the log. `write` brings it to the file."""
        entry = aborted.encode()
        if not self.unwritten:
            self.unwritten = bytearray()
        self.unwritten += entry
        active.txn_index_bytes += len(entry)
        active.txn_index_crc = crc32c(entry, active.txn_index_crc)
        if not self.bases or self.bases[-1] != active.base_offset:
            self.bases = (*self.bases, active.base_offset)
        if self._recent is None:
            self._recent = []
        self._recent.append(aborted)
        if len(self._recent) > RECENT_MAX:
            del self._recent[: RECENT_MAX // 2]
            self._recent_from = self._recent[0].last_offset

    def write(self, active: Segment) -> None:
        """Writes the entries that are not in the file yet. Raises `Unavailable`: then none of them is."""
        if self.unwritten:
            self._files.open(self._files.path(active.base_offset, SUFFIX), create=True).append([self.unwritten])
            self.unwritten = b""

    def replace(self, segment: Segment, entries: Sequence[AbortedTxn]) -> None:
        """Replaces all entries of a segment, after a truncation or a rebuild."""
        self.drop(segment.base_offset)
        write_index(self._files, segment, entries)
        if entries:
            self.bases = tuple(sorted((*self.bases, segment.base_offset)))

    def drop(self, base_offset: int) -> None:
        """Forgets the entries of a segment that is removed. Its file is left to the caller."""
        if self._mapped:
            self._mapped.pop(base_offset, None)
        if self._damaged:
            self._damaged.pop(base_offset, None)
        if base_offset in self.bases:
            if base_offset == self.bases[-1]:
                self.unwritten = b""
            self.bases = tuple(base for base in self.bases if base != base_offset)

    # -- reading ------------------------------------------------------------------------------------------------------

    def find(self, segments: Sequence[Segment], offset: int, end: int) -> list[AbortedTxn]:
        """Returns the aborted transactions with records in `[offset, end)`, which is below the last stable offset.

        Kafka's rule: an entry is in the index of the segment that has its marker, so the search goes on until an entry
        has a last stable offset at or above `end`. Raises `Corrupt` if an index is wrong and cannot be rebuilt.
        """
        found: list[AbortedTxn] = []
        first = segments[max(find_segment_number(segments, offset), 0)].base_offset
        for base in self.bases[bisect_left(self.bases, first) :]:
            segment = segments[find_segment_number(segments, base)]
            aborted, is_complete = self._find_in_segment(segments, segment, offset, end)
            found += aborted
            if is_complete:
                break
        return found

    def list_entries(self, segments: Sequence[Segment], segment: Segment) -> list[AbortedTxn]:
        """Returns all entries of one segment. Raises `Corrupt` if its index is wrong and cannot be rebuilt."""
        if segment.base_offset not in self.bases:
            return []
        written = self._files.read(self._files.path(segment.base_offset, SUFFIX)) or b""
        unwritten = bytes(self.unwritten) if segment is segments[-1] else b""
        return find_in_index(self._check_index(segments, segment, written + unwritten), 0, MAX_OFFSET).aborted

    def _find_in_segment(self, segments: Sequence[Segment], segment: Segment, offset: int, end: int) -> FoundTxns:
        if segment is segments[-1]:
            if offset >= self._recent_from:
                return find_in_entries(self._recent or (), offset, end)
            written = self._files.read(self._files.path(segment.base_offset, SUFFIX)) or b""
            return find_in_index(self._check_index(segments, segment, written + bytes(self.unwritten)), offset, end)
        if self._mapped is None:
            self._mapped = {}
        index = self._mapped.pop(segment.base_offset, None)
        if index is None:
            mapped = self._files.map(self._files.path(segment.base_offset, SUFFIX))
            index = self._check_index(segments, segment, mapped)
        self._mapped[segment.base_offset] = index
        if len(self._mapped) > MAPPED_MAX:
            del self._mapped[next(iter(self._mapped))]
        return find_in_index(index, offset, end)

    def _check_index(self, segments: Sequence[Segment], segment: Segment, index: Buffer) -> Buffer:
        """Returns the index if it is as it was written, else the one that the log has."""
        if len(index) == segment.txn_index_bytes and crc32c(index) == segment.txn_index_crc:
            return index
        base = segment.base_offset
        if self._damaged and base in self._damaged:
            raise Corrupt(self._damaged[base], where=self._files.path(base, SUFFIX))
        log.warning(
            "transaction index is rebuilt from the log directory=%s base=%d", self._files.directory, segment.base_offset
        )
        try:
            entries = replay_aborted_txns(self._files, segments, segment, self._producers_max)
        except Corrupt as error:
            self._damaged = {**(self._damaged or {}), base: str(error)}
            raise
        try:
            write_index(self._files, segment, entries)
        except Unavailable as error:
            log.warning("rebuilt transaction index is not written directory=%s error=%s", self._files.directory, error)
        else:
            if segment is segments[-1]:
                self.unwritten = b""
        return encode_aborted_txns(entries)


def write_index(files: SegmentFiles, segment: Segment, entries: Sequence[AbortedTxn]) -> None:
    """Replaces the index of a segment; without entries there is no file."""
    data, path = encode_aborted_txns(entries), files.path(segment.base_offset, SUFFIX)
    if data:
        files.replace(path, data)
    else:
        files.remove(path)
    segment.txn_index_bytes, segment.txn_index_crc = len(data), crc32c(data)

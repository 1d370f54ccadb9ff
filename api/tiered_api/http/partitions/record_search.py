"""A search for the records of a filter in record batches: only batches that have its texts are decoded."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.records.aborted import AbortedTransaction, AbortedTransactions
from tiered.records.batch import decode_header
from tiered.records.model import CODEC_MASK, CONTROL, HEADER_BYTES, Record, WalkedBatch
from tiered.records.native import find_text, walk
from tiered.records.pieces import RECORD_BYTES, WHOLE_BYTES_MAX, open_whole
from tiered_api.http.exchange.errors import CONVERSION_FAILED, HttpError
from tiered_api.http.partitions.reads import OBJECTS_MAX, WALK_BATCHES, DecodedBatch, read_batch, read_marker
from tiered_api.http.partitions.record_filter import RecordFilter

OPENED_BYTES_MAX = 64 << 20
"""Decompressed bytes after which a search ends, and the next request goes on: threads take some 100 ms for them."""


class LastRecords(NamedTuple):
    """Records of a stretch of offsets, the last one first."""

    batches: list[DecodedBatch]
    searched_from: int
    """All wanted records of the stretch from this offset on are in `batches`."""
    covered: int
    """The end of the stretch; or an offset before it up to which batches were looked at: nothing is found then."""
    size: int
    """Bytes of the batches that were looked at."""


class RecordSearch:
    """One search through the batches of `data`. `scanned` says how many records were looked at, before this search
    too. Control batches are empty without `with_control`, which is for a filter that every record fits."""

    def __init__(self, data: bytes, wanted: RecordFilter, scanned: int = 0, with_control: bool = False) -> None:
        self.scanned = scanned
        self._data = data
        self._wanted = wanted
        self._with_control = with_control
        self._texts = wanted.texts()
        self._found_at = {text: 0 for group in self._texts for text in group}
        """The next place of each text, at or behind the last batch that was looked at; -1 if there is none."""
        self._opened_bytes = 0

    def find_records(
        self, offset: int, most: int, room: int, aborted: Sequence[AbortedTransaction] = (), objects: int = OBJECTS_MAX
    ) -> Iterator[DecodedBatch]:
        """Yields, for each batch, the records from `offset` on that are wanted: `most` in all. Control batches, and
        those of the `aborted` transactions, are empty.

        Ends within a batch that exceeds `room` decompressed bytes or `objects` records and headers, and before one that
        cannot be read. Raises `Corrupt` and `TooLarge` if that is the first one.
        """
        for batch, is_hidden in self._walk(aborted):
            if most <= 0 or self._opened_bytes >= OPENED_BYTES_MAX:
                return
            found, is_whole = _empty(batch), True
            try:
                if not is_hidden:
                    found, is_whole = self._search(batch, offset, most, room, objects)
            except Corrupt:
                if batch.position:  # the next read begins here and tells it
                    return
                raise
            yield found
            most -= len(found.records)
            if not is_whole:
                return

    def find_last(
        self,
        start: int,
        end: int,
        most: int,
        room: int,
        aborted: Sequence[AbortedTransaction] = (),
        objects: int = OBJECTS_MAX,
    ) -> LastRecords:
        """Returns the last records from `start` to `end`, `end` excluded, that are wanted: `most` in all, and of `room`
        bytes together unless one alone is longer. Batches are decoded from the last one on, until these are found.

        Finds nothing if the data ends, or becomes too much when it is opened, before `end`. Raises `Corrupt` and
        `TooLarge` for a batch that cannot be read, and `HttpError` 422 for one that is opened in too many pieces.
        """
        seen, covered, looked = list[tuple[WalkedBatch, bool]](), start, 0
        for batch, is_hidden in self._walk(aborted):
            if batch.base_offset >= end:
                covered = end
                break
            if self._opened_bytes >= OPENED_BYTES_MAX:
                break
            seen.append((batch, not is_hidden and self._may_fit(batch)))
            covered, looked = batch.last_offset + 1, batch.position + batch.size
        if seen and covered < end:
            return LastRecords([], start, covered, looked)
        batches, searched_from, piece = list[DecodedBatch](), start, room
        for batch, may_fit in reversed(seen):
            first = max(start, batch.base_offset)
            if not may_fit:
                self.scanned += max(0, min(batch.count, min(end, batch.last_offset + 1) - first))
                continue
            offsets, rows = self._open_to(batch, first, end, most, room, piece, objects)
            taken = list[Record]()
            for row in reversed(rows):
                size = _size(row)
                if most <= 0 or (size > room and (taken or batches)):
                    first = searched_from = row.offset + 1
                    break
                taken.append(row)
                most, room = most - 1, room - size
            self.scanned += len(offsets) - bisect_left(offsets, first)
            if taken:
                head = decode_header(self._data, batch.position)
                marker = read_marker(self._data, batch.position, head) if head.is_control else None
                batches.append(DecodedBatch(batch.leader_epoch, batch.last_offset + 1, taken, marker=marker))
            if len(taken) < len(rows):
                break
            if most <= 0:
                searched_from = first
                break
        return LastRecords(batches, searched_from, end, looked)

    def _open_to(
        self, batch: WalkedBatch, start: int, end: int, most: int, room: int, piece: int, objects: int
    ) -> tuple[array[int], Sequence[Record]]:
        """Returns the offsets of a batch from `start` to `end`, and its last records that are wanted: enough of them to
        tell that there are more than `most`, or more than `room` bytes. Decodes `piece` bytes at a time."""
        offsets, rows, held, opened = array("q"), deque[Record](), 0, 0
        head, is_whole, at = decode_header(self._data, batch.position), False, start
        while not is_whole and at < end:
            if opened >= OPENED_BYTES_MAX:
                why = f"the batch at offset {head.base_offset} is too large to be searched from its end"
                raise HttpError(CONVERSION_FAILED, f"{why}: search with offset={start}, without before")
            made, is_whole = read_batch(self._data, batch.position, head, at, piece, objects)
            known = [row for row in made if row.offset < end]
            offsets.extend(row.offset for row in known)
            for row in filter(self._wanted.fits, known):
                rows.append(row)
                held += _size(row)
                while len(rows) > most + 1 or (len(rows) > 1 and held - _size(rows[0]) > room):
                    held -= _size(rows.popleft())
            opened += sum(map(_size, made))
            at = made[-1].offset + 1 if made else end
        return offsets, rows

    def _walk(self, aborted: Sequence[AbortedTransaction]) -> Iterator[tuple[WalkedBatch, bool]]:
        """Yields each batch, and True if its records are hidden: one of the `aborted` transactions, or a control batch
        that is not wanted.
        Ends before a batch that cannot be read. Raises `Corrupt` if that is the first one."""
        at, transactions = 0, AbortedTransactions(aborted)
        while at < len(self._data):
            walked = walk(self._data, at, max_batches=WALK_BATCHES)
            for batch in walked.batches:
                is_unwanted = bool(batch.attributes & CONTROL) and not self._with_control
                yield batch, transactions.has_batch(batch) or is_unwanted
            if walked.why:
                if not walked.end:
                    raise Corrupt(walked.why, position=0)
                return
            at = walked.end

    def _search(self, batch: WalkedBatch, offset: int, most: int, room: int, objects: int) -> tuple[DecodedBatch, bool]:
        """Returns the records of a batch that are wanted, and False if the search ends within the batch."""
        known = min(batch.count, batch.last_offset + 1 - max(offset, batch.base_offset))
        if not self._may_fit(batch):
            self.scanned += max(0, known)
            return _empty(batch), True
        head = decode_header(self._data, batch.position)
        rows, is_whole = read_batch(self._data, batch.position, head, offset, room, objects)
        found = list(filter(self._wanted.fits, rows))
        ends = batch.last_offset + 1 if is_whole else rows[-1].offset + 1
        if len(found) > most:
            found, is_whole = found[:most], False
            ends = found[-1].offset + 1
        self.scanned += sum(row.offset < ends for row in rows)
        return DecodedBatch(batch.leader_epoch, ends, found), is_whole

    def _may_fit(self, batch: WalkedBatch) -> bool:
        """False if no record of the batch is wanted. A batch that takes much memory when it is opened may have some:
        its records are decoded in pieces."""
        if not self._texts:
            return True
        start = batch.position + HEADER_BYTES
        if batch.attributes & CODEC_MASK:
            opened = open_whole(self._data, batch.position, decode_header(self._data, batch.position), WHOLE_BYTES_MAX)
            if opened is None:
                return True
            self._opened_bytes += len(opened)
            return all(any(find_text(opened, text, 0) >= 0 for text in group) for group in self._texts)
        return all(
            any(self._is_between(text, start, batch.position + batch.size) for text in group) for group in self._texts
        )

    def _is_between(self, text: bytes, start: int, end: int) -> bool:
        """True if the data has the text from `start` on, and before `end`. `start` never goes back."""
        if 0 <= self._found_at[text] < start:
            self._found_at[text] = find_text(self._data, text, start)
        return 0 <= self._found_at[text] < end


def _size(record: Record) -> int:
    """Returns the bytes of a record."""
    headers = sum(RECORD_BYTES + len(name) + len(value or b"") for name, value in record.headers)
    return RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


def _empty(batch: WalkedBatch) -> DecodedBatch:
    return DecodedBatch(batch.leader_epoch, batch.last_offset + 1, [])

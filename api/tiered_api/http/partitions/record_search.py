"""A search for the records of a filter in record batches: only batches that have its texts are decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tiered.errors import Corrupt
from tiered.records.aborted import AbortedTransaction, AbortedTransactions
from tiered.records.batch import decode_header
from tiered.records.model import CODEC_MASK, CONTROL, HEADER_BYTES, WalkedBatch
from tiered.records.native import find_text, walk
from tiered.records.pieces import WHOLE_BYTES_MAX, open_whole
from tiered_api.http.partitions.reads import OBJECTS_MAX, WALK_BATCHES, DecodedBatch, read_batch
from tiered_api.http.partitions.record_filter import RecordFilter

OPENED_BYTES_MAX = 64 << 20
"""Decompressed bytes after which a search ends, and the next request goes on: threads take some 100 ms for them."""


class RecordSearch:
    """One search through the batches of `data`. `scanned` says how many records were looked at, before this search
    too."""

    def __init__(self, data: bytes, wanted: RecordFilter, scanned: int = 0) -> None:
        self.scanned = scanned
        self._data = data
        self._wanted = wanted
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
        at, transactions = 0, AbortedTransactions(aborted)
        while at < len(self._data):
            walked = walk(self._data, at, max_batches=WALK_BATCHES)
            for batch in walked.batches:
                if most <= 0 or self._opened_bytes >= OPENED_BYTES_MAX:
                    return
                is_hidden = transactions.has_batch(batch) or bool(batch.attributes & CONTROL)
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


def _empty(batch: WalkedBatch) -> DecodedBatch:
    return DecodedBatch(batch.leader_epoch, batch.last_offset + 1, [])

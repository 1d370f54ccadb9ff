"""Logs of the compaction tests: bytes of batches as a log has them, and both passes of a clean over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tiered.compaction.batch_filter import CleanRules, LastRecord, clean_batches, put_batches
from tiered.compaction.transactions import CleanedTransactions
from tiered.records.batch import decode_header, encode_batch
from tiered.records.key_offset_map import KeyOffsetMap
from tiered.records.marker import TransactionMarker, encode_marker
from tiered.records.model import BatchHeader, Codec, Record
from tiered.records.pieces import iterate_records

NOW = 1_700_000_000_000
RETENTION = 60_000

Pair = tuple[bytes | None, bytes | None]


class Aborted(NamedTuple):
    """An aborted transaction, as a transaction index has it."""

    producer_id: int
    first_offset: int
    last_offset: int


class Log:
    """A log that grows by batches, in memory."""

    def __init__(self) -> None:
        self.data = b""
        self.end = 0
        self.aborted: list[Aborted] = []
        self.last: dict[int, LastRecord] = {}
        self.open: dict[int, int] = {}
        self.sequences: dict[int, int] = {}

    def add(
        self,
        *pairs: Pair,
        producer: int = -1,
        transactional: bool = False,
        codec: Codec = Codec.NONE,
        append_time: bool = False,
    ) -> int:
        """Appends one batch of (key, value) records. Returns its offset."""
        base, sequence = self.end, self.sequences.get(producer, 0)
        self.data += encode_batch(
            [(NOW + base + number, key, value, ()) for number, (key, value) in enumerate(pairs)],
            base_offset=base,
            codec=codec,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
            transactional=transactional,
            log_append_time=append_time,
        )
        self.end += len(pairs)
        if producer >= 0:
            self.sequences[producer] = sequence + len(pairs)
            self.last[producer] = LastRecord(self.end - 1, 0)
        if transactional:
            self.open.setdefault(producer, base)
        return base

    def end_transaction(self, producer: int, *, commit: bool) -> int:
        """Appends the marker of a producer. Returns its offset."""
        marker = encode_marker(TransactionMarker(producer, 0, commit, 0), NOW + self.end)
        marker[:8] = self.end.to_bytes(8, "big")
        self.data += marker
        first = self.open.pop(producer, -1)
        if not commit and first >= 0:
            self.aborted.append(Aborted(producer, first, self.end))
        self.end += 1
        return self.end - 1


class Cleaned(NamedTuple):
    """The result of one clean. `kept_aborted` are the entries of the new transaction index."""

    data: bytes
    clean_to: int
    kept_aborted: list[Aborted]


def clean(
    data: bytes,
    end: int,
    *,
    first_dirty: int = 0,
    aborted: Sequence[Aborted] = (),
    last: Mapping[int, LastRecord] | None = None,
    now_ms: int = NOW,
    memory: int = 1 << 16,
    piece: int | None = None,
    upper_bound: int = -1,
    keeps_tombstones: bool = False,
) -> Cleaned:
    """Runs both passes over a whole log that ends at `end`. `piece` cuts the reads as a cleaner does."""
    key_map = KeyOffsetMap(memory, b"seed")
    dirty = data[position_of(data, first_dirty) :]
    first = decode_header(dirty).base_offset if dirty else end
    transactions = CleanedTransactions(each for each in aborted if each.last_offset >= first)
    _, is_full = put_batches(key_map, dirty, transactions, from_offset=first_dirty)
    if not is_full:
        key_map.cover(end - 1)
    rules = CleanRules.of(now_ms, RETENTION, upper_bound, last or {}, keeps_tombstones=keeps_tombstones)
    walked = CleanedTransactions(aborted)
    out, at = b"", 0
    while at < len(data):
        part = data[at : at + (piece or len(data))]
        done = clean_batches(key_map, part, walked, rules)
        if not done.end:
            part = data[at : at + decode_header(data, at).size]
            done = clean_batches(key_map, part, walked, rules)
        out, at = out + done.data, at + done.end
    clean_to = key_map.latest_offset + 1
    key_map.close()
    return Cleaned(out, clean_to, walked.kept)


def headers(data: bytes) -> list[BatchHeader]:
    """Returns the headers of all batches. Each CRC and size is right."""
    found: list[BatchHeader] = []
    at = 0
    while at < len(data):
        found.append(decode_header(data, at))
        at += found[-1].size
    assert at == len(data)
    return found


def records(data: bytes) -> list[Record]:
    """Returns the records of all batches that are no control batches."""
    found: list[Record] = []
    at = 0
    for head in headers(data):
        found += () if head.is_control else iterate_records(data, at, head)
        at += head.size
    return found


def facts(data: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    """Returns (offset, key, value) of all records."""
    return [(each.offset, each.key, each.value) for each in records(data)]


def position_of(data: bytes, offset: int) -> int:
    """Returns the position of the first batch that ends at or above `offset`."""
    at = 0
    for head in headers(data):
        if head.last_offset >= offset:
            break
        at += head.size
    return at

"""The two passes of a clean over whole batches: keys into the map, then the batches without what is superseded.

The rules are those of Kafka's cleaner. The native functions take the records of plain batches. Here are the batches
that need more: compressed ones are opened and closed once each, transactional ones belong to a decided transaction, and
control batches have rules of their own. A batch that cannot be read raises `Corrupt`, and nothing is dropped. A batch
that cannot be opened within the bounds stays as it is, and so does each later tombstone: the batch may have older
records of its key. Keeps I26.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tiered.compaction.transactions import CleanedTransactions, MarkerKind
from tiered.errors import Corrupt, TooLarge
from tiered.ports import Buffer
from tiered.records import native
from tiered.records.batch import decode_header, decode_records
from tiered.records.compression import compress, compress_pieces
from tiered.records.key_offset_map import KeyOffsetMap
from tiered.records.marker import decode_marker
from tiered.records.model import (
    APPEND_TIME,
    ATTRIBUTES_END,
    CODEC_MASK,
    CRC_AT,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER_BYTES,
    BatchHeader,
    WalkedBatch,
)
from tiered.records.pieces import Piece, open_pieces
from tiered.records.pure_compact import FULL, PIECE_WITH_HORIZON, SPECIAL, empty_batch, has_offset, rebuild_batch

SHORT = "short"
NO_HORIZON_PASSED = -1
"""A time at which no tombstone and no marker may go, or gets a delete horizon."""
HORIZON_MAX = 2**62
"""Limit on a delete horizon: timestamps are relative to it."""


class LastRecord(NamedTuple):
    """The last record of a producer that may still write. `offset` is -1 if only its markers are known.

    `settled_offset` is that of the last one in the part that is cleaned, or -1. Later ones may be truncated, and a new
    replica may not have them yet: its state of the producer comes from that record then.
    """

    offset: int
    epoch: int
    settled_offset: int = -1


@dataclass(frozen=True)
class CleanRules:
    """All that decides beside the records themselves.

    With `now_ms` NO_HORIZON_PASSED no tombstone and no marker goes or gets a delete horizon: older records of its key
    may stay. The horizon counts from the first clean that leaves none.

    `horizon_ms` is the delete horizon of tombstones and markers that are cleaned for the first time: now and
    delete.retention.ms. `forget_horizons` takes away those that others have set. A batch that ends at `upper_bound`,
    the end of the segment that is written, is never dropped: it stays without records.
    """

    now_ms: int
    horizon_ms: int
    upper_bound: int
    kept_offsets: bytes
    """Last offsets of batches that are never dropped either, as sorted native int64."""
    producer_epochs: Mapping[int, int]
    """Epochs of the producers of which only markers are known: their last marker stays."""

    @classmethod
    def of(
        cls,
        now_ms: int,
        delete_retention_ms: int,
        upper_bound: int,
        producers: Mapping[int, LastRecord],
        *,
        keeps_tombstones: bool = False,
    ) -> CleanRules:
        """Collects the rules. `producers` are those whose last sequence a retry may still need, by their ids.

        With `keeps_tombstones` older records of a key may lie outside of the walk.
        """
        known = {offset for last in producers.values() for offset in (last.offset, last.settled_offset)}
        offsets = sorted(offset for offset in known if offset >= 0)
        epochs = {producer_id: last.epoch for producer_id, last in producers.items() if last.offset < 0}
        horizon_ms = min(now_ms + delete_retention_ms, HORIZON_MAX)
        now_ms = NO_HORIZON_PASSED if keeps_tombstones else now_ms
        return cls(now_ms, horizon_ms, upper_bound, array("q", offsets).tobytes(), epochs)

    def keep(self, last_offsets: Iterable[int]) -> CleanRules:
        """Returns the rules that also keep the batches that end at these offsets."""
        kept = {*memoryview(self.kept_offsets).cast("q"), *last_offsets}
        return replace(self, kept_offsets=array("q", sorted(kept)).tobytes())


class CleanedBatches(NamedTuple):
    """Batches that stay, how many, and the counts of records. `end` is the first byte that belongs to a batch that is
    not there as a whole."""

    data: bytes
    end: int
    batches: int
    records_read: int
    records_kept: int


def put_batches(
    key_map: KeyOffsetMap,
    data: Buffer,
    transactions: CleanedTransactions[Any],
    *,
    from_offset: int,
    start: int = 0,
) -> tuple[int, bool]:
    """Puts the keys of whole batches at or above `from_offset` into the map. Returns (bytes consumed, True if the map
    is full).

    Keys of aborted transactions do not count. If the map is full, `key_map.latest_offset` says how far it goes: in the
    middle of a batch, if need be. Raises `Corrupt` with the position if a batch cannot be read.
    """
    end, at = len(data), start
    while at < end:
        put = key_map.put_batches(data, at, end, from_offset)
        at = put.end
        if put.why == FULL:
            return at, True
        if put.why == SHORT:
            return at, False
        if not put.why:
            continue
        if put.why != SPECIAL:
            raise Corrupt(put.why, position=at)
        head = decode_header(data, at)
        if head.is_control:
            transactions.is_marker_needless(head, marker_kind(data, at, head))
        elif not transactions.is_aborted(head) and _put_pieces(key_map, data, at, head, from_offset):
            return at, True
        if head.last_offset >= from_offset:
            key_map.cover(head.last_offset)
        at += head.size
    return at, False


def _put_pieces(key_map: KeyOffsetMap, data: Buffer, at: int, head: BatchHeader, from_offset: int) -> bool:
    """Puts the keys of the batch at `at`, as far as it can be opened. Returns True if the map is full."""
    try:
        for piece in open_pieces(data, at, head):
            put = key_map.put_batches(*_rebuild_piece(data, at, head, piece), from_offset, one=True)
            if put.why == FULL:
                return True
            if put.why:
                raise Corrupt(put.why, position=at)
    except TooLarge as error:
        key_map.note_unopened(head.base_offset, error.why)
    return False


def clean_batches(
    key_map: KeyOffsetMap, data: Buffer, transactions: CleanedTransactions[Any], rules: CleanRules, *, start: int = 0
) -> CleanedBatches:
    """Returns the whole batches of `data` without the records that go. Raises `Corrupt` as `put_batches` does."""
    out: list[bytes | bytearray | Buffer] = []
    end, at = len(data), start
    batches = read = kept = 0
    if key_map.unopened:
        rules = replace(rules, now_ms=NO_HORIZON_PASSED)
    while at < end:
        step = native.filter_batches(
            key_map.table, key_map.seed, key_map.latest_offset, data, at, end,
            rules.kept_offsets, rules.upper_bound, rules.now_ms, rules.horizon_ms, False,
        )  # fmt: skip
        out.append(step.data)
        at, batches, read, kept = step.end, batches + step.batches, read + step.records_read, kept + step.records_kept
        if step.why == SHORT:
            break
        if not step.why:
            continue
        if step.why != SPECIAL:
            raise Corrupt(step.why, position=at)
        head = decode_header(data, at)
        if head.is_control:
            cleaned, stayed = _clean_marker(data, at, head, transactions, rules)
        elif transactions.is_aborted(head):
            cleaned, stayed = (empty_batch(data, at) if _must_stay(head, rules) else b""), 0
        else:
            try:
                cleaned, stayed = _clean_special(key_map, data, at, head, rules)
            except TooLarge as error:
                key_map.note_unopened(head.base_offset, error.why)
                rules = replace(rules, now_ms=NO_HORIZON_PASSED)
                cleaned, stayed = memoryview(data)[at : at + head.size], head.count
        out.append(cleaned)
        batches, read, kept = batches + bool(cleaned), read + head.count, kept + stayed
        at += head.size
    return CleanedBatches(b"".join(out), at, batches, read, kept)


def forget_horizons(data: Buffer, batches: Sequence[WalkedBatch], from_offset: int) -> Buffer:
    """Returns `data`, which begins with the first of these batches, without the delete horizons of those that end at or
    above `from_offset`, where the dirty part begins.

    Such a horizon counts from a clean of another log, or of a part of this one. Here older records of a key may go in
    this clean only, and the time of its tombstone begins.
    """
    found = [each for each in batches if each.attributes & DELETE_HORIZON and each.last_offset >= from_offset]
    if not found:
        return data
    out = bytearray(data)
    for each in found:
        at = each.position - batches[0].position
        if native.walk(data, at, at + each.size, max_batches=1).why:
            continue  # its CRC stays wrong, and it cannot be cleaned
        out[at + CRC_FROM : at + ATTRIBUTES_END] = (each.attributes & ~DELETE_HORIZON).to_bytes(2, "big", signed=True)
        crc = native.crc32c(memoryview(out)[at + CRC_FROM : at + each.size])
        out[at + CRC_AT : at + CRC_FROM] = crc.to_bytes(4, "big")
    return out


def marker_kind(data: Buffer, at: int, head: BatchHeader) -> MarkerKind:
    """Returns the kind of the control batch at `at`."""
    if head.count == 0:
        return MarkerKind.NONE
    try:
        marker = decode_marker(memoryview(data)[at : at + head.size])
    except Corrupt:
        return MarkerKind.OTHER
    return MarkerKind.COMMIT if marker.commit else MarkerKind.ABORT


def _rebuild_piece(data: Buffer, at: int, head: BatchHeader, piece: Piece) -> tuple[Buffer, int, int]:
    """Returns a piece of the batch at `at` as a batch without compression: (buffer, start, end)."""
    if not head.codec:
        return data, at, at + head.size
    body, *_, count = piece.section
    opened = rebuild_batch(
        data, at, body, count=count, attributes=head.attributes & ~CODEC_MASK, base_timestamp=head.base_timestamp,
        max_timestamp=head.max_timestamp, last_offset_delta=piece.last_offset - head.base_offset,
    )  # fmt: skip
    return opened, 0, len(opened)


def _clean_special(
    key_map: KeyOffsetMap, data: Buffer, at: int, head: BatchHeader, rules: CleanRules
) -> tuple[Buffer, int]:
    """Returns (a compressed or transactional batch without what goes, records that stayed)."""
    pieces = open_pieces(data, at, head)
    piece = next(pieces, None)
    if piece is None or not piece.is_last:
        return _clean_large(key_map, data, at, head, rules)
    step = native.filter_batches(
        key_map.table, key_map.seed, key_map.latest_offset, *_rebuild_piece(data, at, head, piece),
        rules.kept_offsets, rules.upper_bound, rules.now_ms, rules.horizon_ms, True,
    )  # fmt: skip
    if step.why:
        raise Corrupt(step.why, position=at)
    if not head.codec or not step.records_kept:
        return step.data, step.records_kept
    cleaned = decode_header(step.data)
    if cleaned.count == head.count and cleaned.attributes & DELETE_HORIZON == head.attributes & DELETE_HORIZON:
        return memoryview(data)[at : at + head.size], head.count
    return rebuild_batch(
        step.data, 0, compress(head.codec, memoryview(step.data)[HEADER_BYTES:]), count=cleaned.count,
        attributes=cleaned.attributes | head.codec, base_timestamp=cleaned.base_timestamp,
        max_timestamp=cleaned.max_timestamp,
    ), cleaned.count  # fmt: skip


class _CleanedPieces:
    """The pieces of a batch without what goes, one at a time, and the header that follows from them."""

    def __init__(self, key_map: KeyOffsetMap, data: Buffer, at: int, head: BatchHeader, rules: CleanRules) -> None:
        self._key_map, self._data, self._at, self._head, self._rules = key_map, data, at, head, rules
        self.count = 0
        self.max_timestamp = head.max_timestamp if head.is_log_append_time else -(1 << 63)
        self.has_new_horizon = False

    def bodies(self, gets_horizon: bool) -> Iterator[Buffer]:
        """Yields the records that stay. Ends at the first piece that needs a delete horizon: all pieces need it then,
        and `gets_horizon` gives it to them."""
        head, key_map, rules = self._head, self._key_map, self._rules
        # A tombstone above the end of the map keeps its batch from a horizon, and may be in a later piece.
        now_ms = rules.now_ms if head.last_offset <= key_map.latest_offset else -1
        for piece in open_pieces(self._data, self._at, head):
            step = native.filter_batches(
                key_map.table, key_map.seed, key_map.latest_offset,
                *_rebuild_piece(self._data, self._at, head, piece),
                b"", -1, now_ms, rules.horizon_ms, PIECE_WITH_HORIZON if gets_horizon else True,
            )  # fmt: skip
            if step.why:
                raise Corrupt(step.why, position=self._at)
            if not step.records_kept:
                continue
            cleaned = decode_header(step.data)
            if (cleaned.attributes & ~head.attributes & DELETE_HORIZON) and not gets_horizon:
                self.has_new_horizon = True
                return
            self.count += cleaned.count
            if not head.is_log_append_time:
                self.max_timestamp = max(self.max_timestamp, cleaned.max_timestamp)
            yield memoryview(step.data)[HEADER_BYTES:]


def _clean_large(
    key_map: KeyOffsetMap, data: Buffer, at: int, head: BatchHeader, rules: CleanRules
) -> tuple[Buffer, int]:
    """Returns (a batch that is opened in pieces, without what goes; records that stayed)."""
    cleaned = _CleanedPieces(key_map, data, at, head, rules)
    body = compress_pieces(head.codec, cleaned.bodies(gets_horizon=False))
    gets_horizon = cleaned.has_new_horizon
    if gets_horizon:
        cleaned = _CleanedPieces(key_map, data, at, head, rules)
        body = compress_pieces(head.codec, cleaned.bodies(gets_horizon=True))
    if not cleaned.count:
        return (empty_batch(data, at) if _must_stay(head, rules) else b""), 0
    if cleaned.count == head.count and not gets_horizon:
        return memoryview(data)[at : at + head.size], head.count
    return rebuild_batch(
        data, at, body, count=cleaned.count, attributes=head.attributes | (DELETE_HORIZON if gets_horizon else 0),
        base_timestamp=rules.horizon_ms if gets_horizon else head.base_timestamp, max_timestamp=cleaned.max_timestamp,
    ), cleaned.count  # fmt: skip


def _clean_marker(
    data: Buffer, at: int, head: BatchHeader, transactions: CleanedTransactions[Any], rules: CleanRules
) -> tuple[Buffer, int]:
    """Returns (a control batch or what stays of it, records that stayed).

    A marker whose transaction has no batch left gets a delete horizon first, and goes once that has passed: a reader
    that began before has seen the batches.
    """
    needless = transactions.is_marker_needless(head, marker_kind(data, at, head))
    has_horizon = bool(head.attributes & DELETE_HORIZON)
    if head.count == 0 or (needless and has_horizon and head.base_timestamp <= rules.now_ms):
        return (empty_batch(data, at) if _must_stay(head, rules) else b""), 0
    if not needless or has_horizon or rules.now_ms < 0:
        return memoryview(data)[at : at + head.size], head.count
    records = decode_records(data, at)
    body = native.encode_records([record[1:] for record in records], rules.horizon_ms)
    newest = head.max_timestamp if head.attributes & APPEND_TIME else max(each.timestamp for each in records)
    return rebuild_batch(
        data, at, body, count=len(records), attributes=(head.attributes & ~CODEC_MASK) | DELETE_HORIZON,
        base_timestamp=rules.horizon_ms, max_timestamp=newest,
    ), len(records)  # fmt: skip


def _must_stay(head: BatchHeader, rules: CleanRules) -> bool:
    """True if a batch without records stays for its last sequence, its offsets or its leader epoch."""
    if head.next_offset == rules.upper_bound or has_offset(rules.kept_offsets, head.last_offset):
        return True
    return head.is_control and rules.producer_epochs.get(head.producer_id) == head.producer_epoch

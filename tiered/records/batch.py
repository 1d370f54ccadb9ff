"""Record batch v2: header, stamps, encoding and decoding. The bytes are the same on the wire, on disk and in the
bucket.

Every length that is read is compared with the bytes that are there before memory is allocated by it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from tiered.errors import Corrupt
from tiered.ports import Buffer
from tiered.records import native
from tiered.records.compression import compress, decompress
from tiered.records.model import (
    APPEND_TIME,
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_FROM,
    MAGIC,
    MAX_TIMESTAMP_AT,
    MIN_LENGTH,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    ProducerRecord,
    Record,
    RecordSection,
)
from tiered.records.pieces import BATCH_BYTES_MAX, WHOLE_BYTES_MAX, Piece, open_pieces, whole_max

__all__ = [
    "HEADER_BYTES",
    "BatchHeader",
    "Codec",
    "Record",
    "check_batch",
    "encode_batch",
    "first_at_or_after",
    "decode_header",
    "decompress_payload",
    "decode_records",
    "open_section",
    "read_times",
    "set_append_time",
    "set_max_timestamp",
    "stamp",
    "times_of",
]

_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_FRONT = struct.Struct(">qiibI")
_TIMESTAMP = itemgetter(0)


def decode_header(buf: Buffer, at: int = 0) -> BatchHeader:
    """Decodes the header at `at`. The rest of the batch need not be there, and nothing else is checked.

    Raises `Corrupt` if fewer than 61 bytes are there, the length is impossible or magic is not 2.
    """
    if len(buf) - at < HEADER_BYTES or at < 0:
        raise Corrupt("batch header is short", position=at)
    (
        base_offset, length, leader_epoch, magic, crc, attributes, last_offset_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    ) = HEADER.unpack_from(buf, at)  # fmt: skip
    if length < MIN_LENGTH:
        raise Corrupt(f"batch length {length} is below {MIN_LENGTH}", position=at)
    if magic != MAGIC:
        raise Corrupt(f"magic {magic} is not {MAGIC}", position=at)
    # Bypasses the constructor of the named tuple, which costs as much as all of the above.
    return tuple.__new__(BatchHeader, (
        base_offset, length + LENGTH_FROM, leader_epoch, magic, crc, attributes, last_offset_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    ))  # fmt: skip


def stamp(buf: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int) -> None:
    """Sets base offset and leader epoch of the batch at `at` in place. The CRC does not cover them."""
    _OFFSET.pack_into(buf, at, base_offset)
    _EPOCH.pack_into(buf, at + 12, leader_epoch)


def set_append_time(buf: bytearray | memoryview, at: int, now_ms: int) -> None:
    """Makes `now_ms` the timestamp of all records of the whole batch at `at`: sets attribute, max timestamp and CRC."""
    head = decode_header(buf, at)
    whole = memoryview(buf)[at : at + head.size]
    if len(whole) < head.size:
        raise Corrupt("batch is short", position=at)
    struct.pack_into(">h", whole, CRC_FROM, head.attributes | APPEND_TIME)
    _OFFSET.pack_into(whole, MAX_TIMESTAMP_AT, now_ms)
    _CRC.pack_into(whole, CRC_AT, native.crc32c(whole[CRC_FROM:]))


def set_max_timestamp(buf: bytearray | memoryview, at: int, max_timestamp: int) -> None:
    """Sets max timestamp and CRC of the whole batch at `at` in place."""
    whole = memoryview(buf)[at : at + decode_header(buf, at).size]
    _OFFSET.pack_into(whole, MAX_TIMESTAMP_AT, max_timestamp)
    _CRC.pack_into(whole, CRC_AT, native.crc32c(whole[CRC_FROM:]))


def encode_batch(
    records: Sequence[ProducerRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
    between: Callable[[], object] | None = None,
) -> bytes:
    """Encodes one batch of (timestamp ms, key, value, headers) records. Raises `ValueError` without a record. `between`
    is called while a large batch is compressed, as `compress` says."""
    if not records:
        raise ValueError("a batch holds at least one record")
    base_timestamp = records[0][0]
    body = native.encode_records(records, base_timestamp)
    if codec:
        body = compress(codec, body, level, between)
    attributes = codec | log_append_time << 3 | transactional << 4 | control << 5
    count = len(records)
    max_timestamp = max(map(_TIMESTAMP, records)) if count > 1 else base_timestamp
    rest = _AFTER_CRC.pack(
        attributes, count - 1, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count
    )
    crc = native.crc32c(body, native.crc32c(rest))
    length = MIN_LENGTH + len(body)
    return b"".join((_FRONT.pack(base_offset, length, leader_epoch, MAGIC, crc), rest, body))


def decompress_payload(buf: Buffer, at: int, head: BatchHeader, *, max_bytes: int = WHOLE_BYTES_MAX) -> Buffer:
    """Returns the uncompressed record section of the batch at `at` with header `head`: a view, or decompressed
    bytes."""
    raw = memoryview(buf)[at + HEADER_BYTES : at + head.size]
    if len(raw) != head.size - HEADER_BYTES:
        raise Corrupt("batch is short", position=at)
    codec = head.codec
    return decompress(codec, raw, whole_max(len(raw), max_bytes)) if codec else raw


def open_section(buf: Buffer, at: int = 0, *, max_bytes: int = WHOLE_BYTES_MAX) -> RecordSection:
    """Returns the decompressed section of the batch at `at`, as `native.rows` and `native.arrow` take it."""
    head = decode_header(buf, at)
    append_time = head.max_timestamp if head.is_log_append_time else -1
    return (
        decompress_payload(buf, at, head, max_bytes=max_bytes),
        head.base_offset,
        head.base_timestamp,
        append_time,
        head.count,
    )


def decode_records(buf: Buffer, at: int = 0, *, max_bytes: int = WHOLE_BYTES_MAX) -> list[Record]:
    """Decodes the records of the batch at `at`. Does not check the CRC again. Raises `Corrupt` if a record is
    malformed."""
    head = decode_header(buf, at)
    out = native.rows(*open_section(buf, at, max_bytes=max_bytes))
    if out and out[-1].offset > head.last_offset:
        raise Corrupt(f"record offset {out[-1].offset} is above the batch's last {head.last_offset}", position=at)
    return out


def check_batch(buf: Buffer, at: int = 0, *, max_bytes: int = BATCH_BYTES_MAX) -> BatchHeader:
    """Decodes every record of a produced batch and checks it, but not its CRC.

    The number of records is that of the header, and each is well-formed. Offset deltas have no gap. Timestamps are
    not compared with the header. Raises `Corrupt` with the fault.
    """
    head = decode_header(buf, at)
    if head.count != head.last_offset_delta + 1:
        raise Corrupt(f"{head.count} records, but last offset delta {head.last_offset_delta}", position=at)
    for piece in open_pieces(buf, at, head, max_bytes=max_bytes):
        native.check_records(piece.section[0], piece.section[4], piece.first)
    return head


def read_times(buf: Buffer, at: int = 0, *, max_bytes: int = BATCH_BYTES_MAX) -> tuple[int, int, int]:
    """Returns (oldest timestamp, newest timestamp, number of the first one beyond 64 bits) of the records of a batch.

    The values are those of `native.time_range`. Raises `Corrupt` if the batch cannot be opened within `max_bytes`.
    """
    return times_of(open_pieces(buf, at, decode_header(buf, at), max_bytes=max_bytes))


def times_of(pieces: Iterable[Piece]) -> tuple[int, int, int]:
    """Returns what `read_times` does, of the records in `pieces`, and consumes them."""
    oldest, newest, beyond = NO_TIMESTAMP, NO_TIMESTAMP, -1
    for piece in pieces:
        body, _, base_timestamp, _, count = piece.section
        low, high, wrong = native.time_range(body, base_timestamp, count)
        oldest = low if oldest == NO_TIMESTAMP else min(oldest, low) if low != NO_TIMESTAMP else oldest
        newest = max(newest, high)
        beyond = piece.first + wrong if beyond < 0 <= wrong else beyond
    return oldest, newest, beyond


def first_at_or_after(
    buf: Buffer, at: int, timestamp: int, start: int = 0, *, max_bytes: int = BATCH_BYTES_MAX
) -> tuple[int, int] | None:
    """Returns (offset, timestamp) of the batch's first record from offset `start` on that is not earlier than
    `timestamp`.

    The batch is at `at`. Returns None if there is no such record. Raises `Corrupt` if more than `max_bytes` would have
    to be decompressed.
    """
    head = decode_header(buf, at)
    if head.is_log_append_time:
        found = head.count > 0 and head.max_timestamp >= timestamp and head.last_offset >= start
        return (max(head.base_offset, start), head.max_timestamp) if found else None
    for piece in open_pieces(buf, at, head, max_bytes=max_bytes):
        body, base_offset, base_timestamp, _, count = piece.section
        place = native.first_at_or_after(body, base_offset, base_timestamp, timestamp, count, start)
        if place is not None:
            return place
    return None

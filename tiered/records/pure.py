"""The record functions in plain Python: used where the C extension was not built, and compared with it by tests.

Both read unchecked bytes. Every length and count is compared with the bytes that are there before it is used. A fault
raises `Corrupt` with the same text in both.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Sequence
from typing import cast

from tiered.errors import Corrupt, TooLarge
from tiered.ports import Buffer
from tiered.records import varint
from tiered.records.model import (
    APPEND_TIME,
    BAD_RECORDS,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_FROM,
    MAGIC,
    MAX_TIMESTAMP_AT,
    MIN_LENGTH,
    MIN_RECORD_BYTES,
    NO_TIMESTAMP,
    OBJECTS_MAX,
    TRANSACTIONAL,
    ArrowColumns,
    Codec,
    Header,
    ProducerRecord,
    Record,
    RecordSection,
    WalkedBatch,
    WalkResult,
)
from tiered.records.pure_hash import hash_rows
from tiered.records.pure_text import (
    find_text,
    json_elements,
    json_entries,
    json_repeated_name,
    json_spans,
    murmur2,
)

__all__ = [
    "arrow",
    "check_records",
    "crc32c",
    "encode_records",
    "find_text",
    "first_at_or_after",
    "fit",
    "hash_rows",
    "json_elements",
    "json_entries",
    "json_repeated_name",
    "json_spans",
    "murmur2",
    "outside",
    "rows",
    "some_rows",
    "split_records",
    "time_range",
    "walk",
]

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)
INT32_MAX = (1 << 31) - 1
_UINT64_MAX = (1 << 64) - 1
_STAMPED = struct.Struct(">qii")
_MAX_TIMESTAMP = struct.Struct(">q")
_CRC = struct.Struct(">I")
COLUMNS = frozenset(("offset", "timestamp", "timestampType", "key", "value", "headers"))

Span = tuple[int, int]
"""Bytes `[start, end)` of a section; `start` is -1 for null."""
Parsed = tuple[int, int, Span, Span, tuple[tuple[Span, Span], ...]]
"""(timestamp delta, offset delta, key, value, headers)."""


def wrap(number: int) -> int:
    """Returns the signed 64-bit integer with the low 64 bits of `number`."""
    return (number - INT64_MIN & _UINT64_MAX) + INT64_MIN


def crc32c(data: Buffer, value: int = 0, /) -> int:
    """Returns the CRC-32C (Castagnoli) of `data`, continued from `value`."""
    from crc32c import crc32c as compute  # imported late: a start with the C extension needs no second one

    return int(compute(data, value))


# -- batches ----------------------------------------------------------------------------------------------------------


def walk(
    buf: Buffer,
    start: int = 0,
    end: int | None = None,
    *,
    check_crc: bool = True,
    max_batches: int | None = None,
    records: bool = False,
) -> WalkResult:
    """Walks the batches in `buf[start:end]`, up to the first invalid one. Invalid bytes never raise an error.

    Raises `ValueError` for a range outside the buffer. `records` also checks every record of batches that are neither
    compressed nor control batches. A fault in a record begins with BAD_RECORDS.
    """
    whole = memoryview(buf)
    stop = len(whole) if end is None else end
    if not 0 <= start <= stop <= len(whole):
        raise ValueError(f"range {start}..{stop} is outside a buffer of {len(whole)} bytes")
    batches: list[WalkedBatch] = []
    at = start
    while at < stop and (max_batches is None or len(batches) < max_batches):
        batch, why = _walk_one(whole, at, stop, check_crc)
        if batch is not None and records and not batch.attributes & (CODEC_MASK | CONTROL):
            try:
                check_records(whole[at + HEADER_BYTES : at + batch.size], batch.count)
            except Corrupt as error:
                batch, why = None, BAD_RECORDS + error.why
        if batch is None:
            return WalkResult(batches, at, why)
        batches.append(batch)
        at += batch.size
    return WalkResult(batches, at, "")


def fit(
    buf: bytearray | memoryview,
    base_offset: int,
    leader_epoch: int,
    max_bytes: int,
    now_ms: int,
    before_max_ms: int,
    after_max_ms: int,
    /,
) -> WalkedBatch | None:
    """Stamps and walks a buffer that is exactly one plain batch, and checks its records.

    Sets max timestamp and CRC to those of its records. A compressed batch is not opened: its header counts.
    Returns None, with the buffer unchanged, if `validate_batches` has to look at it. Reasons are a timestamp that is
    out of bounds or below 0, and the header of a compressed batch that cannot be true.
    """
    whole = memoryview(buf)
    if not HEADER_BYTES <= len(whole) <= max_bytes:
        return None
    (
        _, length, _, magic, _, attributes, last_delta, oldest, newest, producer_id, epoch, sequence, count,
    ) = HEADER.unpack_from(whole)  # fmt: skip
    if (
        length + LENGTH_FROM != len(whole)
        or magic != MAGIC
        or attributes & (APPEND_TIME | CONTROL | DELETE_HORIZON)
        or attributes & CODEC_MASK > Codec.ZSTD
        or count < 1
        or count != last_delta + 1
        or not 0 <= base_offset <= INT64_MAX - last_delta
        or (attributes & TRANSACTIONAL if producer_id < 0 else epoch < 0 or sequence < 0)
    ):
        return None
    front = bytes(whole[: _STAMPED.size])
    _STAMPED.pack_into(whole, 0, base_offset, length, leader_epoch)
    walked = walk(whole, records=True)
    if not walked.why:
        if not attributes & CODEC_MASK:
            oldest, newest = _add_deltas(whole[HEADER_BYTES:], count, oldest)
        is_true = oldest <= newest and 0 <= newest <= INT64_MAX
        if is_true and now_ms - oldest <= min(before_max_ms, INT64_MAX) and newest - now_ms <= after_max_ms:
            _set_max_timestamp(whole, newest)
            return walked.batches[0]._replace(max_timestamp=newest)
    whole[: len(front)] = front
    return None


def _add_deltas(payload: Buffer, count: int, base_timestamp: int) -> tuple[int, int]:
    """Returns the oldest and the newest timestamp of a section. They may be beyond 64 bits."""
    section, deltas = SectionReader(payload, count), []
    while (parsed := section.next_record()) is not None:
        deltas.append(parsed[0])
    return base_timestamp + min(deltas), base_timestamp + max(deltas)


def _set_max_timestamp(whole: memoryview, newest: int) -> None:
    """Sets max timestamp and CRC of the writable batch `whole`, if they differ."""
    if _MAX_TIMESTAMP.unpack_from(whole, MAX_TIMESTAMP_AT)[0] != newest:
        _MAX_TIMESTAMP.pack_into(whole, MAX_TIMESTAMP_AT, newest)
        _CRC.pack_into(whole, CRC_AT, crc32c(whole[CRC_FROM:]))


def _walk_one(whole: memoryview, at: int, stop: int, check_crc: bool) -> tuple[WalkedBatch | None, str]:
    if stop - at < HEADER_BYTES:
        return None, "short"
    (
        base_offset, length, leader_epoch, magic, crc, attributes, last_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    ) = HEADER.unpack_from(whole, at)  # fmt: skip
    if length < MIN_LENGTH:
        return None, f"batch length {length} is below {MIN_LENGTH}"
    if magic != MAGIC:
        return None, f"magic {magic} is not {MAGIC}"
    size = LENGTH_FROM + length
    if size > stop - at:
        return None, "short"
    if check_crc and crc32c(whole[at + CRC_FROM : at + size]) != crc:
        return None, "crc mismatch"
    if base_offset < 0 or last_delta < 0 or base_offset + last_delta > INT64_MAX:
        return None, "offsets out of range"
    if count < 0:
        return None, f"record count {count}"
    return WalkedBatch(
        at, size, base_offset, base_offset + last_delta, leader_epoch, attributes, max_timestamp, base_timestamp,
        producer_id, producer_epoch, base_sequence, count,
    ), ""  # fmt: skip


# -- records of one section -------------------------------------------------------------------------------------------


def _bytes_span(data: Buffer, at: int, end: int, fault: str, *, nullable: bool = True) -> tuple[Span, int]:
    length, at = varint.read(data, at, end)
    if length > end - at or length < (-1 if nullable else 0):
        raise _RecordError(fault)
    if length < 0:
        return (-1, -1), at
    return (at, at + length), at + length


class _RecordError(ValueError):
    """The fault of a record; the caller adds the record's number."""


def _parse_record(data: Buffer, at: int, end: int) -> tuple[Parsed, int]:
    """Returns one record at `at` of a section that ends at `end`, and the position after it."""
    length, at = varint.read(data, at, end)
    if not 0 <= length <= end - at:
        raise _RecordError("has a bad length")
    end = at + length
    if at >= end:
        raise _RecordError(varint.ENDS_EARLY)
    timestamp_delta, at = varint.read(data, at + 1, end, varint.INT64_BYTES)
    offset_delta, at = varint.read(data, at, end)
    key, at = _bytes_span(data, at, end, "has a bad key length")
    value, at = _bytes_span(data, at, end, "has a bad value length")
    count, at = varint.read(data, at, end)
    if not 0 <= count <= (end - at) // 2:
        raise _RecordError("has a bad header count")
    headers = []
    for _ in range(count):
        name, at = _bytes_span(data, at, end, "has a bad header key length", nullable=False)
        content, at = _bytes_span(data, at, end, "has a bad header value length")
        headers.append((name, content))
    if at != end:
        raise _RecordError("has bytes left over")
    return (timestamp_delta, offset_delta, key, value, tuple(headers)), end


class SectionReader:
    """Iterates over the records of a section. Checks that offset deltas increase, and with `dense` that they have no
    gap."""

    def __init__(self, payload: Buffer, count: int, *, dense: bool = False) -> None:
        self.data = bytes(payload)
        if count < 0 or count * MIN_RECORD_BYTES > len(self.data):
            raise Corrupt(f"{count} records in {len(self.data)} bytes")
        self.position = 0
        self.number = 0
        self.count = count
        self._dense = dense
        self.last_delta = -1

    def next_record(self) -> Parsed | None:
        if self.number == self.count:
            if self.position != len(self.data):
                raise Corrupt("bytes after the last record")
            return None
        try:
            parsed, self.position = _parse_record(self.data, self.position, len(self.data))
            delta = parsed[1]
            if delta != self.number if self._dense else delta <= self.last_delta:
                raise _RecordError("is out of order")
        except (_RecordError, varint.BadVarint) as fault:
            raise Corrupt(f"record {self.number} {fault}") from None
        self.last_delta = delta
        self.number += 1
        return parsed

    def offset_and_timestamp(
        self, parsed: Parsed, base_offset: int, base_timestamp: int, append_time: int
    ) -> tuple[int, int]:
        """Returns offset and timestamp of the last record of `next_record`. A timestamp beyond 64 bits wraps around, as
        in Kafka's clients."""
        offset = base_offset + parsed[1]
        if offset > INT64_MAX:
            raise Corrupt(f"record {self.number - 1} has an offset out of range")
        if append_time != -1:
            return offset, append_time
        return offset, wrap(base_timestamp + parsed[0])

    def bytes(self, span: Span) -> bytes | None:
        return None if span[0] < 0 else self.data[span[0] : span[1]]

    def headers(self, parsed: Parsed) -> tuple[Header, ...]:
        data = self.data
        return tuple((data[k[0] : k[1]].decode("utf-8", "replace"), self.bytes(v)) for k, v in parsed[4])


def check_records(payload: Buffer, count: int, first: int = 0) -> None:
    """Raises `Corrupt` unless an uncompressed section is exactly `count` well-formed records with offset deltas
    `first`, `first` + 1 ..."""
    section = SectionReader(payload, count, dense=True)
    section.number, section.count = first, first + count
    while section.next_record() is not None:
        pass


def split_records(payload: Buffer, count: int, first: int, last_delta: int, /) -> tuple[int, int, int, int]:
    """Walks over the whole records that an uncompressed section begins with, up to `count` of the batch.

    `first` records of the batch come before them, the last of them with the offset delta `last_delta`. Returns (whole
    records, their bytes, the offset delta of the last one, the bytes that the next record takes). The last number is 0
    if there is no next record, or if its length is cut short. Raises `Corrupt` if a record is malformed.
    """
    section, data = SectionReader(payload, 0), bytes(payload)
    section.number, section.count, section.last_delta = first, count, last_delta
    wanted = 0
    while section.number < count:
        try:
            length, at = varint.read(data, section.position, len(data))
        except varint.BadVarint as fault:
            if str(fault) == varint.ENDS_EARLY:
                break
            raise Corrupt(f"record {section.number} {fault}") from None
        if length < 0:
            raise Corrupt(f"record {section.number} has a bad length")
        if length > len(data) - at:
            wanted = at - section.position + length
            break
        section.next_record()
    return section.number - first, section.position, section.last_delta, wanted


def time_range(payload: Buffer, base_timestamp: int, count: int, /) -> tuple[int, int, int]:
    """Returns (oldest timestamp, newest timestamp, number of the first record whose timestamp is beyond 64 bits).

    The oldest one leaves out records without a timestamp, and is -1 if no record has one. The newest one is at least
    -1. The number is -1 if there is no such record.
    """
    section, oldest, newest, beyond = SectionReader(payload, count), INT64_MAX, NO_TIMESTAMP, -1
    while (parsed := section.next_record()) is not None:
        timestamp = base_timestamp + parsed[0]
        if not INT64_MIN <= timestamp <= INT64_MAX:
            beyond = section.number - 1 if beyond < 0 else beyond
            continue
        newest = max(newest, timestamp)
        oldest = min(oldest, timestamp) if timestamp != NO_TIMESTAMP else oldest
    return (NO_TIMESTAMP if newest < oldest == INT64_MAX else oldest), newest, beyond


def rows(
    payload: Buffer,
    base_offset: int,
    base_timestamp: int,
    append_time: int,
    count: int,
    objects: int = OBJECTS_MAX,
) -> list[Record]:
    """Decodes the records of an uncompressed section.

    `append_time` (ms) replaces all timestamps unless it is -1. Header keys that are not UTF-8 get replacement
    characters. Raises `TooLarge` for more than `objects` records and headers together.
    """
    section = SectionReader(payload, count)
    base = (base_offset, base_timestamp, append_time)
    out, cut = _rows_within(section, *base, INT64_MIN, INT64_MAX, objects)
    if cut is not None:
        raise _too_many(section, cut, objects)
    return out


def some_rows(
    payload: Buffer,
    base_offset: int,
    base_timestamp: int,
    append_time: int,
    count: int,
    start: int,
    size: int,
    objects: int,
    copied: int = INT64_MAX,
) -> tuple[list[Record], bool]:
    """Returns (records, True if these are all) of a section from offset `start` on.

    The result ends before a record that would exceed `size` bytes of the section, or `objects` records and headers
    together. The first record is returned whatever its size. Raises `TooLarge` if it alone has more than `objects`.
    A key or value of more than `copied` bytes is a view of the payload instead of a copy.
    """
    section = SectionReader(payload, count)
    out, cut = _rows_within(section, base_offset, base_timestamp, append_time, start, size, objects, copied)
    if cut is not None and not out:
        raise _too_many(section, cut, objects)
    return out, cut is None


def _rows_within(
    section: SectionReader,
    base_offset: int,
    base_timestamp: int,
    append_time: int,
    start: int,
    size: int,
    objects: int,
    copied: int = INT64_MAX,
) -> tuple[list[Record], int | None]:
    """Returns (records, the headers of the record that exceeds a limit). None if these are all."""
    out: list[Record] = []
    position = section.position
    while (parsed := section.next_record()) is not None:
        offset, timestamp = section.offset_and_timestamp(parsed, base_offset, base_timestamp, append_time)
        record_start, position = position, section.position
        if offset < start:
            continue
        objects -= 1 + len(parsed[4])
        size -= position - record_start
        if objects < 0 or (out and size < 0):
            return out, len(parsed[4])
        headers = section.headers(parsed) if parsed[4] else ()
        key, value = (_field(section, span, copied) for span in parsed[2:4])
        out.append(Record(offset, timestamp, key, value, headers))
    return out, None


def _field(section: SectionReader, span: Span, copied: int) -> bytes | None:
    """Returns a key or value. A long one is a part of the payload."""
    if span[0] < 0 or span[1] - span[0] <= copied:
        return section.bytes(span)
    return cast(bytes, memoryview(section.data)[span[0] : span[1]])


def _too_many(section: SectionReader, headers: int, objects: int) -> TooLarge:
    number = section.number - 1
    return TooLarge(f"record {number} with {headers} headers exceeds the bound of {objects} records and headers")


def first_at_or_after(
    payload: Buffer, base_offset: int, base_timestamp: int, timestamp: int, count: int, start: int = INT64_MIN
) -> tuple[int, int] | None:
    """Returns (offset, timestamp) of the first record of a section from `start` on that is not earlier than
    `timestamp`.

    Reads no further than that record. Returns None if there is no such record.
    """
    section = SectionReader(payload, count)
    while (parsed := section.next_record()) is not None:
        place = section.offset_and_timestamp(parsed, base_offset, base_timestamp, -1)
        if place[1] >= timestamp and place[0] >= start:
            return place
    return None


def outside(payload: Buffer, base_timestamp: int, low: int, high: int, count: int, most: int) -> list[tuple[int, int]]:
    """Returns (number, timestamp) of the first `most` records of a section with a timestamp outside [`low`, `high`], or
    beyond 64 bits.

    Reads no further than the last of them.
    """
    section = SectionReader(payload, count)
    found: list[tuple[int, int]] = []
    while len(found) < most and (parsed := section.next_record()) is not None:
        timestamp = section.offset_and_timestamp(parsed, 0, base_timestamp, -1)[1]
        if not low <= timestamp <= high or timestamp != base_timestamp + parsed[0]:
            found.append((section.number - 1, timestamp))
    return found


def encode_records(records: Sequence[ProducerRecord], base_timestamp: int = 0) -> bytes:
    """Encodes records to an uncompressed section with offset deltas 0, 1, 2 ...

    Raises `OverflowError` if a timestamp is more than 64 bits from the base, or if the section exceeds 2 GiB.
    """
    out = bytearray()
    for number, (timestamp, key, value, headers) in enumerate(tuple(records)):
        body = bytearray(1)
        delta = timestamp - base_timestamp
        if not INT64_MIN <= delta <= INT64_MAX:
            raise OverflowError("timestamp delta does not fit in 64 bits")
        varint.append(body, delta)
        varint.append(body, number)
        _append_bytes(body, key)
        _append_bytes(body, value)
        varint.append(body, len(headers))
        for name, content in headers:
            _append_bytes(body, name.encode())
            _append_bytes(body, content)
        varint.append(out, len(body))
        out += body
        if len(out) > INT32_MAX:
            raise OverflowError("record section passes 2 GiB")
    return bytes(out)


def _append_bytes(out: bytearray, data: Buffer | None) -> None:
    if data is None:
        out.append(1)
        return
    view = memoryview(data)
    varint.append(out, view.nbytes)
    out += view


# -- Arrow ------------------------------------------------------------------------------------------------------------


class _Binary:
    """Buffers of an Arrow binary array under construction."""

    def __init__(self) -> None:
        self.offsets = array("i", [0])
        self.data = bytearray()
        self.valid: list[bool] = []

    def add(self, content: bytes | None) -> None:
        self.data += content or b""
        if len(self.data) > INT32_MAX:
            raise OverflowError("an Arrow column passes 2 GiB")
        self.offsets.append(len(self.data))
        self.valid.append(content is not None)


def _bitmap(valid: list[bool]) -> bytes | None:
    if all(valid):
        return None
    out = bytearray((len(valid) + 7) // 8)
    for i, bit in enumerate(valid):
        out[i >> 3] |= bit << (i & 7)
    return bytes(out)


def arrow(
    sections: Sequence[RecordSection], columns: Collection[str], start: int = INT64_MIN, end: int = INT64_MAX
) -> ArrowColumns:
    """Returns the records with `start <= offset < end` of all sections as Arrow buffers, for the named columns only.

    Timestamps are microseconds, clamped to 64 bits. Raises `OverflowError` if a column exceeds 2 GiB.
    """
    for column in columns:
        if column not in COLUMNS:
            raise ValueError(f"unknown column {column!r}")
    offsets, times, types = array("q"), array("q"), array("i")
    keys, values, names, contents = _Binary(), _Binary(), _Binary(), _Binary()
    lists = array("i", [0])
    has_headers: list[bool] = []
    for payload, base_offset, base_timestamp, append_time, count in sections:
        section = SectionReader(payload, count)
        while (parsed := section.next_record()) is not None:
            offset, timestamp = section.offset_and_timestamp(parsed, base_offset, base_timestamp, append_time)
            if not start <= offset < end:
                continue
            offsets.append(offset)
            times.append(max(INT64_MIN, min(INT64_MAX, timestamp * 1000)))
            types.append(append_time != -1)
            if "key" in columns:
                keys.add(section.bytes(parsed[2]))
            if "value" in columns:
                values.add(section.bytes(parsed[3]))
            if "headers" in columns:
                for name, content in section.headers(parsed):
                    names.add(name.encode())
                    contents.add(content)
                lists.append(len(names.valid))
                has_headers.append(bool(parsed[4]))
    buffers: dict[str, tuple[bytes | None, ...]] = {
        "offset": (None, offsets.tobytes()),
        "timestamp": (None, times.tobytes()),
        "timestampType": (None, types.tobytes()),
        "key": (_bitmap(keys.valid), keys.offsets.tobytes(), bytes(keys.data)),
        "value": (_bitmap(values.valid), values.offsets.tobytes(), bytes(values.data)),
        "headers": (
            _bitmap(has_headers), lists.tobytes(), names.offsets.tobytes(), bytes(names.data),
            _bitmap(contents.valid), contents.offsets.tobytes(), bytes(contents.data),
        ),
    }  # fmt: skip
    return ArrowColumns(len(offsets), len(names.valid), {c: b for c, b in buffers.items() if c in columns})

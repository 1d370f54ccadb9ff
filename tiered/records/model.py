"""The types of record batch v2: its layout, its header, a walked batch, a record. They have no behaviour.

Source: Kafka protocol guide, "Record Batch". All integers of the header are big-endian; varints are zigzag.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.ports import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
LENGTH_FROM = 12
"""The batch length counts from here: whole batch = 12 + batch length."""
MIN_LENGTH = HEADER_BYTES - LENGTH_FROM
MAGIC = 2
MAGIC_AT = 16
CRC_AT = 17
CRC_FROM = 21
"""The CRC-32C covers everything from the attributes on, so that a broker may set offset and leader epoch freely."""
ATTRIBUTES_END = 23
"""The last byte of the attributes, which has all that are in use, is before this position."""
BASE_TIMESTAMP_AT, MAX_TIMESTAMP_AT = 27, 35
NO_TIMESTAMP = -1
PRODUCER, PRODUCER_AT = struct.Struct(">qh"), 43
"""Producer id and epoch in a header, and their position."""
MIN_RECORD_BYTES = 7
"""Smallest record: length, attributes, timestamp and offset delta, key and value length, header count, one byte
each."""

OBJECTS_MAX = 1 << 20
"""Default limit on the records and headers that become objects at once: a header of two bytes takes a hundred as an
object."""

CODEC_MASK = 0x07
APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""The base timestamp is the time from which on tombstones and markers of the batch may go (KIP-534)."""

Header = tuple[str, bytes | None]
"""One header of a record."""
ProducerRecord = tuple[int, Buffer | None, Buffer | None, Sequence[Header]]
"""A record to encode: (timestamp in ms, key, value, headers)."""
RecordSection = tuple[Buffer, int, int, int, int]
"""An uncompressed record section: (payload, base offset, base timestamp, append time in ms or -1, record count)."""


class Codec(IntEnum):
    """Compression of a batch, as in its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def is_time_unset(attributes: int, base_timestamp: int, max_timestamp: int) -> bool:
    """True if a header leaves the greatest timestamp of its records out: it is below that of the first one. Earlier
    versions stored such batches as their producers sent them. The base timestamp may be another if the attributes say
    so."""
    return max_timestamp < base_timestamp and not attributes & (APPEND_TIME | DELETE_HORIZON)


def codec_of(attributes: int) -> Codec:
    """Returns the codec of a batch. Raises `Corrupt` for a codec that does not exist."""
    number = attributes & CODEC_MASK
    if number > Codec.ZSTD:
        raise Corrupt(f"unknown compression codec {number}")
    return Codec(number)


class BatchHeader(NamedTuple):
    """The 61 bytes before the records. `size` is that of the whole batch in bytes."""

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides the method of tuples with this name

    @property
    def codec(self) -> Codec:
        """Returns the codec of the batch. Raises `Corrupt` for a codec that does not exist."""
        return codec_of(self.attributes)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def last_sequence(self) -> int:
        """Returns the sequence of the last record, or -1 without a producer. Sequences wrap from 2^31 - 1 to 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


class Record(NamedTuple):
    """One decoded record. `timestamp` is in ms: the append time if the attributes say so."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class WalkedBatch(NamedTuple):
    """One batch as a walk found it: bytes `[position, position + size)` of the walked buffer."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    max_timestamp: int
    base_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]

    @property
    def is_time_unset(self) -> bool:
        """True if the header leaves out the greatest timestamp of the records that it has."""
        return self.count > 0 and is_time_unset(self.attributes, self.base_timestamp, self.max_timestamp)

    @property
    def first_timestamp(self) -> int:
        """Returns the timestamp of the first record, or the greatest one if the header does not have it."""
        return self.max_timestamp if self.attributes & (APPEND_TIME | DELETE_HORIZON) else self.base_timestamp


class WalkResult(NamedTuple):
    """The batches that a walk accepted. `end` is the first byte not accepted.

    `why` is "" at a clean end or at the limit of batches. It is "short" if the last batch is incomplete, and otherwise
    the fault of the batch at `end`.
    """

    batches: list[WalkedBatch]
    end: int
    why: str


class PutResult(NamedTuple):
    """The result of `put_keys`. `end` is the first byte not taken, `why` as in `WalkResult`, or the reason to stop."""

    end: int
    keys: int
    latest_offset: int
    records: int
    keyless: int
    why: str


class FilterResult(NamedTuple):
    """The result of `filter_batches`: the batches that stay, and how many; records read and kept; `end` and `why` as in
    `PutResult`."""

    data: bytes
    end: int
    batches: int
    records_read: int
    records_kept: int
    why: str


BAD_RECORDS = "records: "
"""Prefix of `why` if a batch is valid but its records are not."""


ArrowColumn = tuple[int, Buffer | None, Buffer | None, Buffer | None]
"""The rows of an Arrow array from a first one on: `(first, validity, offsets, data)`. `None`: there is no buffer."""


class ArrowColumns(NamedTuple):
    """Buffers in the layout of Arrow, in the order of `pyarrow.Array.from_buffers`. `None` stands for "no nulls".

    - `offset`, `timestamp` (microseconds): `(None, int64 data)`; `timestampType`: `(None, int32 data)`
    - `key`, `value` (binary): `(validity, int32 offsets, data)`
    - `headers` (list<struct<key: string, value: binary>>, null where a record has none):
      `(validity, list offsets, key offsets, key data, value validity, value offsets, value data)`
    """

    rows: int
    headers: int
    columns: dict[str, tuple[bytes | None, ...]]

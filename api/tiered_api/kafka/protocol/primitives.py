"""The smallest parts of Kafka's wire format: sizes of plain values, unsigned varints, ids, and skipped tagged fields.

Nothing that a peer sent is trusted. The readers here raise `Malformed`, IndexError or struct.error before they read
past the end of a frame; `codec.decode` turns the latter two into `Malformed`.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from functools import lru_cache, partial
from struct import Struct

from tiered.ids import decode_uuid
from tiered_api.kafka.protocol.schema import FieldType

Buffer = bytes | memoryview

STRING_MAX_BYTES = 0x7FFF
"""Kafka's limit on the bytes of a string. It holds for varint lengths too."""

ELEMENTS_MAX = 100_000
"""The most elements of arrays and tagged fields that one request may have.

Elements take 20 times their bytes in memory, and reading them blocks the event loop. Kafka has no such limit; no client
comes near it.
"""

PIECE_ELEMENTS = 1_000
"""The elements of arrays that are decoded or encoded between two pauses of a large message."""

TAGGED_FIELDS_MAX = 100
"""The most tagged fields of one struct."""

STRUCT_CODES = {
    FieldType.BOOL: "?",
    FieldType.INT8: "b",
    FieldType.INT16: "h",
    FieldType.UINT16: "H",
    FieldType.INT32: "i",
    FieldType.UINT32: "I",
    FieldType.INT64: "q",
    FieldType.FLOAT64: "d",
    FieldType.UUID: "16s",
}
"""The codes of Python's `struct` for the types of fixed size."""

URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Malformed(ValueError):
    """Raised for bytes that are no message of their table and version, and for a message that has no encoding."""


@lru_cache(4096)
def id_text(raw: bytes) -> str:
    """Returns Kafka's text form of a 16-byte id. Ids repeat, so the latest ones are cached."""
    return binascii.b2a_base64(raw, newline=False)[:22].translate(URL_SAFE).decode()


@lru_cache(4096)
def id_raw(text: str) -> bytes:
    """Returns the 16 bytes of an id."""
    return decode_uuid(text)


_SMALL = [bytes((value,)) for value in range(128)]


def varint(value: int) -> bytes:
    """Encodes an unsigned varint: seven bits a byte, lowest bits first."""
    if 0 <= value < 128:
        return _SMALL[value]
    if 0 <= value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
    if 0 <= value < 1 << 21:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """Returns the varint at `at`, and the position after it."""
    first = data[at]
    return (first, at + 1) if first < 128 else varint_rest(data, at + 1, first)


def varint_rest(data: Buffer, at: int, first: int) -> tuple[int, int]:
    """Returns the varint whose first byte `first` was read and has the continuation bit, and the position after it.

    A varint has at most five bytes and 32 bits.
    """
    value = first & 127
    for shift in (7, 14, 21, 28):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                break
            return value, at
    raise Malformed("a varint of more than 32 bits")


def tag_count(data: Buffer, at: int) -> tuple[int, int]:
    """Returns the number of tagged fields, and the position of the first one."""
    count, at = read_varint(data, at)
    if count > TAGGED_FIELDS_MAX:
        raise Malformed(f"more than {TAGGED_FIELDS_MAX} tagged fields")
    return count, at


def skip_tags(data: Buffer, at: int, end: int) -> int:
    """Returns the position after the tagged fields at `at`, which begin with their count. Skips all of them."""
    if not data[at]:
        return at + 1
    count, at = tag_count(data, at)
    return skip_fields(data, at, end, count)


def skip_fields(data: Buffer, at: int, end: int, count: int) -> int:
    """Returns the position after `count` tagged fields. Skips all of them."""
    for _ in range(count):
        _, at = read_varint(data, at)
        size, at = read_varint(data, at)
        at += size
        if at > end:
            raise Malformed("a tagged field that is longer than its frame")
    return at


class NumberArrays(dict[int, Callable[..., bytes]]):
    """The functions that pack an array of numbers with its count, one for each count."""

    KEPT = 256

    def __init__(self, code: str, compact: bool) -> None:
        self._code, self._compact = code, compact

    def __missing__(self, count: int) -> Callable[..., bytes]:
        prefix = varint(count + 1) if self._compact else count.to_bytes(4, "big")
        pack = partial(Struct(f">{len(prefix)}s{count}{self._code}").pack, prefix)
        if count < self.KEPT:
            self[count] = pack
        return pack

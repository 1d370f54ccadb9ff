"""The smallest pieces of Kafka's wire format: sizes of plain values, unsigned varints, ids, tagged fields passed over.

What a peer sent is never trusted: whatever reads here ends with `Malformed` (or an IndexError or struct.error, which
`codec.decode` turns into one) before it looks behind the end of its frame.
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
"""Kafka's bound on the bytes of a string, also where the length is a varint."""

ELEMENTS_MAX = 100_000
"""How many elements of arrays (and tagged fields) one request may have: they take 20 times their bytes in memory, and
the loop stands still while they are read. Kafka has no such bound; no client comes near it."""

TAGGED_FIELDS_MAX = 100
"""How many tagged fields may stand in one place."""

STRUCT_CODES = {
    FieldType.BOOL: "?",
    FieldType.INT8: "b",
    FieldType.INT16: "h",
    FieldType.UINT16: "H",
    FieldType.INT32: "i",
    FieldType.UINT32: "I",
    FieldType.INT64: "q",
    FieldType.UUID: "16s",
}
"""How `struct` calls the kinds that take the same room whatever their value is."""

URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Malformed(ValueError):
    """Bytes that are no message of the table and version they came as, or a message that has no such bytes."""


@lru_cache(4096)
def id_text(raw: bytes) -> str:
    """Kafka's text form of 16 bytes. Ids come again and again, so that the last ones are kept."""
    return binascii.b2a_base64(raw, newline=False)[:22].translate(URL_SAFE).decode()


@lru_cache(4096)
def id_raw(text: str) -> bytes:
    """The 16 bytes of an id."""
    return decode_uuid(text)


_SMALL = [bytes((value,)) for value in range(128)]


def varint(value: int) -> bytes:
    """An unsigned varint: seven bits a byte, the lowest first."""
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
    """The varint at `at`, and where it ends."""
    first = data[at]
    return (first, at + 1) if first < 128 else varint_rest(data, at + 1, first)


def varint_rest(data: Buffer, at: int, first: int) -> tuple[int, int]:
    """The same when the first byte has been read and says that more follow. At most five bytes, at most 32 bits."""
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
    """How many tagged fields follow, and where the first begins."""
    count, at = read_varint(data, at)
    if count > TAGGED_FIELDS_MAX:
        raise Malformed("more tagged fields than anyone sends")
    return count, at


def skip_tags(data: Buffer, at: int, end: int) -> int:
    """Where the tagged fields that begin at `at` with their count end. None of them is known here."""
    if not data[at]:
        return at + 1
    count, at = tag_count(data, at)
    return skip_fields(data, at, end, count)


def skip_fields(data: Buffer, at: int, end: int, count: int) -> int:
    """The same behind the count."""
    for _ in range(count):
        _, at = read_varint(data, at)
        size, at = read_varint(data, at)
        at += size
        if at > end:
            raise Malformed("a tagged field that is longer than its frame")
    return at


class NumberArrays(dict[int, Callable[..., bytes]]):
    """For each number of elements the function that packs so many, after their count."""

    KEPT = 256

    def __init__(self, code: str, compact: bool) -> None:
        self._code, self._compact = code, compact

    def __missing__(self, count: int) -> Callable[..., bytes]:
        prefix = varint(count + 1) if self._compact else count.to_bytes(4, "big")
        pack = partial(Struct(f">{len(prefix)}s{count}{self._code}").pack, prefix)
        if count < self.KEPT:
            self[count] = pack
        return pack

"""Keyed hashes of rows in Arrow buffers, in plain Python: SipHash-2-4 with 128 bits over one encoding of a row.

The encoding can be read back in one way only, and all numbers in it are little-endian. It begins with five words of 64
bits: offset; timestamp in microseconds; partition, and above it the size of the key; size of the value, and above it
the number of headers; a bit for each NULL among partition, offset, timestamp and timestamp type, and above them the
timestamp type. Key and value follow, then each header: its two sizes as one word, its name, its value. `NO_SIZE` stands
for the size of a NULL, two `NO_HEADER` for a header that is NULL.

Verify compares sums of these hashes within one run, under a secret of this run. So the encoding may change from version
to version, and nobody can choose rows whose hashes collide.
"""

from __future__ import annotations

import struct

from tiered.ports import Buffer
from tiered.records.model import ArrowColumn

SECRET_BYTES, HASH_BYTES = 16, 16
NO_SIZE, NO_HEADER = 0x8000_0000, 0xFFFF_FFFF
COLUMN_COUNT = 10
"""Partition, offset, timestamp, timestamp type, key, value, headers (their lists), headers (the items), names, values.
"""
INT32_MAX = (1 << 31) - 1
_MASK = (1 << 64) - 1
_NUMBERS = ((4, "I"), (8, "Q"), (8, "Q"), (1, "B"))
"""Width and form of the numbers in a row."""


def hash_rows(secret: Buffer, rows: int, columns: tuple[ArrowColumn, ...], /) -> bytes:
    """Returns the hash of each row, 16 bytes each. Raises `ValueError` for a row outside of the buffers."""
    key = bytes(secret)
    if len(key) != SECRET_BYTES or not 0 <= rows <= INT32_MAX or len(columns) != COLUMN_COUNT:
        raise ValueError("hash_rows takes a secret of 16 bytes, a count of rows and 10 columns")
    opened = [_Column(column) for column in columns]
    return b"".join(siphash(key, _encode_row(opened, at)) for at in range(rows))


def siphash(secret: bytes, data: bytes, word_rounds: int = 2, end_rounds: int = 4) -> bytes:
    """Returns SipHash with 128 bits: SipHash-2-4, unless other numbers of rounds are given."""
    low, high = struct.unpack("<QQ", secret)
    v0, v1 = 0x736F6D6570736575 ^ low, 0x646F72616E646F6D ^ high ^ 0xEE
    v2, v3 = 0x6C7967656E657261 ^ low, 0x7465646279746573 ^ high
    whole = len(data) & ~7
    rest = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    for word in (*struct.unpack(f"<{whole // 8}Q", data[:whole]), rest):
        v0, v1, v2, v3 = _rounds(word_rounds, v0, v1, v2, v3 ^ word)
        v0 ^= word
    v0, v1, v2, v3 = _rounds(end_rounds, v0, v1, v2 ^ 0xEE, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v0, v1, v2, v3 = _rounds(end_rounds, v0, v1 ^ 0xDD, v2, v3)
    return struct.pack("<QQ", first, v0 ^ v1 ^ v2 ^ v3)


def _rounds(count: int, v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    for _ in range(count):
        v0, v2 = v0 + v1 & _MASK, v2 + v3 & _MASK
        v1, v3 = _rotate(v1, 13) ^ v0, _rotate(v3, 16) ^ v2
        v0, v2 = _rotate(v0, 32) + v3 & _MASK, v2 + v1 & _MASK
        v1, v3 = _rotate(v1, 17) ^ v2, _rotate(v3, 21) ^ v0
        v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK


class _Column:
    """A column's buffers, whose every access is checked."""

    def __init__(self, column: ArrowColumn) -> None:
        self._start, *buffers = column
        if not 0 <= self._start <= INT32_MAX:
            raise ValueError("a column starts outside of its buffers")
        self._valid, self._offsets, self._data = (None if each is None else bytes(each) for each in buffers)

    def is_null(self, at: int) -> bool:
        if self._valid is None:
            return False
        at += self._start
        if at >> 3 >= len(self._valid):
            raise _outside()
        return not self._valid[at >> 3] >> (at & 7) & 1

    def number(self, width: int, form: str, at: int) -> int | None:
        if self.is_null(at):
            return None
        at += self._start
        data = self._data or b""
        if at >= len(data) // width:
            raise _outside()
        return int(struct.unpack_from(f"={form}", data, at * width)[0])

    def bounds(self, at: int, most: int) -> tuple[int, int] | None:
        if self.is_null(at):
            return None
        at += self._start
        offsets = self._offsets or b""
        if at + 1 >= len(offsets) // 4:
            raise _outside()
        low, high = struct.unpack_from("=ii", offsets, at * 4)
        if low < 0 or high < low or high > most:
            raise _outside()
        return low, high

    def bytes(self, at: int) -> bytes | None:
        data = self._data or b""
        found = self.bounds(at, len(data))
        return None if found is None else data[found[0] : found[1]]


def _outside() -> ValueError:
    return ValueError("a row lies outside of its buffers")


def _encode_row(columns: list[_Column], at: int) -> bytes:
    numbers = [columns[i].number(width, form, at) for i, (width, form) in enumerate(_NUMBERS)]
    nulls = sum(1 << i for i, number in enumerate(numbers) if number is None)
    partition, offset, timestamp, kind = (number or 0 for number in numbers)
    key, value = columns[4].bytes(at), columns[5].bytes(at)
    items = columns[6].bounds(at, INT32_MAX)
    count = NO_SIZE if items is None else items[1] - items[0]
    head = struct.pack("<QQIIIIQ", offset, timestamp, partition, _size(key), _size(value), count, nulls | kind << 8)
    headers = [_encode_header(columns, i) for i in range(*(items or (0, 0)))]
    return b"".join([head, key or b"", value or b"", *headers])


def _encode_header(columns: list[_Column], at: int) -> bytes:
    if columns[7].is_null(at):
        return struct.pack("<II", NO_HEADER, NO_HEADER)
    name, value = columns[8].bytes(at), columns[9].bytes(at)
    return struct.pack("<II", _size(name), _size(value)) + (name or b"") + (value or b"")


def _size(part: bytes | None) -> int:
    return NO_SIZE if part is None else len(part)

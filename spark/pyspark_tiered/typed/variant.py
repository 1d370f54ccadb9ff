"""JSON values in the binary form of Parquet's and Spark's type variant, and back. Pure.

The form is two byte strings: the metadata, which has all names of objects once, and the value. Integers have 8 to 64
bits, other numbers are doubles, and the fields of an object are in the order of their names in UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

VERSION, SORTED = 1, 1 << 4
PRIMITIVE, SHORT_TEXT, OBJECT, ARRAY = range(4)
NULL, TRUE, FALSE, INT8, INT16, INT32, INT64, DOUBLE = range(8)
TEXT = 16
SHORT_TEXT_MAX = 63
VARIANT_BYTES_MAX = 16 << 20
"""Bytes of a part that Spark reads."""
INTEGERS = {INT8: "<b", INT16: "<h", INT32: "<i", INT64: "<q"}


class EncodedVariant(NamedTuple):
    """Both parts, in the order and with the names of the Parquet columns."""

    value: bytes
    metadata: bytes


def encode_variant(value: Any) -> EncodedVariant:
    """Returns a parsed JSON value as a variant. Its integers have 64 bits at most."""
    names: set[str] = set()
    _collect_names(value, names)
    texts = sorted(name.encode() for name in names)
    places = {text.decode(): at for at, text in enumerate(texts)}
    return EncodedVariant(_encode(value, places), _encode_metadata(texts))


def decode_variant(value: bytes, metadata: bytes) -> Any:
    """Returns the JSON value that was encoded. Raises `ValueError` for all that `encode_variant` does not write."""
    try:
        return _Decoder(value, _decode_metadata(metadata)).read(0)
    except (struct.error, IndexError, UnicodeDecodeError, RecursionError) as fault:
        raise ValueError(f"a damaged variant: {fault}") from fault


def _collect_names(value: Any, names: set[str]) -> None:
    if isinstance(value, dict):
        names.update(value)
        for item in value.values():
            _collect_names(item, names)
    elif isinstance(value, list):
        for item in value:
            _collect_names(item, names)


def _encode_metadata(texts: Sequence[bytes]) -> bytes:
    ends = _ends(texts)
    size = _size_of(max(ends[-1], len(texts)))
    header = VERSION | SORTED | (size - 1) << 6
    return b"".join([bytes([header]), len(texts).to_bytes(size, "little"), _numbers(ends, size), *texts])


def _encode(value: Any, places: dict[str, int]) -> bytes:
    match value:
        case None:
            return _primitive(NULL)
        case bool():
            return _primitive(TRUE if value else FALSE)
        case int():
            return _encode_integer(value)
        case float():
            return _primitive(DOUBLE) + struct.pack("<d", value)
        case str():
            text = value.encode()
            if len(text) <= SHORT_TEXT_MAX:
                return bytes([len(text) << 2 | SHORT_TEXT]) + text
            return _primitive(TEXT) + len(text).to_bytes(4, "little") + text
        case dict():
            fields = sorted((places[name], _encode(item, places)) for name, item in value.items())
            return _encode_object([at for at, _ in fields], [data for _, data in fields])
        case _:
            parts = [_encode(item, places) for item in value]
            ends = _ends(parts)
            size, is_large = _size_of(ends[-1]), len(parts) > 255
            header = int(is_large) << 2 | size - 1
            return b"".join([bytes([header << 2 | ARRAY]), _count(parts, is_large), _numbers(ends, size), *parts])


def _encode_integer(value: int) -> bytes:
    bits = (value if value >= 0 else ~value).bit_length()
    kind = INT8 if bits < 8 else INT16 if bits < 16 else INT32 if bits < 32 else INT64
    return _primitive(kind) + struct.pack(INTEGERS[kind], value)


def _encode_object(ids: Sequence[int], parts: Sequence[bytes]) -> bytes:
    ends = _ends(parts)
    size, id_size, is_large = _size_of(ends[-1]), _size_of(max(ids, default=0)), len(parts) > 255
    header = int(is_large) << 4 | id_size - 1 << 2 | size - 1
    head = bytes([header << 2 | OBJECT]), _count(parts, is_large), _numbers(ids, id_size), _numbers(ends, size)
    return b"".join([*head, *parts])


def _primitive(kind: int) -> bytes:
    return bytes([kind << 2 | PRIMITIVE])


def _count(parts: Sequence[bytes], is_large: bool) -> bytes:
    return len(parts).to_bytes(4 if is_large else 1, "little")


def _ends(parts: Sequence[bytes]) -> list[int]:
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + len(part))
    return ends


def _size_of(most: int) -> int:
    return max(1, (most.bit_length() + 7) // 8)


def _numbers(numbers: Sequence[int], size: int) -> bytes:
    return b"".join(number.to_bytes(size, "little") for number in numbers)


def _decode_metadata(data: bytes) -> list[str]:
    if data[0] & 15 != VERSION:
        raise ValueError(f"a variant of version {data[0] & 15}")
    size = (data[0] >> 6) + 1
    count = _number(data, 1, size)
    start = 1 + size * (count + 2)
    ends = [start + _number(data, 1 + size * (at + 1), size) for at in range(count + 1)]
    if ends[-1] != len(data):
        raise ValueError("a damaged variant: its names end elsewhere")
    return [data[low:high].decode() for low, high in pairwise(ends)]


def _number(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise ValueError("a damaged variant: it ends too early")
    return int.from_bytes(data[at : at + size], "little")


class _Decoder:
    def __init__(self, data: bytes, names: Sequence[str]) -> None:
        self._data = data
        self._names = names
        self._left = len(data)

    def read(self, at: int) -> Any:
        """Returns the value at a place. Each one has bytes of its own, so there are no more of them than bytes."""
        self._left -= 1
        if self._left < 0:
            raise ValueError("a damaged variant: its parts overlap")
        header = self._data[at] >> 2
        match self._data[at] & 3:
            case 0:
                return self._read_primitive(header, at + 1)
            case 1:
                return self._read_text(at + 1, header)
            case 2:
                count_size, id_size, size = (4 if header & 16 else 1), (header >> 2 & 3) + 1, (header & 3) + 1
                count = _number(self._data, at + 1, count_size)
                ids = at + 1 + count_size
                names = [self._names[_number(self._data, ids + i * id_size, id_size)] for i in range(count)]
                return dict(zip(names, self._read_items(ids + count * id_size, count, size), strict=True))
            case _:
                count_size, size = (4 if header & 4 else 1), (header & 3) + 1
                return self._read_items(at + 1 + count_size, _number(self._data, at + 1, count_size), size)

    def _read_items(self, ends: int, count: int, size: int) -> list[Any]:
        start = ends + (count + 1) * size
        return [self.read(start + _number(self._data, ends + i * size, size)) for i in range(count)]

    def _read_primitive(self, kind: int, at: int) -> Any:
        match kind:
            case 0:
                return None
            case 1 | 2:
                return kind == 1
            case 3 | 4 | 5 | 6:
                (found,) = struct.unpack_from(INTEGERS[kind], self._data, at)
                return found
            case 7:
                (found,) = struct.unpack_from("<d", self._data, at)
                return found
            case 16:
                return self._read_text(at + 4, _number(self._data, at, 4))
            case _:
                raise ValueError(f"a variant has the type {kind}, which no JSON value becomes")

    def _read_text(self, at: int, size: int) -> str:
        if at + size > len(self._data):
            raise ValueError("a damaged variant: it ends too early")
        return self._data[at : at + size].decode()

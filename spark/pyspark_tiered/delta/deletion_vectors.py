"""Deletion vectors of Delta: the rows of a file that are deleted. Pure: bytes in, row numbers out.

The form is that of Delta's protocol: an array of 32-bit Roaring bitmaps in their portable format, each behind the upper
32 bits of its numbers. A vector is inline in the add action, or in a file, between its length and a CRC-32.
"""

from __future__ import annotations

import base64
import uuid
import zlib
from array import array
from collections.abc import Mapping
from struct import Struct, error
from typing import Any, NamedTuple

from tiered.errors import Code, Corrupt, Refused

MAGIC = 1681511377
NO_RUNS, RUNS = 12346, 12347
"""First number of a bitmap: without runs, or with runs in some containers."""
NO_OFFSETS_BELOW = 4
"""A bitmap with runs and fewer containers has no table of their places."""
ARRAY_MAX = 4096
"""A container with more numbers is a bitmap of 8 KiB."""

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = str.maketrans(Z85, B85)
_SIZE = Struct(">i")
_HEAD = Struct("<iq")
_U32 = Struct("<I")
_PAIR = Struct("<HH")


class VectorFile(NamedTuple):
    """Place of a vector in a file: the path below the table, where it begins, and its length."""

    path: str
    offset: int
    length: int


def locate_vector(vector: Mapping[str, Any], url: str) -> VectorFile | bytes:
    """Returns the place of a vector of a table, or its bytes if they are inline. Raises `Refused` for a file elsewhere,
    and `Corrupt`."""
    kind, text = str(vector["storageType"]), str(vector["pathOrInlineDv"])
    try:
        if kind == "i":
            return _decode_z85(text)[: int(vector["sizeInBytes"])]
        if kind == "u":
            prefix, name = text[:-20], str(uuid.UUID(bytes=_decode_z85(text[-20:])))
            if prefix and not prefix.isalnum():
                raise ValueError(prefix)
            path = f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"
            return VectorFile(path, int(vector.get("offset") or 0), int(vector["sizeInBytes"]))
    except (ValueError, KeyError, TypeError) as fault:
        raise Corrupt(f"the place of a deletion vector cannot be read: {fault}", where=url) from None
    raise Refused(
        Code.INVALID_REQUEST,
        f"the table at {url} has a deletion vector elsewhere ({text}), which only Spark reads: REORG TABLE ... APPLY "
        "(PURGE) takes it away, and queries may use `--engine spark`",
    )


def cut_vector(data: bytes, place: VectorFile) -> bytes:
    """Returns a vector from its file. Raises `Corrupt` if length or checksum differ."""
    start = place.offset + _SIZE.size
    found = data[start : start + place.length]
    sizes = data[place.offset : start], data[start + place.length : start + place.length + _SIZE.size]
    if any(len(each) < _SIZE.size for each in sizes) or _SIZE.unpack(sizes[0])[0] != place.length:
        raise Corrupt("a deletion vector has another length", where=place.path, position=place.offset)
    if _SIZE.unpack(sizes[1])[0] & 0xFFFFFFFF != zlib.crc32(found):
        raise Corrupt("a deletion vector does not match its checksum", where=place.path, position=place.offset)
    return found


def decode_vector(data: bytes, rows: int) -> array[int]:
    """Returns the numbers of the deleted rows, in order. `rows` is how many they are by the add action.

    Raises `Corrupt`, also for another number of rows: runs of a few bytes could name any number.
    """
    found = array("q")
    try:
        magic, count = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise Corrupt(f"a deletion vector begins with {magic}")
        at = _HEAD.size
        for _ in range(count):
            (upper,) = _U32.unpack_from(data, at)
            at = _decode_bitmap(data, at + _U32.size, upper << 32, rows, found)
    except (error, ValueError, IndexError) as fault:
        raise Corrupt(f"a deletion vector cannot be read: {fault}") from None
    if len(found) != rows:
        raise Corrupt(f"a deletion vector names {len(found)} rows, and not {rows}")
    return found


def _decode_bitmap(data: bytes, at: int, base: int, rows: int, found: array[int]) -> int:
    """Appends the numbers of one bitmap. Returns the place behind it."""
    (cookie,) = _U32.unpack_from(data, at)
    at += _U32.size
    flags = b""
    if cookie & 0xFFFF == RUNS:
        containers = (cookie >> 16) + 1
        flags = data[at : at + (containers + 7) // 8]
        at += len(flags)
    elif cookie == NO_RUNS:
        (containers,) = _U32.unpack_from(data, at)
        at += _U32.size
    else:
        raise Corrupt(f"a bitmap of a deletion vector begins with {cookie}")
    if containers > 1 << 16:
        raise Corrupt(f"a bitmap of a deletion vector has {containers} containers")
    heads = [_PAIR.unpack_from(data, at + _PAIR.size * i) for i in range(containers)]
    at += _PAIR.size * containers
    if not flags or containers >= NO_OFFSETS_BELOW:
        at += _U32.size * containers
    for i, (upper, less_one) in enumerate(heads):
        low = base + (upper << 16)
        if flags and flags[i // 8] >> (i % 8) & 1:
            (runs,) = Struct("<H").unpack_from(data, at)
            at += 2
            for _ in range(runs):
                start, length_less_one = _PAIR.unpack_from(data, at)
                if len(found) + length_less_one >= rows:
                    raise Corrupt(f"a deletion vector names more than {rows} rows")
                found.extend(range(low + start, low + start + length_less_one + 1))
                at += _PAIR.size
        elif less_one < ARRAY_MAX:
            numbers = Struct(f"<{less_one + 1}H")
            found.extend(low + each for each in numbers.unpack_from(data, at))
            at += numbers.size
        else:
            words = Struct("<1024Q").unpack_from(data, at)
            at += 8192
            for place, word in enumerate(words):
                while word:
                    lowest = word & -word
                    found.append(low + place * 64 + lowest.bit_length() - 1)
                    word ^= lowest
    return at


def _decode_z85(text: str) -> bytes:
    return base64.b85decode(text.translate(_TO_B85))

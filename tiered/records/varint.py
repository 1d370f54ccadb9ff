"""Zigzag varints of record batches: 5 bytes at most for 32 bits, 10 for 64."""

from __future__ import annotations

from tiered.ports import Buffer

INT32_BYTES = 5
INT64_BYTES = 10

ENDS_EARLY = "ends early"
TOO_LONG = "has a varint that is too long"


class BadVarint(ValueError):
    """A varint that is incomplete (`ENDS_EARLY`) or too wide (`TOO_LONG`)."""


def zigzag(value: int) -> int:
    """Maps a signed 64-bit number to the unsigned one in its varint: 0, -1, 1, -2 ... become 0, 1, 2, 3 ..."""
    return value << 1 if value >= 0 else (-value << 1) - 1


def append(out: bytearray, value: int) -> None:
    """Appends a signed number as a zigzag varint."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def size(value: int) -> int:
    """Returns the number of bytes of a signed number as a zigzag varint."""
    return max(1, (zigzag(value).bit_length() + 6) // 7)


def read(data: Buffer, at: int, end: int, max_bytes: int = INT32_BYTES) -> tuple[int, int]:
    """Returns (value, position after it). Does not touch bytes at `end` and beyond. `max_bytes` bounds length and
    width."""
    if at < end and (first := data[at]) < 0x80:
        return (first >> 1) ^ -(first & 1), at + 1
    value = shift = 0
    for place in range(at, min(end, at + max_bytes)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> (32 if max_bytes == INT32_BYTES else 64):
                raise BadVarint(TOO_LONG)
            return (value >> 1) ^ -(value & 1), place + 1
        shift += 7
    raise BadVarint(ENDS_EARLY if end < at + max_bytes else TOO_LONG)

"""Fields of a coordinator record: big-endian numbers, strings after their length, compact ones in flexible versions."""

from __future__ import annotations

import struct

from tiered.errors import Corrupt

I16 = struct.Struct(">h")
I32 = struct.Struct(">i")
I64 = struct.Struct(">q")


def encode_string(value: str) -> bytes:
    """Encodes a string that may not be null."""
    raw = value.encode()
    return I16.pack(len(raw)) + raw


def encode_nullable_string(value: str | None) -> bytes:
    """Encodes a string that may be null."""
    return b"\xff\xff" if value is None else encode_string(value)


def encode_bytes(value: bytes) -> bytes:
    """Encodes bytes that may not be null."""
    return I32.pack(len(value)) + value


def encode_uvarint(value: int) -> bytes:
    """Encodes an unsigned varint: the length in compact fields."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_compact_string(value: str) -> bytes:
    """Encodes a string of a flexible version that may not be null."""
    raw = value.encode()
    return encode_uvarint(len(raw) + 1) + raw


def encode_compact_nullable_string(value: str | None) -> bytes:
    """Encodes a string of a flexible version that may be null."""
    return b"\0" if value is None else encode_compact_string(value)


class FieldReader:
    """Reads a record field by field. Raises `Corrupt` if the record ends too early or a field is malformed."""

    def __init__(self, raw: bytes, position: int = 0, *, flexible: bool = False) -> None:
        self._raw = raw
        self._position = position
        self._flexible = flexible

    def take(self, count: int) -> bytes:
        """Returns the next `count` bytes."""
        start, end = self._position, self._position + count
        if count < 0 or end > len(self._raw):
            raise Corrupt(f"field of {count} bytes, {len(self._raw) - start} left", position=start)
        self._position = end
        return self._raw[start:end]

    def i16(self) -> int:
        return int(I16.unpack(self.take(2))[0])

    def i32(self) -> int:
        return int(I32.unpack(self.take(4))[0])

    def i64(self) -> int:
        return int(I64.unpack(self.take(8))[0])

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Corrupt("varint has more than five bytes", position=self._position)

    def nullable_string(self) -> str | None:
        """Returns a string, or None."""
        length = self.uvarint() - 1 if self._flexible else self.i16()
        if length == -1:
            return None
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise Corrupt("string is not UTF-8", position=self._position) from None

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise Corrupt("null in a field that may not be null", position=self._position)
        return value

    def data(self) -> bytes:
        return self.take(self.uvarint() - 1 if self._flexible else self.i32())

    def count(self) -> int:
        """Returns the number of elements that follow: at most the number of bytes that are left."""
        count = self.uvarint() - 1 if self._flexible else self.i32()
        if not 0 <= count <= len(self._raw) - self._position:
            raise Corrupt(f"{count} elements in {len(self._raw) - self._position} bytes", position=self._position)
        return count

    def nullable_count(self) -> int | None:
        """Returns the number of elements that follow, or None for null."""
        start = self._position
        count = self.uvarint() - 1 if self._flexible else self.i32()
        if count == -1:
            return None
        self._position = start
        return self.count()

    def tags(self) -> dict[int, bytes]:
        """Returns the tagged fields; none in versions that are not flexible."""
        if not self._flexible:
            return {}
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}

"""Bounded decompression of request bodies: gzip and zstd, in pieces."""

from __future__ import annotations

import mmap
import time
import zlib
from typing import Protocol

import cramjam
import zstandard

from tiered_api.http.exchange.errors import HttpError

ENCODINGS = ("gzip", "zstd")
ZSTD_SHARE = 12
"""Input given to zstd at once, as a power of two below the wanted output. The worst ratio of zstd is 128 KiB out of 4
bytes, so that makes eight times what is wanted, at most."""
ZSTD_PIECE_MIN = 16
ZSTD_WINDOW = 8 << 20
GZIP_PIECE = 64 << 10
"""Input given to zlib at once. At the end of each member, zlib copies the input that follows."""
OUTPUT_BYTES = 1 << 20
"""Most bytes that are copied or searched at once: no other thread runs Python meanwhile."""
GZIP_MAGIC = b"\x1f\x8b\x08"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
NO_ROOM = "failed to write whole buffer"
"""Error of cramjam for output that does not fit."""
MEMBERS_MAX = 1_000
"""Most members or frames in one piece of a body. Each costs some microseconds, however small it is."""


class Inflater(Protocol):
    """One compressed body, as pieces of it arrive."""

    has_more: bool
    """True if a next step has output although all input was taken."""

    def step(self, data: bytes | bytearray, at: int, most: int) -> tuple[bytes, int]:
        """Decompresses a piece of the body from `at` on. Returns about `most` bytes, and where the next step goes on.
        Raises `HttpError` 400."""

    def finish(self) -> None:
        """Raises `HttpError` 400 if the body ended inside a frame."""


class GzipInflater:
    """A gzip body: one or more members, as RFC 1952 allows."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._begun = False
        self._members = 0
        self.has_more = False

    def step(self, data: bytes | bytearray, at: int, most: int) -> tuple[bytes, int]:
        self._members = self._members if at else 0
        if self._member.eof:
            self._members = count_member(self._members)
            self._member, self._begun = zlib.decompressobj(wbits=31), False
        self._begun = True
        piece = data[at : at + GZIP_PIECE]
        try:
            part = self._member.decompress(piece, most)
        except zlib.error as error:
            raise HttpError(400, f"the body is not gzip: {str(error).rpartition(': ')[2]}") from None
        self.has_more = len(part) == most and not self._member.eof
        return part, at + len(piece) - len(self._member.unconsumed_tail or self._member.unused_data)

    def finish(self) -> None:
        if self._begun and not self._member.eof:
            raise HttpError(400, "the gzip body ends too early")


class ZstdInflater:
    """A zstd body: one or more frames."""

    has_more = False

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
        self._frame = self._decompressor.decompressobj()
        self._begun = False
        self._frames = 0

    def step(self, data: bytes | bytearray, at: int, most: int) -> tuple[bytes, int]:
        self._frames = self._frames if at else 0
        size, made, parts = max(most >> ZSTD_SHARE, ZSTD_PIECE_MIN), 0, list[bytes]()
        while at < len(data) and made < most:
            if self._frame.eof:
                self._frames = count_member(self._frames)
                self._frame, self._begun = self._decompressor.decompressobj(), False
            self._begun = True
            piece = data[at : at + size]
            try:
                parts.append(self._frame.decompress(piece))
            except zstandard.ZstdError as error:
                raise HttpError(400, f"the body is not zstd: {str(error).rpartition(': ')[2]}") from None
            at += len(piece) - len(self._frame.unused_data)
            made += len(parts[-1])
        return b"".join(parts), at

    def finish(self) -> None:
        if self._begun and not self._frame.eof:
            raise HttpError(400, "the zstd body ends too early")


def count_member(members: int) -> int:
    """Counts a member or frame. Raises `HttpError` 400 if there are too many."""
    if members >= MEMBERS_MAX:
        raise HttpError(400, f"the body has more than {MEMBERS_MAX} compressed parts; compress it as one")
    return members + 1


def _parse_encoding(encoding: str) -> str:
    """Returns one of `ENCODINGS` for a Content-Encoding, "" for none. Raises `HttpError` 415 if it is not supported."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return ""
    if name == "x-gzip":
        return "gzip"
    if name not in ENCODINGS:
        raise HttpError(415, f"Content-Encoding {encoding!r} is not supported; send {' or '.join(ENCODINGS)}")
    return name


def new_inflater(encoding: str) -> Inflater | None:
    """Returns the decompressor of a stream; None if it is not compressed. Raises `HttpError` 415."""
    name = _parse_encoding(encoding)
    return None if not name else GzipInflater() if name == "gzip" else ZstdInflater()


class WholeBody:
    """A whole body in decompression: `check`, `fill` and `take`, in this order, each perhaps in another thread.

    `fill` does nearly all of the work, and does not hold the interpreter's lock. The other two hold it.
    """

    def __init__(self, encoding: str, data: bytes | bytearray, limit: int) -> None:
        """`limit`: most bytes of the decompressed body. Raises `HttpError` 415."""
        self._encoding = _parse_encoding(encoding)
        self._data = data
        self._limit = limit
        self._room: mmap.mmap | None = None
        self._size = 0

    @property
    def is_plain(self) -> bool:
        """True if nothing is compressed."""
        return not self._encoding or not self._data

    def check(self) -> None:
        """Raises `HttpError` 400 if the body has too many members or frames."""
        _check_members(self._data, GZIP_MAGIC if self._encoding == "gzip" else ZSTD_MAGIC)

    def fill(self) -> int:
        """Decompresses. Returns the bytes. Raises `HttpError` 413 above the limit, and 400 for a garbled or cut body.

        Only pages that are written take memory.
        """
        room = mmap.mmap(-1, self._limit + 1)
        try:
            self._size = (_inflate_gzip if self._encoding == "gzip" else _inflate_zstd)(self._data, room)
            if self._size > self._limit:
                raise HttpError(413, "the body is larger than allowed after decompression")
            self._room = room
        finally:
            if self._room is None:
                room.close()
        return self._size

    def take(self) -> bytearray:
        """Returns the decompressed body, and gives its pages back as they are copied."""
        assert self._room is not None
        with self._room as room:
            whole = bytearray()
            for at in range(0, self._size, OUTPUT_BYTES):
                whole += room[at : min(at + OUTPUT_BYTES, self._size)]
                room.madvise(mmap.MADV_DONTNEED, at, OUTPUT_BYTES)
                time.sleep(0)  # the event loop gets the interpreter's lock now, and not after its switch interval
        return whole


def _check_members(data: bytes | bytearray, magic: bytes) -> None:
    """Refuses a body that has more members or frames than `MEMBERS_MAX`. Compressed data holds a magic number by chance
    once in 16 MiB, so the count may be too high by a few."""
    found = 0
    for at in range(0, len(data), OUTPUT_BYTES):
        found += data.count(magic, at, at + OUTPUT_BYTES + len(magic) - 1)
        count_member(found - 1)
        if at:
            time.sleep(0)  # as in `take`


def _inflate_gzip(data: bytes | bytearray, room: mmap.mmap) -> int:
    """Returns the number of bytes in `room`, which is full if the body does not fit."""
    try:
        return int(cramjam.gzip.decompress_into(data, room))
    except cramjam.DecompressionError as error:
        if str(error) == NO_ROOM:
            return len(room)
        raise HttpError(400, f"the body is not gzip: {error}") from None


def _inflate_zstd(data: bytes | bytearray, room: mmap.mmap) -> int:
    """Returns the number of bytes in `room`, which is full if the body does not fit. zstandard limits the memory of
    each frame, but takes a body that is cut short. The second pass of cramjam finds the end."""
    opened = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).stream_reader(data, read_across_frames=True)
    try:
        size = opened.readinto(room)
        return size if size == len(room) else int(cramjam.zstd.decompress_into(data, room))
    except (zstandard.ZstdError, cramjam.DecompressionError) as error:
        raise HttpError(400, f"the body is not zstd: {error}") from None

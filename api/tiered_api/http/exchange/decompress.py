"""Bounded decompression of request bodies: gzip and zstd, in pieces."""

from __future__ import annotations

import zlib
from typing import Protocol

import zstandard

from tiered_api.http.exchange.errors import HttpError

ENCODINGS = ("gzip", "zstd")
ZSTD_PIECE = 1024
"""Input given to zstd at once. Its worst ratio is 128 KiB out of 4 bytes, so a piece makes at most 32 MiB."""
ZSTD_WINDOW = 8 << 20
GZIP_PIECE = 64 << 10
"""Input given to zlib at once. At the end of each member, zlib copies the input that follows."""
GZIP_OUTPUT = 1 << 20
"""Most output of one call of zlib, which joins it while no other thread may run Python."""
MEMBERS_MAX = 1_000
"""Most members or frames in one piece of a body. Each costs some microseconds, however small it is."""


class Inflater(Protocol):
    """One compressed body. `feed` returns the decompressed bytes of a piece, and raises `HttpError` 413 above `room`
    bytes."""

    def feed(self, data: bytes | bytearray, room: int) -> bytearray: ...
    def finish(self) -> None:
        """Raises `HttpError` 400 if the body ended inside a frame."""


class GzipInflater:
    """A gzip body: one or more members, as RFC 1952 allows."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._begun = False

    def feed(self, data: bytes | bytearray, room: int) -> bytearray:
        whole = bytearray()
        at = members = 0
        has_more = False
        while at < len(data) or has_more:
            if self._member.eof:
                members = count_member(members)
                self._member, self._begun = zlib.decompressobj(wbits=31), False
            self._begun = True
            piece = data[at : at + GZIP_PIECE]
            most = min(room + 1 - len(whole), GZIP_OUTPUT)
            try:
                part = self._member.decompress(piece, most)
            except zlib.error as error:
                raise HttpError(400, f"the body is not gzip: {str(error).rpartition(': ')[2]}") from None
            whole += part
            if len(whole) > room:
                whole, part = bytearray(), b""  # the error keeps the variables until the garbage collector runs
                raise too_large_error()
            at += len(piece) - len(self._member.unconsumed_tail or self._member.unused_data)
            has_more = len(part) == most and not self._member.eof
        return whole

    def finish(self) -> None:
        if self._begun and not self._member.eof:
            raise HttpError(400, "the gzip body ends too early")


class ZstdInflater:
    """A zstd body: one or more frames."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
        self._frame = self._decompressor.decompressobj()
        self._begun = False

    def feed(self, data: bytes | bytearray, room: int) -> bytearray:
        whole = bytearray()
        at = frames = 0
        while at < len(data):
            if self._frame.eof:
                frames = count_member(frames)
                self._frame, self._begun = self._decompressor.decompressobj(), False
            self._begun = True
            piece = data[at : at + ZSTD_PIECE]
            try:
                part = self._frame.decompress(piece)
            except zstandard.ZstdError as error:
                raise HttpError(400, f"the body is not zstd: {str(error).rpartition(': ')[2]}") from None
            at += len(piece) - len(self._frame.unused_data)
            if len(whole) + len(part) > room:
                whole, part = bytearray(), b""  # the error keeps the variables until the garbage collector runs
                raise too_large_error()
            whole += part
        return whole

    def finish(self) -> None:
        if self._begun and not self._frame.eof:
            raise HttpError(400, "the zstd body ends too early")


def count_member(members: int) -> int:
    """Counts a member or frame. Raises `HttpError` 400 if there are too many."""
    if members >= MEMBERS_MAX:
        raise HttpError(400, f"the body has more than {MEMBERS_MAX} compressed parts; compress it as one")
    return members + 1


def too_large_error() -> HttpError:
    """Returns the error for a body that is too long after decompression."""
    return HttpError(413, "the body is larger than allowed after decompression")


def new_inflater(encoding: str) -> Inflater | None:
    """Returns the decompressor for a Content-Encoding; None if there is none. Raises `HttpError` 415 if it is not
    supported."""
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip":
            return GzipInflater()
        case "zstd":
            return ZstdInflater()
    raise HttpError(415, f"Content-Encoding {encoding!r} is not supported; send {' or '.join(ENCODINGS)}")


def inflate(encoding: str, data: bytes | bytearray, limit: int) -> bytes | bytearray:
    """Decompresses a whole body, up to `limit` bytes."""
    body = new_inflater(encoding)
    if body is None:
        return data
    whole = body.feed(data, limit)
    body.finish()
    return whole

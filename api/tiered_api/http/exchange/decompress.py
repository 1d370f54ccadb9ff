"""Request bodies that came compressed: gzip and zstd, piece by piece, and never more output than was allowed."""

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
"""Input given to zlib at once. At the end of each member it copies what follows."""
MEMBERS_MAX = 1_000
"""Members or frames in one piece of a body. Each costs some microseconds however small it is."""


class Inflater(Protocol):
    """One compressed body. `feed` gives what its piece decompresses to, or HttpError 413 above `room` bytes."""

    def feed(self, data: bytes, room: int) -> bytes: ...
    def finish(self) -> None:
        """HttpError 400 when the body ended inside a frame."""


class GzipInflater:
    """Members one after the other, as RFC 1952 allows."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._begun = False

    def feed(self, data: bytes, room: int) -> bytes:
        parts: list[bytes] = []
        at = members = 0
        while at < len(data):
            if self._member.eof:
                members = count_member(members)
                self._member, self._begun = zlib.decompressobj(wbits=31), False
            self._begun = True
            piece = data[at : at + GZIP_PIECE]
            try:
                part = self._member.decompress(piece, room + 1)
            except zlib.error as error:
                raise HttpError(400, f"the body is not gzip: {str(error).rpartition(': ')[2]}") from None
            room -= len(part)
            if room < 0:
                raise too_large_error()
            parts.append(part)
            at += len(piece) - len(self._member.unconsumed_tail or self._member.unused_data)
        return b"".join(parts)

    def finish(self) -> None:
        if self._begun and not self._member.eof:
            raise HttpError(400, "the gzip body ends too early")


class ZstdInflater:
    """Frames one after the other."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
        self._frame = self._decompressor.decompressobj()
        self._begun = False

    def feed(self, data: bytes, room: int) -> bytes:
        parts: list[bytes] = []
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
            room -= len(part)
            if room < 0:
                raise too_large_error()
            parts.append(part)
        return b"".join(parts)

    def finish(self) -> None:
        if self._begun and not self._frame.eof:
            raise HttpError(400, "the zstd body ends too early")


def count_member(members: int) -> int:
    """One member or frame more; HttpError 400 when there are too many."""
    if members >= MEMBERS_MAX:
        raise HttpError(400, f"the body has more than {MEMBERS_MAX} compressed parts; compress it as one")
    return members + 1


def too_large_error() -> HttpError:
    """The one sentence for a bomb and for an honest body that is too long."""
    return HttpError(413, "the body is larger than allowed once it is decompressed")


def new_inflater(encoding: str) -> Inflater | None:
    """For a Content-Encoding; None when there is none, HttpError 415 when it is not one of ours."""
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip":
            return GzipInflater()
        case "zstd":
            return ZstdInflater()
    raise HttpError(415, f"Content-Encoding {encoding!r} is not understood; send {' or '.join(ENCODINGS)}")


def inflate(encoding: str, data: bytes, limit: int) -> bytes:
    """A whole body, at most `limit` bytes of it."""
    body = new_inflater(encoding)
    if body is None:
        return data
    whole = body.feed(data, limit)
    body.finish()
    return whole

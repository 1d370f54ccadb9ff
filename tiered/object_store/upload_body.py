"""The parts of an upload as one seekable request body, without a copy in memory."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import NamedTuple

from tiered.errors import Unavailable
from tiered.ports import Buffer, ByteSource, FileSlice


class Descriptor:
    """A duplicate descriptor of a file, closed when its last reader releases it: a thread may outlive the upload's
    deadline."""

    def __init__(self, number: int) -> None:
        self._number = -1
        self._number = os.dup(number)

    def __del__(self) -> None:
        if self._number >= 0:
            os.close(self._number)

    def pread(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._number, length, offset)
        except OSError as error:
            raise Unavailable(f"cannot read a file to upload error={error.strerror}") from None


class BodyPart(NamedTuple):
    """Bytes `[position, position + length)` of the body, which begin at `start` of their source."""

    position: int
    length: int
    source: memoryview | Descriptor | ByteSource
    start: int


class UploadBody:
    """The parts of one upload. The files may be closed or deleted meanwhile."""

    def __init__(self, parts: Sequence[Buffer | FileSlice]) -> None:
        self._pieces: list[BodyPart] = []
        self.size = 0
        for part in parts:
            if isinstance(part, FileSlice):
                self._add(_hold_file(part.file), part.length, part.start)
            else:
                view = memoryview(part).cast("B")
                self._add(view, len(view), 0)

    def _add(self, source: memoryview | Descriptor | ByteSource, length: int, start: int) -> None:
        self._pieces.append(BodyPart(self.size, length, source, start))
        self.size += length

    def read(self, at: int, length: int) -> bytes:
        """Returns up to `length` bytes from one part; empty only at the end. Raises `Unavailable` if a file became
        shorter."""
        piece = self._piece_at(at)
        if piece is None or length <= 0:
            return b""
        inside = at - piece.position
        length = min(length, piece.length - inside)
        if isinstance(piece.source, memoryview):
            return bytes(piece.source[inside : inside + length])
        start = piece.start + inside
        data = piece.source.pread(start, length)
        if not data:
            raise Unavailable("a file became shorter while it was uploaded")
        return data

    def _piece_at(self, at: int) -> BodyPart | None:
        return next((piece for piece in self._pieces if piece.position <= at < piece.position + piece.length), None)

    def window(self, start: int, length: int) -> BodyWindow:
        return BodyWindow(self, start, length)

    def join(self) -> bytes:
        """Returns the whole body in memory, for stores that keep it there."""
        return self.window(0, self.size).read()


def _hold_file(file: ByteSource) -> Descriptor | ByteSource:
    try:
        return Descriptor(file.fileno()) if file.fileno() >= 0 else file
    except OSError as error:
        raise Unavailable(f"cannot upload file={file.name} error={error.strerror}") from None


class BodyWindow(io.RawIOBase):
    """Bytes `[start, start + length)` of the body as a seekable file: a request body that can be sent again."""

    def __init__(self, parts: UploadBody, start: int, length: int) -> None:
        super().__init__()
        self._parts = parts
        self._start = start
        self._length = length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Reads as many bytes as requested: HTTP clients take fewer bytes for the end of the body."""
        wanted = self._length - self._at if size is None or size < 0 else min(size, self._length - self._at)
        chunks = []
        while wanted > 0:
            chunk = self._parts.read(self._start + self._at, wanted)
            chunks.append(chunk)
            self._at += len(chunk)
            wanted -= len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, min(self._length, origin + offset))
        return self._at

    def tell(self) -> int:
        return self._at

    def __len__(self) -> int:
        return self._length

"""The parts of an upload, encrypted while they are read: memory does not grow with the size of the object."""

from __future__ import annotations

import threading

from tiered.object_store.encrypted_object import (
    CHUNK_BYTES,
    HEADER_BYTES,
    SEALED_BYTES,
    ObjectCipher,
    stored_size,
)
from tiered.object_store.upload_body import UploadBody

RUN_CHUNKS = 8
"""Chunks that are encrypted at once, and kept for the next read of the same thread."""


class EncryptingFile:
    """The encrypted chunks of `content` as a file without a descriptor. Several threads may read different parts.

    A part that is read again has the same bytes: a request is signed first, and sent then.
    """

    def __init__(self, name: str, content: UploadBody, cipher: ObjectCipher) -> None:
        self.name = name
        self.length = stored_size(content.size) - HEADER_BYTES
        self._content = content
        self._cipher = cipher
        self._last = threading.local()

    def fileno(self) -> int:
        return -1

    def pread(self, offset: int, length: int) -> bytes:
        first, data = getattr(self._last, "run", (0, b""))
        if not first <= offset < first + len(data):
            first = offset - offset % SEALED_BYTES
            data = self._encrypt_run(first // SEALED_BYTES)
            self._last.run = (first, data)
        return bytes(memoryview(data)[offset - first : offset - first + length])

    def _encrypt_run(self, number: int) -> bytearray:
        start = number * CHUNK_BYTES
        content = self._content.window(start, min(RUN_CHUNKS * CHUNK_BYTES, self._content.size - start)).read()
        room = bytearray(min(RUN_CHUNKS * SEALED_BYTES, self.length - number * SEALED_BYTES))
        self._cipher.encrypt_run(number, memoryview(content), memoryview(room))
        return room

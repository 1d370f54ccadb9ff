"""The bytes of an encrypted object (docs/internals/formats.md, "Encrypted objects"): a header, then chunks of
AES-256-GCM.

Pure. Each object has a data key of its own, which encrypts nothing else. The header holds it, encrypted by a key of the
ring. The nonce of a chunk is its number. The header is bound to the object's key in the bucket and to its size, and
each chunk to both and to its number: nothing can be moved, swapped or cut unnoticed. Chunks have one size, so a range
of the content is a range of chunks.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ports import Buffer
from tiered.records.native import crc32c

MAGIC = b"\xd3sealed\n"
"""No other object begins so: neither JSON, nor a snapshot, nor a batch, whose base offset is not below 0."""
VERSION = 1
CHUNK_BYTES = 64 << 10
"""Bytes of content in each chunk but the last."""
TAG_BYTES = 16
SEALED_BYTES = CHUNK_BYTES + TAG_BYTES
"""Bytes of a whole chunk in the bucket."""
NONCE_BYTES = 12
NO_CRYPTOGRAPHY = "encryption of the bucket needs the package cryptography: pip install 'tiered[encryption]'"

_BOUND = struct.Struct(">8sHHIQ40s")
_REST = struct.Struct(">12s48sI")
_NONCE = struct.Struct(">IQ")
_SIZE = struct.Struct(">Q")
_CRC = struct.Struct(">I")
HEADER_BYTES = _BOUND.size + _REST.size
_CHUNK_EXPONENT = 16
_MAGIC_BYTES_ALIKE = 4
"""A header with so many bytes of the magic is a damaged one, and no beginning of a plain object."""


class Header(NamedTuple):
    """The clear part of an encrypted object. `bound` are its bytes that the encryption of the data key covers."""

    key_id: str
    size: int
    """Bytes of the content."""
    nonce: bytes
    wrapped: bytes
    """The data key, encrypted by the key `key_id` of the ring."""
    bound: bytes


class ChunkRange(NamedTuple):
    """The chunks `[first, end)` that hold a range of the content, and their bytes in the bucket."""

    first: int
    end: int
    position: int
    length: int


def load_cipher() -> Any:
    """Returns the class AESGCM of the package cryptography. Raises `Refused` (INVALID_CONFIG) without the package."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise Refused(Code.INVALID_CONFIG, NO_CRYPTOGRAPHY) from None
    return AESGCM


def make_header(ring_key: bytes, key_id: str, data_key: bytes, nonce: bytes, object_key: str, size: int) -> bytes:
    """Returns the header of an object. `nonce` is random, and new for each header."""
    bound = _BOUND.pack(MAGIC, VERSION, _CHUNK_EXPONENT, 0, size, key_id.encode())
    wrapped: bytes = load_cipher()(ring_key).encrypt(nonce, data_key, bound + object_key.encode())
    clear = bound + nonce + wrapped
    return clear + _CRC.pack(crc32c(clear))


def parse_header(data: Buffer, object_key: str) -> Header | None:
    """Returns the header at the beginning of an object, None if the object is plain.

    Raises `Corrupt` if the header is damaged, and `Unavailable` if a newer program wrote it.
    """
    view = memoryview(data)
    alike = sum(a == b for a, b in zip(bytes(view[: len(MAGIC)]), MAGIC, strict=False))
    if alike < _MAGIC_BYTES_ALIKE:
        return None
    if len(view) < HEADER_BYTES or alike < len(MAGIC):
        raise Corrupt("the header of an encrypted object is damaged", where=object_key, position=0)
    bound = bytes(view[: _BOUND.size])
    _, version, exponent, _, size, key_id = _BOUND.unpack(bound)
    nonce, wrapped, crc = _REST.unpack(view[_BOUND.size : HEADER_BYTES])
    if crc32c(view[: HEADER_BYTES - 4]) != crc:
        raise Corrupt("the header of an encrypted object is damaged", where=object_key, position=0)
    if version > VERSION or exponent != _CHUNK_EXPONENT:
        why = f"{object_key} has version {version} of encrypted objects, this program reads up to {VERSION}: upgrade it"
        raise Unavailable(why, refused=True)
    return Header(key_id.rstrip(b"\0").decode("ascii", "replace"), size, nonce, wrapped, bound)


def unwrap_data_key(header: Header, ring_key: bytes, object_key: str) -> bytes:
    """Returns the data key of an object. Raises `Corrupt` if this key of the ring does not open it."""
    from cryptography.exceptions import InvalidTag

    try:
        opened: bytes = load_cipher()(ring_key).decrypt(
            header.nonce, header.wrapped, header.bound + object_key.encode()
        )
    except InvalidTag:
        why = f"key {header.key_id} does not open the object: it has another key of that id, or was moved or changed"
        raise Corrupt(why, where=object_key, position=0) from None
    return opened


def count_chunks(size: int) -> int:
    """Returns the number of chunks of a content; an empty content has one too."""
    return max(1, -(-size // CHUNK_BYTES))


def stored_size(size: int) -> int:
    """Returns the bytes in the bucket of an object with so many bytes of content."""
    return HEADER_BYTES + size + TAG_BYTES * count_chunks(size)


def begin_size(length: int) -> int:
    """Returns the bytes in the bucket from the header to the end of the chunk that ends the first `length` bytes."""
    return HEADER_BYTES + -(-length // CHUNK_BYTES) * SEALED_BYTES


def find_chunks(start: int, length: int, size: int) -> ChunkRange:
    """Returns the chunks that hold `[start, start + length)` of a content of `size` bytes; at least one chunk."""
    last = max(0, count_chunks(size) - 1)
    first = min(start // CHUNK_BYTES, last)
    end = min(max(start + length - 1, 0) // CHUNK_BYTES, last) + 1
    end = max(end, first + 1)
    position = HEADER_BYTES + first * SEALED_BYTES
    stop = min(HEADER_BYTES + end * SEALED_BYTES, stored_size(size))
    return ChunkRange(first, end, position, stop - position)


class ObjectCipher:
    """Encrypts and decrypts the chunks of one object. Any thread may call it."""

    def __init__(self, data_key: bytes, object_key: str, size: int) -> None:
        self.size = size
        self._cipher = load_cipher()(data_key)
        self._where = object_key
        self._about = object_key.encode() + _SIZE.pack(size)

    def encrypt_into(self, number: int, content: Buffer, room: memoryview) -> None:
        """Encrypts one chunk into `room`, which has 16 bytes more than the content."""
        self._cipher.encrypt_into(_NONCE.pack(0, number), content, self._about, room)

    def encrypt(self, content: Buffer) -> bytes:
        """Returns all chunks of the whole content."""
        view = memoryview(content).cast("B")
        sealed = bytearray(stored_size(self.size) - HEADER_BYTES)
        self.encrypt_run(0, view, memoryview(sealed))
        return bytes(sealed)

    def encrypt_run(self, first: int, content: memoryview, room: memoryview) -> None:
        """Encrypts consecutive chunks, `first` being the number of the first, into `room`."""
        at = 0
        for number in range(first, first + count_chunks(len(content))):
            piece = content[(number - first) * CHUNK_BYTES : (number - first + 1) * CHUNK_BYTES]
            self.encrypt_into(number, piece, room[at : at + len(piece) + TAG_BYTES])
            at += len(piece) + TAG_BYTES

    def decrypt(self, sealed: Buffer, chunks: ChunkRange, start: int, length: int) -> bytes:
        """Returns `[start, start + length)` of the content, which lies in these chunks. Raises `Corrupt` if the chunks
        are damaged."""
        from cryptography.exceptions import InvalidTag

        view = memoryview(sealed)
        pieces: list[Buffer] = []
        for number in range(chunks.first, chunks.end):
            at = (number - chunks.first) * SEALED_BYTES
            try:
                pieces.append(self._cipher.decrypt(_NONCE.pack(0, number), view[at : at + SEALED_BYTES], self._about))
            except InvalidTag:
                why = f"chunk {number} of an encrypted object is damaged"
                raise Corrupt(why, where=self._where, position=chunks.position + at) from None
        return _cut(pieces, start - chunks.first * CHUNK_BYTES, length)


def _cut(pieces: list[Buffer], start: int, length: int) -> bytes:
    """Returns a range of the joined pieces. The last piece is cut first: it may also be the first one."""
    total = sum(len(piece) for piece in pieces)
    over = total - min(start + length, total)
    if over:
        last = memoryview(pieces[-1])
        pieces[-1] = last[: max(0, len(last) - over)]
    if start:
        pieces[0] = memoryview(pieces[0])[start:]
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

"""A wrapper of any ObjectStore that encrypts what it writes, and decrypts what it reads.

It stands below everything that knows keys of objects: segments, manifests, metadata and snapshots are all encrypted. A
plain object is read as it is, so a bucket may hold both. Versions and conditions are those of the store below. A range
of the content is one request for whole chunks. The first range of an object that does not begin at 0 needs one small
request more, for the header. The store keeps headers of objects that it has read so.

Work on much data runs in threads. Without keys, a get of an encrypted object raises `Unavailable` with the way out.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from tiered.errors import Corrupt, Unavailable
from tiered.object_store.encrypted_object import (
    HEADER_BYTES,
    MAGIC,
    NONCE_BYTES,
    Header,
    ObjectCipher,
    begin_size,
    find_chunks,
    load_cipher,
    make_header,
    parse_header,
    stored_size,
    unwrap_data_key,
)
from tiered.object_store.encrypting_file import EncryptingFile
from tiered.object_store.key_file import SETTING, KeyFile
from tiered.object_store.key_ring import KEY_BYTES, REFUSE_PLAIN
from tiered.object_store.upload_body import UploadBody
from tiered.ports import Buffer, FileSlice, GetResult, ListedObject, NotFound, ObjectStore, PutResult
from tiered.thread_pool import ThreadPool

OPENED_MAX = 4_096
"""Limit on the objects whose data keys are in memory, about 1 KB each."""
TRIES = 3
"""Reads of an object that fails its check or changes, before the failure is raised."""
INLINE_BYTES = 128 << 10
"""Up to so many bytes are encrypted on the event loop: a thread costs more."""
THREADS = 2
SECONDS = 60.0
T = TypeVar("T")


class _Opened(NamedTuple):
    """An object whose begin was read: its version, and its cipher, None if the object is plain."""

    version: str
    cipher: ObjectCipher | None


class EncryptedStore:
    """The store `inner`, encrypted by the keys of `key_file`; with None it reads and writes plain objects only."""

    def __init__(self, inner: ObjectStore, key_file: KeyFile | None) -> None:
        self.url = inner.url
        self._inner = inner
        self._key_file = key_file
        self._opened: OrderedDict[str, _Opened] = OrderedDict()
        self._threads = ThreadPool("encryption", THREADS)
        if key_file is not None:
            load_cipher()  # a missing package is told at the start

    @property
    def has_keys(self) -> bool:
        """True if the store can read encrypted objects."""
        return self._key_file is not None

    @property
    def active_key_id(self) -> str:
        """Returns the id of the key for new objects; "" if they are not encrypted."""
        return self._key_file.ring().active if self._key_file is not None else ""

    def describe_missing_keys(self, key_ids: Iterable[str]) -> Iterator[str]:
        """Yields a sentence for each of the keys of other writers that this store does not have."""
        for key_id in key_ids:
            why = f"this broker lacks the key {key_id}, by which another broker encrypts what it writes"
            if self._key_file is None:
                yield f"{why}: set {SETTING}"
            elif self._key_file.find(key_id) is None:
                yield f"{why}: add the key to {self._key_file.path}"

    # -- reads --------------------------------------------------------------------------------------------------------

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        if self._key_file is None:
            got = await self._inner.get(key, start, length)
            if isinstance(got, GetResult) and start == 0 and got.data.startswith(MAGIC):
                raise _no_keys(got.data, key)
            return got
        for tries_left in reversed(range(TRIES)):
            try:
                if start == 0:
                    return await self._get_begin(key, length, self._key_file)
                found = await self._get_range(key, start, length, self._key_file)
            except Corrupt:
                if not tries_left:
                    raise
                continue
            if found is not None:
                return found
        raise Unavailable(f"get failed store={self.url} key={key} error=the object changed {TRIES} times meanwhile")

    async def find_key_id(self, key: str) -> str | None:
        """Returns the id of the key that encrypts an object: "" if the object is plain, None if it does not exist.

        Needs no key. Raises `Corrupt` if the header is damaged, and `Unavailable` (`refused`) if a newer program wrote
        it.
        """
        got = await self._inner.get(key, 0, HEADER_BYTES)
        if isinstance(got, NotFound):
            return None
        header = parse_header(got.data, key)
        return "" if header is None else header.key_id

    async def _get_begin(self, key: str, length: int | None, key_file: KeyFile) -> GetResult | NotFound:
        """Gets the object or its first `length` bytes with the header, in one request."""
        got = await self._inner.get(key, 0, None if length is None else begin_size(length))
        if isinstance(got, NotFound):
            self._opened.pop(key, None)
            return got
        opened = self._open(key, got, key_file, is_whole=length is None)
        if opened.cipher is None:
            return got if length is None else GetResult(got.data[:length], got.size, got.version)
        size = opened.cipher.size
        wanted = size if length is None else min(length, size)
        if wanted == 0 and length is not None:
            return GetResult(b"", size, got.version)
        data = await self._decrypt(opened.cipher, memoryview(got.data)[HEADER_BYTES:], 0, wanted, key)
        return GetResult(data, size, got.version)

    async def _get_range(
        self, key: str, start: int, length: int | None, key_file: KeyFile
    ) -> GetResult | NotFound | None:
        """Gets a range. Returns None if the object is another one than that whose header is known."""
        opened = self._opened.get(key)
        if opened is None or (opened.cipher is None and key_file.ring().refuses_plain):
            begin = await self._inner.get(key, 0, HEADER_BYTES)
            if isinstance(begin, NotFound):
                return begin
            opened = self._open(key, begin, key_file, is_whole=False)
        self._opened.move_to_end(key)
        cipher = opened.cipher
        if cipher is None:
            got = await self._inner.get(key, start, length)
        elif start >= cipher.size or length == 0:
            got = await self._inner.get(key, 0, 0)
        else:
            wanted = cipher.size - start if length is None else min(length, cipher.size - start)
            chunks = find_chunks(start, wanted, cipher.size)
            got = await self._inner.get(key, chunks.position, chunks.length)
        if isinstance(got, NotFound):
            self._opened.pop(key, None)
            return got
        if got.version != opened.version:
            self._opened.pop(key, None)
            return None
        if cipher is None:
            return got
        if start >= cipher.size or length == 0:
            return GetResult(b"", cipher.size, got.version)
        data = await self._decrypt(cipher, memoryview(got.data), start, wanted, key)
        return GetResult(data, cipher.size, got.version)

    def _open(self, key: str, begin: GetResult, key_file: KeyFile, *, is_whole: bool) -> _Opened:
        """Reads the header at the begin of an object. Raises `Corrupt`, and `Unavailable` without its key."""
        header = parse_header(memoryview(begin.data)[:HEADER_BYTES], key)
        cipher = None
        if header is None and key_file.ring().refuses_plain:
            raise Corrupt(f"object is plain, and {key_file.path} has the line {REFUSE_PLAIN}", where=key)
        if header is not None:
            if begin.size != stored_size(header.size):
                why = f"encrypted object has {begin.size} of {stored_size(header.size)} bytes"
                raise Corrupt(why, where=key, position=begin.size)
            cipher = ObjectCipher(_unwrap(header, key, key_file), key, header.size)
        opened = _Opened(begin.version, cipher)
        if not is_whole:
            self._opened[key] = opened
            if len(self._opened) > OPENED_MAX:
                self._opened.popitem(last=False)
        return opened

    async def _decrypt(self, cipher: ObjectCipher, sealed: memoryview, start: int, wanted: int, key: str) -> bytes:
        chunks = find_chunks(start, wanted, cipher.size)
        if len(sealed) < chunks.length:
            why = f"encrypted object ends early: {len(sealed)} of {chunks.length} bytes"
            raise Corrupt(why, where=key, position=chunks.position)
        return await self._work(wanted, lambda: cipher.decrypt(sealed[: chunks.length], chunks, start, wanted))

    # -- writes -------------------------------------------------------------------------------------------------------

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        content = memoryview(data).cast("B")
        made = self._make(key, len(content))
        if made is not None:
            header, cipher = made
            data = await self._work(len(content), lambda: header + cipher.encrypt(content))
        self._opened.pop(key, None)
        return await self._inner.put(key, data, if_absent=if_absent, if_match=if_match)

    async def upload(self, key: str, parts: Sequence[Buffer | FileSlice]) -> PutResult:
        if self._key_file is not None:
            content = UploadBody(parts)
            made = self._make(key, content.size)
            if made is not None:
                header, cipher = made
                file = EncryptingFile(key, content, cipher)
                parts = [header, FileSlice(file, 0, file.length)]
        self._opened.pop(key, None)
        return await self._inner.upload(key, parts)

    def _make(self, key: str, size: int) -> tuple[bytes, ObjectCipher] | None:
        """Returns header and cipher of a new object, None if it is to be plain."""
        ring = None if self._key_file is None else self._key_file.ring()
        ring_key = ring.find(ring.active) if ring is not None else None
        if ring is None or ring_key is None:
            return None
        data_key = os.urandom(KEY_BYTES)
        header = make_header(ring_key, ring.active, data_key, os.urandom(NONCE_BYTES), key, size)
        return header, ObjectCipher(data_key, key, size)

    # -- the rest -----------------------------------------------------------------------------------------------------

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ListedObject]:
        return await self._inner.list(prefix, after, limit)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._opened.pop(key, None)
        await self._inner.delete(keys)

    async def end_old_uploads(self, prefix: str) -> int:
        return await self._inner.end_old_uploads(prefix)

    async def close(self) -> None:
        self._threads.close()
        await self._inner.close()

    async def _work(self, size: int, call: Callable[[], T]) -> T:
        if size <= INLINE_BYTES:
            return call()
        try:
            return await self._threads.run(call, SECONDS)
        except TimeoutError:
            raise Unavailable(f"encryption of {size} bytes took more than {SECONDS:g} s store={self.url}") from None


def _unwrap(header: Header, key: str, key_file: KeyFile) -> bytes:
    ring_key = key_file.find(header.key_id)
    if ring_key is None:
        why = f"{key} is encrypted by key {header.key_id}, which {key_file.path} does not have: add the key"
        raise Unavailable(why, refused=True)
    return unwrap_data_key(header, ring_key, key)


def _no_keys(data: bytes, key: str) -> Unavailable:
    header = parse_header(data, key) if len(data) >= HEADER_BYTES else None
    by = f" by key {header.key_id}" if header is not None else ""
    why = f"{key} is encrypted{by}, and no keys are given: set {SETTING}, or add ?keys=FILE to the URL of the store"
    return Unavailable(why, refused=True)

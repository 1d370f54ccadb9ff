"""Encrypts the objects of a bucket anew under the active key of its key file, so that older keys may go.

It may run beside brokers. An object that is replaced meanwhile is not written over: its put has a condition (M1). An
upload of a large segment has none. Therefore it is made only for a segment that its manifest names, and deleted if the
manifest does not name it afterwards: retention may have deleted the segment before the upload ended (I23).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from functools import partial
from typing import IO, NamedTuple

from tiered.cold.layout import parse_key
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.object_store.conditional_put import PutOutcome, Stored, put_until_known
from tiered.object_store.encrypted import EncryptedStore
from tiered.object_store.probe import FOLDER
from tiered.object_store.url import open_store
from tiered.offline.bucket import READ_AHEAD_BYTES, Bucket
from tiered.ports import FileSlice, ListedObject, NotFound, Ok, describe_failed_put
from tiered.system.clock import SystemClock, SystemRng

AT_ONCE = 8
WHOLE_BYTES = 16 << 20
"""A larger segment goes through a temporary file; all other objects are held in memory as a whole."""
PIECE_BYTES = 8 << 20
PAGE_KEYS = 1_000
TRIES = 3
PAUSE_SECONDS = 0.1
FAULTS_MAX = 10
SEGMENT_SUFFIX = ".seg"

Report = Callable[["RewriteCounts"], None]


class RewriteCounts(NamedTuple):
    """Objects that were encrypted anew, their bytes, and the objects that are left under another key or none."""

    object_count: int = 0
    stored_bytes: int = 0
    left: int = 0
    faults: tuple[str, ...] = ()
    """The first reasons for objects that are left."""


class _Copy:
    """A temporary file as a source of an upload."""

    def __init__(self, file: IO[bytes]) -> None:
        self.name = "copy"
        self._file = file

    def fileno(self) -> int:
        return self._file.fileno()

    def pread(self, offset: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), length, offset)


class BucketRewriter:
    """The objects of the open store `store`."""

    def __init__(self, store: EncryptedStore) -> None:
        self._store = store
        self._bucket = Bucket(store, READ_AHEAD_BYTES)

    async def rewrite(self, report: Report, on_looked: Callable[[int], None] = lambda _: None) -> RewriteCounts:
        """Encrypts all objects that the active key does not encrypt. Objects that cannot be read are left: damaged
        ones, those of a newer program, and those whose key the file does not have. Raises `Refused` without an active
        key, and `Unavailable` if the store fails."""
        if not self._store.active_key_id:
            why = "no key encrypts new objects: name a key file by ?keys=FILE, and activate a key in it"
            raise Refused(Code.INVALID_REQUEST, why)
        done = RewriteCounts()
        looked = 0
        last = ""
        while page := await self._store.list("", last, PAGE_KEYS):
            last = page[-1].key
            wanted = [each for each in page if not each.key.startswith(f"{FOLDER}/")]
            small = [each for each in wanted if not _is_large(each)]
            for at in range(0, len(small), AT_ONCE):
                some = small[at : at + AT_ONCE]
                done = _add(done, some, await asyncio.gather(*(self._try(each) for each in some)))
                on_looked(looked := looked + len(some))
            for each in filter(_is_large, wanted):
                done = _add(done, [each], [await self._try(each)])
                on_looked(looked := looked + 1)
            report(done)
        return done

    async def _try(self, listed: ListedObject) -> bool | str:
        """Returns True if the object was encrypted anew, False if it did not need that, and else the reason."""
        rewrite = self._rewrite_large if _is_large(listed) else self._rewrite_small
        try:
            for _ in range(TRIES):
                key_id = await self._store.find_key_id(listed.key)
                if key_id in (None, self._store.active_key_id):
                    return False
                outcome = await rewrite(listed.key)
                if outcome is not None:
                    return outcome
        except Corrupt as error:
            return str(error)
        except Unavailable as error:
            if not error.refused:
                raise
            return str(error)
        return f"{listed.key} changed {TRIES} times meanwhile"

    async def _rewrite_small(self, key: str) -> bool | str | None:
        """Returns None if the object was changed meanwhile.

        The active key serves as the nonce of the new object, and the version as that of the earlier one. If another
        writer has encrypted the object meanwhile, nothing is left to do.
        """
        got = await self._store.get(key)
        if isinstance(got, NotFound):
            return False
        settled = await put_until_known(
            self._store, key, got.data, self._store.active_key_id,
            before=Stored(got.data, got.version, got.version), read=partial(self._read_back, key), pause=_pause,
        )  # fmt: skip
        return None if settled.outcome is PutOutcome.LOST else settled.outcome is PutOutcome.LANDED

    async def _read_back(self, key: str) -> Stored[bytes] | None:
        got = await self._store.get(key)
        if isinstance(got, NotFound):
            return None
        is_done = await self._store.find_key_id(key) == self._store.active_key_id
        return Stored(got.data, self._store.active_key_id if is_done else got.version, got.version)

    async def _rewrite_large(self, key: str) -> bool | str | None:
        if not await self._is_named(key):
            return f"{key} is named by no manifest: the next sweep deletes it, or a later run finds it named"
        with tempfile.TemporaryFile() as file:
            size = await self._copy(key, file)
            if size is None:
                return None
            result = await self._store.upload(key, [FileSlice(_Copy(file), 0, size)])
        if not await self._is_named(key):
            await self._store.delete([key])
            return False
        return True if isinstance(result, Ok) else f"upload of {key} failed: {describe_failed_put(result)}"

    async def _copy(self, key: str, file: IO[bytes]) -> int | None:
        """Copies the content into a file, and returns its size; None if the object changed meanwhile."""
        version, size = "", 0
        while True:
            got = await self._store.get(key, size, PIECE_BYTES)
            if isinstance(got, NotFound) or got.version != (version or got.version):
                return None
            if not got.data:
                file.flush()
                return size
            version = got.version
            file.write(got.data)
            size += len(got.data)

    async def _is_named(self, key: str) -> bool:
        """True if the manifest of its partition names the segment."""
        name = parse_key(key)
        manifest = None if name is None else await self._bucket.manifests.load(name.partition)
        if name is None or manifest is None:
            return False
        found = await self._bucket.manifests.find_segment(manifest, max(name.base_offset, manifest.log_start_offset))
        return found is not None and found.key == key


async def rewrite_objects(url: str, report: Report, on_looked: Callable[[int], None] = lambda _: None) -> RewriteCounts:
    """Encrypts the objects of a bucket anew. `report` is called now and then, `on_looked` with the number of objects
    that were looked at so far."""
    store = open_store(url, SystemClock(), SystemRng(), create=False)
    try:
        return await BucketRewriter(store).rewrite(report, on_looked)
    finally:
        await store.close()


async def _pause(failed: int, why: str) -> None:
    if failed == TRIES:
        raise Unavailable(f"the store confirmed no put: {why}")
    await asyncio.sleep(PAUSE_SECONDS * 2**failed)


def _is_large(listed: ListedObject) -> bool:
    return listed.size > WHOLE_BYTES and listed.key.endswith(SEGMENT_SUFFIX)


def _add(done: RewriteCounts, listed: list[ListedObject], outcomes: list[bool | str]) -> RewriteCounts:
    rewritten = [each.size for each, outcome in zip(listed, outcomes, strict=True) if outcome is True]
    faults = [outcome for outcome in outcomes if isinstance(outcome, str)]
    return RewriteCounts(
        done.object_count + len(rewritten),
        done.stored_bytes + sum(rewritten),
        done.left + len(faults),
        (*done.faults, *faults)[:FAULTS_MAX],
    )

"""The folder of a table's log, in a directory or a bucket: each file is created at most once, whatever races.

A directory gets a synced temporary file that is linked to its name, as `LinkedFileLogStore` does for Spark. A bucket
gets a conditional put, as `ConditionalS3LogStore` does. If the outcome is unclear, the file is read back: its bytes
contain the id of this attempt.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, TypeVar
from urllib.parse import urlsplit

from pyspark_tiered.delta.folder_url import bucket_prefix
from pyspark_tiered.delta.orphans import StoredFile
from tiered.errors import Code, Refused, Unavailable
from tiered.metrics import Metrics
from tiered.object_store.metered import MeteredStore
from tiered.object_store.url import open_store
from tiered.ports import ConditionFailed, FileSlice, GetResult, NotFound, ObjectStore, Ok, PutResult
from tiered.system.clock import SystemClock, SystemRng
from tiered.system.local_disk import LocalDisk

LOG = "_delta_log"
READ_BYTES = 8 << 20
IN_PARTS_BYTES = 512 << 20
"""Size from which the store on S3 uploads a file in parts."""
LIST_KEYS = 1000
READS_AT_ONCE = 8
"""Files of a bucket that are read at the same time: commits are small, and each request waits."""
PUTS_AT_ONCE = 8
"""Small files that are put into a bucket at the same time."""
DATA_PREFIX = "part-"
"""Beginning of the names of files with rows, Spark's too."""
UNWRITABLE = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EROFS)
"""Errors of a place that never can be written."""
T = TypeVar("T")


class UnclearOutcome(Exception):
    """Nobody knows yet if a file was created: the reader of the table can tell later."""


class TableFolder(ABC):
    """The files of one table, by paths relative to it. Plain, blocking code."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def list_names(self, folder: str, after: str = "") -> list[str]:
        """Returns the names of files right in a folder that are greater than `after`, in order."""

    @abstractmethod
    def list_versions(self, folder: str, after: str = "") -> dict[str, str]:
        """Returns what `list_names` does, and for each name the version: another file of that name has another one."""

    @abstractmethod
    def list_files(self, folder: str, beginning: str = "") -> Iterator[StoredFile]:
        """Yields the files right in a folder, in order of their names. Reads no further than it is asked.

        The empty text is the folder of the table. `beginning` is that of the names.
        """

    def list_and_read(self, folder: str, after: str, name: str) -> tuple[dict[str, str], bytes | None]:
        """Returns what `list_versions` does. A bucket is asked for the file `name` of the folder too, at the same time:
        its bytes come with the list that has this version of it."""
        return self.list_versions(folder, after), None

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """Returns the bytes of a file, None if it is absent."""

    @abstractmethod
    def modified_ms(self, path: str) -> int | None:
        """Returns the time at which a file was written, in milliseconds since 1970; None if it is absent."""

    def read_each(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        """Yields the bytes of each file, None if it is absent."""
        return map(self.read, paths)

    @abstractmethod
    def create(self, path: str, data: bytes) -> str | None:
        """Creates a file, and returns its version; None if another writer's is there. Raises `UnclearOutcome`."""

    def create_each(self, files: Mapping[str, bytes]) -> None:
        """Creates files whose names say what is in them, in any order: one that is there is the same. Raises
        `UnclearOutcome`."""
        for path, data in files.items():
            self.create(path, data)

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Writes a file, also over an older one."""

    @abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Deletes files; an absent one is no error."""

    @abstractmethod
    def list_data_files(self) -> Iterator[StoredFile]:
        """Yields the files with rows, and those that are still being written under a hidden name."""

    @abstractmethod
    def local(self, path: str) -> AbstractContextManager[Path]:
        """Returns a context with a local path to the content of a file."""

    def upload(self, scratch: str, name: str) -> None:
        """Uploads a file of the local folder `scratch`. Files of a table in a directory are written in place."""
        raise NotImplementedError

    def count_requests(self) -> dict[str, int]:
        """Returns the number of requests to a bucket so far by verb."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Ends the use of the folder."""


class DirectoryFolder(TableFolder):
    """A table in a local directory."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._root = Path(url.removeprefix("file:"))

    def list_names(self, folder: str, after: str = "") -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._root / folder) if name > after)
        except FileNotFoundError:
            return []

    def list_versions(self, folder: str, after: str = "") -> dict[str, str]:
        found = {}
        for name in self.list_names(folder, after):
            with suppress(FileNotFoundError):
                found[name] = _version(self._root / folder / name)
        return found

    def list_files(self, folder: str, beginning: str = "") -> Iterator[StoredFile]:
        for name in self.list_names(folder):
            if name.startswith(beginning):
                with suppress(FileNotFoundError):
                    found = (self._root / folder / name).stat()
                    yield StoredFile(name, found.st_mtime_ns // 1_000_000, found.st_size)

    def read(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def modified_ms(self, path: str) -> int | None:
        try:
            return (self._root / path).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def create(self, path: str, data: bytes) -> str | None:
        target = self._root / path
        if not self._link(target, data):
            return None
        _sync_folder(target.parent)
        return _version(target)

    def create_each(self, files: Mapping[str, bytes]) -> None:
        targets = {self._root / path: data for path, data in files.items()}
        for target, data in targets.items():
            self._link(target, data)
        for folder in {target.parent for target in targets}:
            _sync_folder(folder)

    def _link(self, target: Path, data: bytes) -> bool:
        """Links a synced file to its name. Returns false if another writer's is there."""
        with self._temporary(target, data) as temporary:
            try:
                os.link(temporary, target)
            except OSError as failure:
                # A network file system may have linked it and lost the reply.
                return self._read_back(target, failure) == data
        return True

    def replace(self, path: str, data: bytes) -> None:
        target = self._root / path
        with self._temporary(target, data) as temporary:
            # Hadoop keeps a checksum beside each file that it wrote itself: one of the old content forbids the new.
            (target.parent / f".{target.name}.crc").unlink(missing_ok=True)
            os.replace(temporary, target)
        _sync_folder(target.parent)

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            target = self._root / path
            target.unlink(missing_ok=True)
            (target.parent / f".{target.name}.crc").unlink(missing_ok=True)  # Hadoop's, beside a file that it wrote

    def list_data_files(self) -> Iterator[StoredFile]:
        with os.scandir(self._root) as entries:
            for entry in entries:
                if entry.name.startswith((DATA_PREFIX, f".{DATA_PREFIX}")):
                    with suppress(FileNotFoundError):
                        yield StoredFile(entry.name, entry.stat().st_mtime_ns // 1_000_000)

    @contextmanager
    def local(self, path: str) -> Iterator[Path]:
        yield self._root / path

    def close(self) -> None:
        return

    def _read_back(self, target: Path, failure: OSError) -> bytes:
        try:
            return target.read_bytes()
        except OSError as unread:
            if isinstance(failure, FileExistsError):
                raise UnclearOutcome(f"{target} exists and cannot be read: {unread}") from failure
            raise Unavailable(f"{target} could not be created: {failure}") from failure

    @contextmanager
    def _temporary(self, target: Path, data: bytes) -> Iterator[Path]:
        make_folder(target.parent)
        temporary = target.parent / f".{target.name}.{uuid.uuid4()}.tmp"
        try:
            with refuse_unwritable(target.parent):
                file = temporary.open("xb")
            with file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


class BucketConnection:
    """An open bucket for plain, blocking code. It has its own event loop, so it may not be used inside of another."""

    def __init__(self, url: str) -> None:
        self.store = open_store(url, SystemClock(), SystemRng())
        self._loop = asyncio.new_event_loop()

    def run(self, call: Coroutine[object, object, T]) -> T:
        """Runs a request."""
        return self._loop.run_until_complete(call)

    def close(self) -> None:
        """Closes the bucket."""
        self.run(self.store.close())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class SharedConnection(BucketConnection):
    """An open bucket for calls from several threads at once: its event loop runs in a thread of its own."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._thread = threading.Thread(target=self._loop.run_forever, name="bucket", daemon=True)
        self._thread.start()

    def run(self, call: Coroutine[object, object, T]) -> T:
        """Runs a request."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def close(self) -> None:
        """Closes the bucket."""
        self.run(self.store.close())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BucketFolder(TableFolder):
    """A table in a bucket. Tables may share a connection, which they do not close."""

    def __init__(self, url: str, shared: BucketConnection | None = None) -> None:
        super().__init__(url)
        bucket, self._prefix = bucket_prefix(url)
        self._shared = shared
        self._connection = shared or BucketConnection(f"s3a://{bucket}")
        self._store = MeteredStore(self._connection.store, SystemClock(), Metrics())
        """The store of the connection. The requests of this table are counted apart."""

    def list_names(self, folder: str, after: str = "") -> list[str]:
        return list(self.list_versions(folder, after))

    def list_versions(self, folder: str, after: str = "") -> dict[str, str]:
        return self._run(self._list(folder, after))

    def list_and_read(self, folder: str, after: str, name: str) -> tuple[dict[str, str], bytes | None]:
        return self._run(self._list_and_read(folder, after, name))

    async def _list_and_read(self, folder: str, after: str, name: str) -> tuple[dict[str, str], bytes | None]:
        files, got = await asyncio.gather(
            self._list(folder, after), self._store.get(f"{self._prefix}{folder}/{name}"), return_exceptions=True
        )
        if isinstance(files, BaseException):
            raise files
        if isinstance(got, GetResult) and got.version == files.get(name):
            return files, got.data
        return files, None

    async def _list(self, folder: str, after: str) -> dict[str, str]:
        prefix = f"{self._prefix}{folder}/"
        found: dict[str, str] = {}
        last = f"{prefix}{after}" if after else ""
        while True:
            page = await self._store.list(prefix, last, LIST_KEYS)
            if not page:
                return found
            found |= {name: each.version for each in page if "/" not in (name := each.key.removeprefix(prefix))}
            last = page[-1].key
            if len(page) < LIST_KEYS:  # a list of S3 is short at its end only
                return found

    def list_files(self, folder: str, beginning: str = "") -> Iterator[StoredFile]:
        prefix = last = f"{self._prefix}{folder}/" if folder else self._prefix
        while page := self._run(self._store.list(prefix + beginning, last, LIST_KEYS)):
            for each in page:
                if "/" not in (name := each.key.removeprefix(prefix)):
                    yield StoredFile(name, each.modified_ms, each.size)
            last = page[-1].key
            if len(page) < LIST_KEYS:
                return

    def read(self, path: str) -> bytes | None:
        got = self._run(self._store.get(self._prefix + path))
        return None if isinstance(got, NotFound) else got.data

    def modified_ms(self, path: str) -> int | None:
        found = self._run(self._store.list(self._prefix + path, "", 1))
        return found[0].modified_ms if found and found[0].key == self._prefix + path else None

    def read_each(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        for first in range(0, len(paths), READS_AT_ONCE):
            for got in self._run(self._get_each(paths[first : first + READS_AT_ONCE])):
                if isinstance(got, BaseException):
                    raise got
                yield None if isinstance(got, NotFound) else got.data

    async def _get_each(self, paths: Sequence[str]) -> list[GetResult | NotFound | BaseException]:
        return await asyncio.gather(*(self._store.get(self._prefix + path) for path in paths), return_exceptions=True)

    def create(self, path: str, data: bytes) -> str | None:
        result = self._run(self._store.put(self._prefix + path, data, if_absent=True))
        if isinstance(result, Ok):
            return result.version
        try:
            found = self._run(self._store.get(self._prefix + path))
        except Unavailable as unread:
            raise UnclearOutcome(f"{path} in {self.url}: {result!r}, and it cannot be read: {unread}") from unread
        if isinstance(found, NotFound):
            raise UnclearOutcome(f"{path} in {self.url}: {result!r}")
        return found.version if found.data == data else None

    def create_each(self, files: Mapping[str, bytes]) -> None:
        paths = list(files)
        for first in range(0, len(paths), PUTS_AT_ONCE):
            some = paths[first : first + PUTS_AT_ONCE]
            for path, result in zip(some, self._run(self._put_each(files, some)), strict=True):
                if isinstance(result, BaseException):
                    raise result
                if not isinstance(result, Ok | ConditionFailed):
                    self.create(path, files[path])

    async def _put_each(self, files: Mapping[str, bytes], paths: Sequence[str]) -> list[PutResult | BaseException]:
        puts = (self._store.put(self._prefix + path, files[path], if_absent=True) for path in paths)
        return await asyncio.gather(*puts, return_exceptions=True)

    def replace(self, path: str, data: bytes) -> None:
        result = self._run(self._store.put(self._prefix + path, data))
        if not isinstance(result, Ok):
            raise Unavailable(f"{path} was not stored in {self.url}: {result!r}")

    def delete(self, paths: Sequence[str]) -> None:
        self._run(self._store.delete([self._prefix + path for path in paths]))

    def list_data_files(self) -> Iterator[StoredFile]:
        last = ""
        while page := self._run(self._store.list(self._prefix + DATA_PREFIX, last, LIST_KEYS)):
            for each in page:
                yield StoredFile(each.key.removeprefix(self._prefix), each.modified_ms)
            last = page[-1].key
            if len(page) < LIST_KEYS:
                return

    @contextmanager
    def local(self, path: str) -> Iterator[Path]:
        with TemporaryDirectory(prefix="tiered-table-") as scratch:
            copy = Path(scratch) / "file"
            with copy.open("wb") as out:
                self._run(self._copy(path, out))
            yield copy

    def upload(self, scratch: str, name: str) -> None:
        self._run(upload_file(self._store, self._prefix, scratch, name))

    def count_requests(self) -> dict[str, int]:
        return self._store.count_by_verb()

    def close(self) -> None:
        if self._shared is None:
            self._connection.close()

    async def _copy(self, path: str, out: BinaryIO) -> None:
        start = 0
        while True:
            got = await self._store.get(self._prefix + path, start, READ_BYTES)
            if isinstance(got, NotFound):
                raise Unavailable(f"{path} is not in {self.url}", final=True)
            out.write(got.data)
            start += len(got.data)
            if start >= got.size:
                return

    def _run(self, call: Coroutine[object, object, T]) -> T:
        return self._connection.run(call)


def open_table_bucket(url: str) -> tuple[ObjectStore, str]:
    """Opens the bucket of a table. Returns it, and the beginning of the table's keys in it."""
    bucket, prefix = bucket_prefix(url)
    return open_store(f"s3a://{bucket}", SystemClock(), SystemRng()), prefix


async def upload_file(store: ObjectStore, prefix: str, scratch: str, name: str) -> None:
    """Uploads a file of the folder `scratch` below a prefix of an open store.

    A large file goes in parts. So do those of loaders that were killed, whose parts are then ended.
    """
    file = LocalDisk(scratch).open(name, write=False)
    try:
        if file.size() >= IN_PARTS_BYTES:
            await store.end_old_uploads(prefix)
        result = await store.upload(prefix + name, [FileSlice(file, 0, file.size())])
    finally:
        file.close()
    if not isinstance(result, Ok):
        raise Unavailable(f"{name} was not stored in {store.url}: {result!r}")


def open_folder(url: str, shared: BucketConnection | None = None) -> TableFolder:
    """Opens the folder of a table: a URL of Hadoop (`file:` or `s3a:`). Raises `Refused` for another one.

    `shared` is a connection to its bucket that other tables use too.
    """
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return DirectoryFolder(url)
    if scheme in ("s3", "s3a"):
        return BucketFolder(url, shared)
    raise refuse_place(url)


def refuse_place(url: str) -> Refused:
    """Returns the error for a folder that only Hadoop knows."""
    return Refused(
        Code.INVALID_REQUEST,
        f"tables are read and written in directories and on S3 only, not at {url}: `tiered sql --engine spark` and "
        "programs with Spark may query tables elsewhere",
    )


def make_folder(folder: Path) -> None:
    """Creates a folder and those above it. Raises `Refused` if that is not possible."""
    with refuse_unwritable(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def refuse_unwritable(folder: Path) -> Iterator[None]:
    """Raises `Refused` for a folder in which nobody, or not this process, may write."""
    try:
        yield
    except PermissionError:
        raise Refused(Code.INVALID_REQUEST, f"no permission to write in {folder}") from None
    except OSError as failure:
        if failure.errno not in UNWRITABLE:
            raise
        raise Refused(Code.INVALID_REQUEST, f"{folder} cannot be written: {failure.strerror}") from None


def _version(path: Path) -> str:
    found = path.stat()
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The ObjectStore port on a directory: the embedded default. Several processes may share it.

An object is a file under its key, byte for byte. A create is a synced temporary file and link(2). Every other change
holds a lock file, so that compare and rename are one step. The version of an object is its modification time. Whole
milliseconds are the time, and the microseconds are random. Under one key it only grows, so that the same bytes written
again are another version. A file system that cannot keep such times is refused at its first write.

Keys are paths: a key must not be the directory of another. Files and directories that the store creates are for its
user alone. A directory that existed before keeps its mode.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from stat import S_IMODE
from typing import TypeVar

from tiered.errors import PERMISSION_ERRNOS, Code, Refused, Unavailable, make_directory_error
from tiered.object_store.upload_body import UploadBody
from tiered.ports import (
    Buffer,
    Clock,
    ConditionFailed,
    FileSlice,
    GetResult,
    ListedObject,
    NotFound,
    Ok,
    PutResult,
    Rng,
    Unknown,
)
from tiered.system.local_disk import DIRECTORY_MODE, FILE_MODE, make_private, sync_file
from tiered.thread_pool import ThreadPool

log = logging.getLogger(__name__)

SECONDS = 10.0
UPLOAD_BYTES_PER_SECOND = 1 << 20
LOCK_SECONDS = 5.0
LOCKS = 64
COPY_BYTES = 1 << 20
MOVE_TRIES = 100
"""Tries to move an object into place while other processes create and delete objects."""
TEMPORARY_MS = 24 * 3600 * 1000
INTERNAL = (".tmp", ".lock")
CREDENTIAL = "meta/FORMAT"
"""The object with the secret from which brokers make their credentials."""
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
T = TypeVar("T")


class DirectoryStore:
    """Objects as files below `root`, which is created if absent. With `create` false it is not: for code that only
    reads."""

    def __init__(self, root: str, clock: Clock, rng: Rng, *, create: bool = True) -> None:
        self.root = os.path.abspath(root)
        self.url = f"file://{self.root}"
        self._marker_directory = os.path.join(self.root, INTERNAL[0]) if create else self.root
        """A directory that exists as long as the store does: after an unmount `root` may still exist, and be empty."""
        self._clock = clock
        self._random = rng.stream("directory-store")
        self._small = ThreadPool("store", 8)
        self._bulk = ThreadPool("store-bulk", 8)
        if not create:
            if not os.path.isdir(self.root):
                raise Refused(Code.INVALID_CONFIG, f"there is no store {self.url}: no such directory")
            return
        try:
            for name in INTERNAL:
                make_private(os.path.join(self.root, name))
            self._restrict_credential()
            self._delete_abandoned()
        except OSError as error:
            raise make_directory_error(f"cannot use the store {self.url}", error) from None

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        path = self._path(key)
        workers = self._small if start == 0 and length is None else self._bulk
        return await self._request(workers, "get", key, lambda: self._check_store_mounted(_read(path, start, length)))

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        path, whole = self._path(key), UploadBody([bytes(data)])  # the thread may outlive the caller's buffer
        return await self._run_put(self._small, SECONDS, lambda: self._put(path, whole, if_absent, if_match))

    async def upload(self, key: str, parts: Sequence[Buffer | FileSlice]) -> PutResult:
        path, whole = self._path(key), UploadBody(parts)
        seconds = SECONDS + whole.size / UPLOAD_BYTES_PER_SECOND
        return await self._run_put(self._bulk, seconds, lambda: self._put(path, whole, False, None))

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ListedObject]:
        return await self._request(
            self._small,
            "list",
            prefix,
            lambda: self._check_store_mounted(_list_objects(self.root, prefix, after, limit)),
        )

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            path = self._path(key)
            await self._request(self._small, "delete", key, lambda: self._delete(path))  # noqa: B023

    async def end_old_uploads(self, prefix: str) -> int:
        """Deletes temporary files of all keys: their names do not tell the key."""
        return await self._request(self._small, "list", prefix, self._delete_abandoned)

    async def close(self) -> None:
        self._small.close()
        self._bulk.close()

    # -- outcomes -----------------------------------------------------------------------------------------------------

    async def _request(self, workers: ThreadPool, verb: str, key: str, call: Callable[[], T]) -> T:
        try:
            return await workers.run(call, SECONDS)
        except OSError as error:  # TimeoutError is one
            problem = (
                f"{verb} failed store={self.url} key={key} error={error.strerror or f'no reply within {SECONDS:g} s'}"
            )
            raise Unavailable(problem, refused=error.errno in PERMISSION_ERRNOS) from None

    async def _run_put(self, workers: ThreadPool, seconds: float, call: Callable[[], PutResult]) -> PutResult:
        try:
            return await workers.run(call, seconds)
        except OSError as error:
            if error.errno in PERMISSION_ERRNOS:
                raise Unavailable(f"put failed store={self.url} error={error.strerror}", refused=True) from None
            return Unknown(error.strerror or f"no reply within {seconds:g} s")

    # -- in the threads -----------------------------------------------------------------------------------------------

    def _check_store_mounted(self, reply: T) -> T:
        """Returns the reply. A reply that an object is absent counts only while the store is mounted."""
        if (isinstance(reply, NotFound | ConditionFailed) or reply == []) and not os.path.isdir(self._marker_directory):
            raise FileNotFoundError(errno.ENOENT, "the directory of the store is gone")
        return reply

    def _put(self, path: str, whole: UploadBody, if_absent: bool, if_match: str | None) -> PutResult:
        if if_absent and os.path.exists(path):
            return ConditionFailed()
        if if_match is not None and _version(path) != if_match:
            return self._check_store_mounted(ConditionFailed())
        temporary = self._temporary()
        try:
            with open(_create_file(temporary), "wb", buffering=0) as file:
                shutil.copyfileobj(whole.window(0, whole.size), file, COPY_BYTES)
                sync_file(file.fileno())
                if if_absent:
                    return self._link(file.fileno(), temporary, path)
                return self._replace(file.fileno(), temporary, path, if_match)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def _link(self, descriptor: int, temporary: str, path: str) -> PutResult:
        version = self._stamp_version(descriptor, 0)
        try:
            self._move_into_place(lambda: os.link(temporary, path), path)
        except FileExistsError:
            return ConditionFailed()
        self._sync_names(os.path.dirname(path))
        return Ok(version)

    def _replace(self, descriptor: int, temporary: str, path: str, if_match: str | None) -> PutResult:
        """Replaces an object. All slow work is done before the lock: a process that freezes under it blocks all
        others."""
        _make_directories(os.path.dirname(path))
        with self._lock(path):
            before = _stat(path)
            if if_match is not None and (before is None or _version_of(before) != if_match):
                return ConditionFailed()
            version = self._stamp_version(descriptor, before.st_mtime_ns if before else 0)
            self._move_into_place(lambda: os.replace(temporary, path), path)
        self._sync_names(os.path.dirname(path))
        return Ok(version)

    def _stamp_version(self, descriptor: int, previous_ns: int) -> str:
        """Gives the file its version. The move to its name comes after that."""
        candidate_ns = self._clock.wall_ms() * 1_000_000 + self._random.randrange(1000) * 1000
        version_ns = max(candidate_ns, previous_ns + 1000)
        os.utime(descriptor, ns=(version_ns, version_ns))
        stat = os.fstat(descriptor)
        if stat.st_mtime_ns != version_ns:
            raise Unavailable(f"the file system of {self.root} does not keep times to the microsecond", final=True)
        return _version_of(stat)

    def _move_into_place(self, move: Callable[[], None], path: str) -> None:
        """Runs `move`, and repeats it if another process has removed the empty directory meanwhile."""
        folder = os.path.dirname(path)
        for _ in range(MOVE_TRIES):
            try:
                _make_directories(folder)
                move()
            except FileNotFoundError:
                continue
            return
        raise OSError(f"directory {folder} was removed by other processes {MOVE_TRIES} times")

    def _sync_names(self, folder: str) -> None:
        """Makes the names in a directory durable.

        If another process has removed the directory because it was empty, syncs the nearest directory above that still
        exists.
        """
        while True:
            try:
                return _sync_directory(folder)
            except FileNotFoundError:
                if folder == self.root:
                    raise
                folder = os.path.dirname(folder)

    def _delete(self, path: str) -> None:
        with self._lock(path):
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                return
        folder = os.path.dirname(path)
        self._sync_names(folder)
        with contextlib.suppress(OSError):  # not empty, or gone already
            while folder != self.root:
                os.rmdir(folder)
                folder = os.path.dirname(folder)

    # -- names --------------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        parts = key.split("/")
        good = all(part not in ("", ".", "..") for part in parts) and "\0" not in key and parts[0] not in INTERNAL
        assert good, f"bad key {key!r}"
        return os.path.join(self.root, key)

    def _temporary(self) -> str:
        return os.path.join(self.root, ".tmp", f"{os.getpid()}-{self._random.getrandbits(64):016x}")

    def _restrict_credential(self) -> None:
        """Restricts the credential of an older store to its owner. Other objects of that age keep their modes."""
        path = os.path.join(self.root, CREDENTIAL)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = os.stat(path)
            if S_IMODE(found.st_mode) & ~FILE_MODE and found.st_uid == os.geteuid():
                os.chmod(path, FILE_MODE)
                log.info(
                    "credential of the brokers was open to other users and is now restricted path=%s now=%04o",
                    path,
                    FILE_MODE,
                )

    def _delete_abandoned(self) -> int:
        """Deletes temporary files that ended processes left, and returns how many. A limit of one day spares the
        slowest running process."""
        oldest_ms = self._clock.wall_ms() - TEMPORARY_MS
        count = 0
        with os.scandir(os.path.join(self.root, ".tmp")) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat().st_mtime_ns // 1_000_000 < oldest_ms:
                        os.unlink(entry.path)
                        count += 1
        return count

    @contextlib.contextmanager
    def _lock(self, path: str) -> Iterator[None]:
        """Excludes all other changes of this key, in all processes. Raises `TimeoutError` if another process holds it
        too long."""
        name = f"{zlib.crc32(os.path.relpath(path, self.root).encode()) % LOCKS:02d}"
        descriptor = os.open(os.path.join(self.root, ".lock", name), LOCK_FLAGS, FILE_MODE)
        try:
            end = time.monotonic() + LOCK_SECONDS
            pause = 0.0002
            while not _try_lock(descriptor):
                if time.monotonic() > end:
                    raise TimeoutError("another process holds the lock")
                time.sleep(pause)
                pause = min(0.02, pause * 1.5)
            yield
        finally:
            os.close(descriptor)


def _create_file(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: str, start: int, length: int | None) -> GetResult | NotFound:
    try:
        with open(path, "rb", buffering=0) as file:
            stat = os.fstat(file.fileno())
            wanted = max(0, min(stat.st_size - start, stat.st_size if length is None else length))
            chunks: list[bytes] = []
            while wanted and (chunk := os.pread(file.fileno(), wanted, start)):
                chunks.append(chunk)
                start += len(chunk)
                wanted -= len(chunk)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return NotFound()
    return GetResult(chunks[0] if len(chunks) == 1 else b"".join(chunks), stat.st_size, _version_of(stat))


def _list_objects(root: str, prefix: str, after: str, limit: int) -> list[ListedObject]:
    found: list[ListedObject] = []
    for entry, key in _walk_files(root, prefix.rpartition("/")[0], prefix, after):
        if len(found) >= limit:
            break
        with contextlib.suppress(FileNotFoundError):
            stat = entry.stat()
            found.append(ListedObject(key, stat.st_size, stat.st_mtime_ns // 1_000_000, _version_of(stat)))
    return found


def _walk_files(root: str, folder: str, prefix: str, after: str) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Yields files in the order of their keys: a directory sorts by its name with the slash."""
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            inside = [(entry.name + "/" if entry.is_dir() else entry.name, entry) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name, entry in sorted(inside, key=lambda pair: pair[0]):
        key = f"{folder}/{name}" if folder else name
        if not folder and entry.name in INTERNAL:
            continue
        if name.endswith("/"):
            if (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
                yield from _walk_files(root, key[:-1], prefix, after)
        elif key.startswith(prefix) and key > after:
            yield entry, key


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _version(path: str) -> str | None:
    stat = _stat(path)
    return _version_of(stat) if stat else None


def _version_of(stat: os.stat_result) -> str:
    return f"{stat.st_mtime_ns // 1000:x}-{stat.st_size:x}"


def _make_directories(folder: str) -> None:
    """Creates missing directories. Each name is durable before anything is created below it."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    _make_directories(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, DIRECTORY_MODE)
    _sync_directory(parent)


def _sync_directory(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

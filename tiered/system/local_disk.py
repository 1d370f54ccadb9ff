"""The Disk port on a real directory.

Every call but `read`, `sync`, `sync_dir` and `discard` is short and runs in place. These four run in a few threads.
After a failed fsync, or a write that fails because the drive or the file system failed, nothing more is written to the
directory. The state of the page cache is unknown then, and a retry would only hide that. Reads continue. So do
removals, because the mark that vouches for the page cache must be removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import functools
import logging
import mmap
import os
import resource
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from stat import S_IMODE
from types import TracebackType
from typing import TypeVar

from tiered.errors import FULL_ERRNOS, Unavailable, make_directory_error
from tiered.ports import Buffer, Space, WriteErrors

log = logging.getLogger(__name__)
T = TypeVar("T")

THREADS = 4
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
"""Records and the brokers' credential are for the user of the process alone, whatever the umask allows."""
FATAL_ERRORS = frozenset(
    (errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE, getattr(errno, "EUCLEAN", 0))
)
"""Errors after which the state of a file system is unknown: it failed, or it became read-only because of a failure."""
OPEN_FILES_WANTED = 65_536
RESERVE_BYTES = 4 << 20
"""Blocks are reserved in steps of this many bytes, in files that are larger than this."""
KEEP_SIZE = 1
GET_GENERATION = 0x80087601
"""FS_IOC_GETVERSION of Linux."""
PARTS_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)


class LocalDisk:
    """One data directory, created if absent. `close` waits for its threads."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tiered-disk")
        self.write_failure = ""
        """Why nothing is written any more; empty while writes work."""
        self._full = ""
        self._full_count = 0
        _make_root(self.root)

    def open(self, path: str, *, create: bool = False, write: bool = True) -> LocalFile:
        flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        if write:
            self.check_writable()
        try:
            return LocalFile(self, path, os.open(self.resolve(path), flags, FILE_MODE), write)
        except OSError as error:
            raise self.make_error("open", path, error, read_only=not write) from None

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.resolve(path))

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self.resolve(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self.make_error("list", path, error, read_only=True) from None

    def make_dirs(self, path: str) -> None:
        self.check_writable()
        target = self.resolve(path)
        try:
            try:
                os.mkdir(target, DIRECTORY_MODE)
            except (FileExistsError, FileNotFoundError):
                make_private(target)
        except OSError as error:
            raise self.make_error("make_dirs", path, error) from None

    def rename(self, old: str, new: str) -> None:
        self.check_writable()
        try:
            os.replace(self.resolve(old), self.resolve(new))
        except OSError as error:
            raise self.make_error("rename", old, error) from None

    def remove(self, path: str) -> None:
        target = self.resolve(path)
        try:
            if os.path.isdir(target) and not os.path.islink(target):
                shutil.rmtree(target)
            else:
                os.unlink(target)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self.make_error("remove", path, error) from None

    async def discard(self, path: str) -> None:
        await asyncio.wrap_future(self._pool.submit(self.remove, path))

    def space(self) -> Space:
        try:
            stat = os.statvfs(self.root)
        except OSError as error:
            raise self.make_error("space", ".", error, read_only=True) from None
        return Space(total=stat.f_frsize * stat.f_blocks, free=stat.f_frsize * stat.f_bavail)

    def write_errors(self) -> WriteErrors:
        return WriteErrors(self.write_failure, self._full, self._full_count)

    def boot_mark(self, path: str) -> str:
        try:
            device, inode = _directory_id(self.resolve(path))
        except OSError as error:
            raise self.make_error("boot_mark", path, error, read_only=True) from None
        return f"boot={_boot_id()} device={device} mount={_mount_id(self.root)} inode={inode}"

    async def sync_dir(self, path: str) -> None:
        self.check_writable()
        try:
            descriptor = os.open(self.resolve(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self.make_error("sync_dir", path, error) from None
        await self.sync_descriptor(descriptor, path, os.fsync)

    def close(self) -> None:
        self._pool.shutdown()

    # -- for LocalFile ------------------------------------------------------------------------------------------------

    def resolve(self, path: str) -> str:
        """Returns the absolute path. A path that leaves the directory is a bug of the caller."""
        assert path and path[0] != "/" and "\0" not in path, f"bad path {path!r}"
        assert ".." not in path or ".." not in path.split("/"), f"bad path {path!r}"
        return f"{self.root}/{path}"

    def check_writable(self) -> None:
        if self.write_failure:
            raise Unavailable(self.write_failure, final=True)

    def make_error(self, verb: str, path: str, error: OSError, *, read_only: bool = False) -> Unavailable:
        """Returns the error for the caller. A failed drive or file system ends all writes to the directory.

        A full disk, a missing file or too many open files do not.
        """
        why = f"{verb} failed path={path} error={error.strerror}"
        if error.errno in FATAL_ERRORS and not read_only:
            self.write_failure = why
        elif error.errno in FULL_ERRNOS:
            self._full, self._full_count = why, self._full_count + 1
        return Unavailable(why, final=bool(self.write_failure))

    async def sync_descriptor(self, descriptor: int, path: str, sync_call: Callable[[int], None]) -> None:
        """Syncs and closes a duplicate descriptor."""
        try:
            await self.with_descriptor(descriptor, lambda: self._sync(descriptor, path, sync_call))
        except OSError:
            raise Unavailable(self.write_failure, final=True) from None

    async def with_descriptor(self, descriptor: int, call: Callable[[], T]) -> T:
        """Runs a call with a duplicate descriptor in a thread, and closes that one: if the file is closed meanwhile,
        another file cannot get its number."""
        future = self._pool.submit(call)
        future.add_done_callback(lambda _: os.close(descriptor))
        return await asyncio.wrap_future(future)

    def _sync(self, descriptor: int, path: str, sync_call: Callable[[int], None]) -> None:
        """Runs in a thread. Records a failure itself: a cancelled caller would miss it, and the kernel reports it only
        once."""
        try:
            sync_call(descriptor)
        except OSError as error:
            self.write_failure = f"sync failed path={path} error={error.strerror}"
            raise


def _read_all(descriptor: int, offset: int, length: int) -> bytes:
    data = os.pread(descriptor, length, offset)
    while len(data) < length and (more := os.pread(descriptor, length - len(data), offset + len(data))):
        data += more
    return data


def claim_directory(root: str, is_own_name: Callable[[str], bool]) -> None:
    """Creates a data directory, or restricts one that other users may enter.

    `is_own_name` is True for the names that a broker creates there. A directory with other files keeps its mode. So
    does the directory of another user: orchestrators mount volumes that belong to root, and network file systems show
    other users. A refusal would stop brokers that work.
    """
    root = os.path.abspath(root)
    _make_root(root)
    try:
        found = os.stat(root)
        mode = S_IMODE(found.st_mode)
        if found.st_uid != os.geteuid():
            log.warning(
                "data directory belongs to another user path=%s uid=%d own=%d", root, found.st_uid, os.geteuid()
            )
        elif mode & ~DIRECTORY_MODE and all(map(is_own_name, os.listdir(root))):
            os.chmod(root, DIRECTORY_MODE)
            log.info("data directory was open to others path=%s mode=%04o now=%04o", root, mode, DIRECTORY_MODE)
        elif mode & ~DIRECTORY_MODE:
            log.warning("data directory is open to others and holds other files path=%s mode=%04o", root, mode)
    except OSError as error:
        raise make_directory_error(f"cannot use the data directory {root}", error) from None


def _make_root(root: str) -> None:
    try:
        make_private(root)
    except OSError as error:
        raise make_directory_error(f"cannot use the data directory {root}", error) from None


def make_private(path: str) -> None:
    """Creates a directory and its missing parents, for its owner alone. An existing directory keeps its mode."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if not os.path.exists(parent):
        make_private(parent)
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


@functools.cache
def _fallocate() -> Callable[..., int] | None:
    import ctypes

    call = getattr(ctypes.CDLL(None), "fallocate", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return call


def reserve_blocks(descriptor: int, start: int, length: int) -> bool:
    """Reserves blocks after the end of a file (Linux's FALLOC_FL_KEEP_SIZE).
    Returns False if the file system cannot."""
    call = _fallocate()
    return call is not None and call(descriptor, KEEP_SIZE, start, length) == 0


class LocalFile:
    """One open file. There is at most one writing handle per file, so it knows the size without a system call."""

    def __init__(self, disk: LocalDisk, name: str, descriptor: int, write: bool) -> None:
        self.name = name
        self._disk = disk
        self._descriptor = descriptor
        self._write = write
        self._size = os.fstat(descriptor).st_size if write else -1
        self._reserved = max(self._size, RESERVE_BYTES)
        """Size up to which blocks are reserved, or at which the first reservation is due."""

    def append(self, parts: Sequence[Buffer]) -> int:
        disk, before = self._disk, self._size
        if disk.write_failure:
            disk.check_writable()
        alone = len(parts) == 1
        if alone:
            first = parts[0]
            wanted = first.nbytes if isinstance(first, memoryview) else len(first)
        else:
            wanted = sum([part.nbytes if isinstance(part, memoryview) else len(part) for part in parts])
        if before + wanted > self._reserved:
            self._reserve(before + wanted)
        try:
            if alone:
                written = os.pwrite(self._descriptor, first, before)
            else:
                written = os.pwritev(self._descriptor, parts, before) if len(parts) <= PARTS_MAX else 0
            if written != wanted:
                self._write_rest(memoryview(b"".join(parts)), before, written)
        except OSError as error:
            self._truncate_back(before)
            raise self._disk.make_error("append", self.name, error) from None
        self._size = before + wanted
        return self._size

    def pwrite(self, offset: int, data: Buffer) -> None:
        self._disk.check_writable()
        try:
            self._write_rest(memoryview(data).cast("B"), offset, 0)
        except OSError as error:
            raise self._disk.make_error("pwrite", self.name, error) from None
        self._size = max(self._size, offset + memoryview(data).nbytes)

    def pread(self, offset: int, length: int) -> bytes:
        try:
            return _read_all(self._descriptor, offset, length)
        except OSError as error:
            raise self._disk.make_error("pread", self.name, error, read_only=True) from None

    async def read(self, offset: int, length: int) -> bytes:
        try:
            descriptor = os.dup(self._descriptor)
            return await self._disk.with_descriptor(descriptor, lambda: _read_all(descriptor, offset, length))
        except OSError as error:
            raise self._disk.make_error("read", self.name, error, read_only=True) from None

    def size(self) -> int:
        return self._size if self._write else os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        self._disk.check_writable()
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise self._disk.make_error("truncate", self.name, error) from None
        self._size = size
        self._reserved = max(size, RESERVE_BYTES)

    def _reserve(self, end: int) -> None:
        """Reserves blocks for the next writes at once: one by one they cost a third of a write. The size stays."""
        length = end + RESERVE_BYTES - self._reserved
        if reserve_blocks(self._descriptor, self._reserved, length):
            self._reserved += length
        else:
            self._reserved = sys.maxsize

    def map(self) -> memoryview:
        if self.size() == 0:
            return memoryview(b"")
        try:
            return memoryview(mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise self._disk.make_error("map", self.name, error, read_only=True) from None

    def fileno(self) -> int:
        return self._descriptor

    async def sync(self) -> None:
        self._disk.check_writable()
        try:
            descriptor = os.dup(self._descriptor)
        except OSError as error:
            raise self._disk.make_error("sync", self.name, error) from None
        await self._disk.sync_descriptor(descriptor, self.name, sync_file)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        """Closes the file: one that left the bounded set of open files is closed with its last reference."""
        self.close()

    def _write_rest(self, data: memoryview, offset: int, written: int) -> None:
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], offset + written)

    def _truncate_back(self, size: int) -> None:
        """Truncates the file after a failed append. If this fails too, the size stays wrong, so all writes to the
        directory end."""
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            self._disk.make_error("truncate", self.name, OSError(errno.EIO, error.strerror))


def allow_open_files() -> None:
    """Raises this process's limit on open files to what its user may have: the usual default is low for a broker.

    Makes the kernel's table of descriptors as large, before the process has threads. Later each doubling of the table
    waits for all cores, 7 to 16 ms, in the call that opens a file or accepts a connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    last = (OPEN_FILES_WANTED if soft == resource.RLIM_INFINITY else min(soft, OPEN_FILES_WANTED)) - 1
    with contextlib.suppress(OSError), open(os.devnull, "rb") as null:  # a number in use, or no memory in the kernel
        os.close(fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, last))


class LockFile:
    """The lock of a data directory for one process, until `release` or the end of the process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> None:
        """Takes the lock. Raises `Unavailable` while another process has it; the text names that process."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        except OSError as error:
            raise make_directory_error(f"cannot lock {self._path}", error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise Unavailable(f"{os.path.dirname(self._path)} is in use by process {holder}") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def check_free(self) -> None:
        """Raises `Unavailable` while another process has the lock. Leaves no file behind and takes no lock."""
        if os.path.exists(self._path):
            self.acquire()
            self.release()

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> LockFile:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def sync_file(descriptor: int) -> None:
    """Makes a file's bytes and size durable. macOS needs its own call: there fsync leaves them in the drive's cache."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def _boot_id() -> str:
    """Returns an id that changes with every boot. Without one from the system it never repeats, which costs only
    time."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, timeout=5, check=True)
        return found.stdout.decode().strip()
    return f"unknown-{uuid.uuid4()}"


def _directory_id(path: str) -> tuple[int, str]:
    """Returns the device and the inode of a directory. A file system gives the number of an inode that is gone to
    another one, under another generation: Linux says which where the file system does."""
    generation = bytearray(8)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.ioctl(descriptor, GET_GENERATION, generation)
        stat = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return stat.st_dev, f"{stat.st_ino}.{int.from_bytes(generation, sys.byteorder)}"


def _mount_id(root: str) -> str:
    """Returns the id of the mount that has `root`: it changes when the file system is unmounted and mounted again."""
    best, name = "", "-"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            number, _, _, _, point = line.split(" ", 5)[:5]
            point = point.replace("\\040", " ").rstrip("/") + "/"
            if (root + "/").startswith(point) and len(point) >= len(best):
                best, name = point, number
    return name

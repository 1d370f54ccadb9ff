"""The files of one partition, with Kafka's names, and the bounded set of open files of a broker (I30).

A file that leaves the bounded set is closed once its last user releases it: a slice that is being sent stays readable.
"""

from __future__ import annotations

import resource
import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple, NoReturn, cast

from tiered.errors import Corrupt, Unavailable
from tiered.ports import Buffer, Disk, File
from tiered.records.model import HEADER_BYTES, LENGTH_FROM, MIN_LENGTH, WalkedBatch, is_time_unset
from tiered.records.native import walk

OPEN_FILES_MAX = 4096
"""Limit for all logs, but never more than half of the process's descriptors: the rest is for sockets and the bucket."""
WINDOW_BYTES = 4096
WALK_BATCHES = 4096

_HEAD = struct.Struct(">qi9xhiqq")
"""Base offset, batch length, attributes, last offset delta, base and max timestamp: the first 43 bytes of a header."""


class BatchPosition(NamedTuple):
    """The place of a batch in a log file. If the greatest timestamp is unset, `max_timestamp` is that of the first
    record."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    is_time_unset: bool = False


class OpenFiles:
    """Open files of a disk by path, least recently used first. All logs of a broker share one."""

    def __init__(self, disk: Disk, limit: int = OPEN_FILES_MAX) -> None:
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._disk = disk
        self._limit = limit if allowed == resource.RLIM_INFINITY else min(limit, max(1, allowed // 2))
        self._files: OrderedDict[str, File] = OrderedDict()
        self._paths_by_directory: dict[str, set[str]] = {}
        """Paths of open files by their directory."""

    def get(self, path: str, *, create: bool = False) -> File:
        """Returns the file at `path`. Raises `Unavailable` if it is absent and `create` is not set."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        file = self._disk.open(path, create=create)
        self._files[path] = file
        self._paths_by_directory.setdefault(path.rpartition("/")[0], set()).add(path)
        if len(self._files) > self._limit:
            self.forget(next(iter(self._files)))
        return file

    def forget(self, path: str) -> None:
        """Removes the file from the set. Code that still has the file can go on reading it."""
        if self._files.pop(path, None) is not None:
            directory = path.rpartition("/")[0]
            self._paths_by_directory[directory].remove(path)
            if not self._paths_by_directory[directory]:
                del self._paths_by_directory[directory]

    def forget_directory(self, directory: str) -> None:
        """Removes the files of a directory that gets another name: files opened under the old name later are other
        files."""
        for path in self._paths_by_directory.pop(directory, ()):
            del self._files[path]


class _ClosedDisk:
    """The disk of a closed log. Another log may have the directory's name by now, so nothing is done by name."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __getattr__(self, verb: str) -> NoReturn:
        raise Unavailable(f"{self._directory} is closed")


class SegmentFiles:
    """Names and content of the files of one partition."""

    __slots__ = ("_files", "_last_log", "directory", "disk")

    def __init__(self, disk: Disk, directory: str, files: OpenFiles) -> None:
        self.disk = disk
        self.directory = directory
        self._files = files
        self._last_log = (-1, "")

    def path(self, offset: int, suffix: str) -> str:
        return f"{self.directory}/{offset:020d}{suffix}"

    def log_file(self, base_offset: int) -> File:
        if self._last_log[0] != base_offset:
            self._last_log = base_offset, self.path(base_offset, ".log")
        return self._files.get(self._last_log[1])

    def open(self, path: str, *, create: bool = False) -> File:
        return self._files.get(path, create=create)

    def forget(self, path: str) -> None:
        self._files.forget(path)

    def close(self) -> None:
        """Ends all use of files by their names, which raises `Unavailable` from now on. Files that are open stay so."""
        self._files.forget_directory(self.directory)
        self.disk = cast(Disk, _ClosedDisk(self.directory))
        self._files = OpenFiles(self.disk)

    def remove(self, path: str) -> None:
        """Deletes a file. Its space on the disk is free once the last reader has finished."""
        self._files.forget(path)
        self.disk.remove(path)

    def read(self, path: str) -> bytes | None:
        """Returns all bytes of a file, or None if it is absent."""
        if not self.disk.exists(path):
            return None
        file = self.disk.open(path, write=False)
        try:
            return file.pread(0, file.size())
        finally:
            file.close()

    def map(self, path: str) -> Buffer:
        """Maps a file read-only. Returns no bytes if it is absent or empty."""
        if not self.disk.exists(path):
            return b""
        file = self.disk.open(path, write=False)
        try:
            return file.map() if file.size() else b""
        finally:
            file.close()

    def size(self, path: str) -> int:
        file = self.disk.open(path, write=False)
        try:
            return file.size()
        finally:
            file.close()

    def replace(self, path: str, data: bytes) -> None:
        """Replaces a whole file at once for every reader. It is durable only after an fsync of the file and the
        directory."""
        self.forget(path)
        self.create(path + ".tmp", data)
        self.disk.rename(path + ".tmp", path)

    def create(self, path: str, data: bytes) -> None:
        """Creates a file that nobody reads yet. A crash can leave any part of it."""
        file = self.disk.open(path, create=True)
        try:
            if file.size():
                file.truncate(0)
            file.append([data])
        finally:
            file.close()

    def walk_positions(self, base_offset: int, position: int, end: int) -> Iterator[BatchPosition]:
        """Yields the positions of the batches from `position`, the start of a batch, up to `end`, by their headers.

        Raises `Corrupt` if there is no batch header.
        """
        file = self.log_file(base_offset)
        window, window_at = b"", position
        while position < end:
            if position + _HEAD.size > window_at + len(window):
                window, window_at = file.pread(position, WINDOW_BYTES), position
                if len(window) < HEADER_BYTES:
                    raise Corrupt("batch header is cut short", where=file.name, position=position)
            first, length, attributes, delta, base, timestamp = _HEAD.unpack_from(window, position - window_at)
            if length < MIN_LENGTH or delta < 0 or first < base_offset:
                raise Corrupt("bytes are not a batch header", where=file.name, position=position)
            unset = timestamp < base and is_time_unset(attributes, base, timestamp)
            yield BatchPosition(
                position, length + LENGTH_FROM, first, first + delta, base if unset else timestamp, unset
            )
            position += length + LENGTH_FROM

    def read_batch(self, base_offset: int, position: int) -> WalkedBatch | None:
        """Returns the batch at `position` of a log file, or None if it is invalid."""
        walked = walk(self.log_file(base_offset).map(), position, max_batches=1)
        return walked.batches[0] if walked.batches else None

    def walk_batches(self, base_offset: int, position: int, *, check_crc: bool) -> Iterator[WalkedBatch]:
        """Yields the batches of a log file from `position` on, up to the first invalid one."""
        for batches in self.walk_batch_lists(base_offset, position, check_crc=check_crc):
            yield from batches

    def walk_batch_lists(self, base_offset: int, position: int, *, check_crc: bool) -> Iterator[list[WalkedBatch]]:
        """Yields the same in lists of some thousand batches: memory does not grow with the file."""
        file = self.log_file(base_offset)
        if file.size() <= position:
            return
        view = file.map()
        while position < len(view):
            step = walk(view, position, check_crc=check_crc, max_batches=WALK_BATCHES)
            yield step.batches
            if step.why:
                return
            position = step.end

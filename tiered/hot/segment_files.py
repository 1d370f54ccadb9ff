"""The files of one partition: names as Kafka's, opened when needed, at most so many at once.

A file that falls out of the bound is closed by its last user letting go of it: a slice being sent stays readable.
"""

from __future__ import annotations

import resource
import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.ports import Disk, File
from tiered.records.model import HEADER_BYTES, LENGTH_FROM, MIN_LENGTH, WalkedBatch
from tiered.records.native import walk

OPEN_FILES_MAX = 4096
"""Of the logs; never more than half of what the process may open: the rest is for sockets and the bucket."""
WINDOW_BYTES = 4096
WALK_BATCHES = 4096

_HEAD = struct.Struct(">qi11xi8xq")
"""Base offset, batch length, last offset delta, max timestamp: the first 43 bytes of a header."""


class BatchPosition(NamedTuple):
    """Where a batch stands in a log file."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class OpenFiles:
    """Open files of a disk by path, least recently used first; one for all logs of a broker."""

    def __init__(self, disk: Disk, limit: int = OPEN_FILES_MAX) -> None:
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._disk = disk
        self._limit = limit if allowed == resource.RLIM_INFINITY else min(limit, max(1, allowed // 2))
        self._files: OrderedDict[str, File] = OrderedDict()
        self._paths_by_directory: dict[str, set[str]] = {}
        """Paths of open files by their directory."""

    def get(self, path: str, *, create: bool = False) -> File:
        """The file at `path`; `Unavailable` when it is absent and not to be created."""
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
        """Whoever still holds the file may go on reading it."""
        if self._files.pop(path, None) is not None:
            directory = path.rpartition("/")[0]
            self._paths_by_directory[directory].remove(path)
            if not self._paths_by_directory[directory]:
                del self._paths_by_directory[directory]

    def forget_directory(self, directory: str) -> None:
        """The directory loses its name: what is opened under it later is another file."""
        for path in self._paths_by_directory.pop(directory, ()):
            del self._files[path]


class SegmentFiles:
    """Names and bytes of one partition's directory."""

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

    def forget_all(self) -> None:
        """Lets go of all files of the directory."""
        self._files.forget_directory(self.directory)

    def remove(self, path: str) -> None:
        """Nobody keeps it open either: its room on the disk is free once whoever reads it has finished."""
        self._files.forget(path)
        self.disk.remove(path)

    def read(self, path: str) -> bytes | None:
        """All bytes of a file; None when it is absent."""
        if not self.disk.exists(path):
            return None
        file = self.disk.open(path, write=False)
        try:
            return file.pread(0, file.size())
        finally:
            file.close()

    def size(self, path: str) -> int:
        file = self.disk.open(path, write=False)
        try:
            return file.size()
        finally:
            file.close()

    def replace(self, path: str, data: bytes) -> None:
        """The whole file at once for every reader; not durable before `sync` of it and of the directory."""
        self.forget(path)
        self.create(path + ".tmp", data)
        self.disk.rename(path + ".tmp", path)

    def create(self, path: str, data: bytes) -> None:
        """A file that nobody reads yet; a crash leaves any part of it."""
        file = self.disk.open(path, create=True)
        try:
            if file.size():
                file.truncate(0)
            file.append([data])
        finally:
            file.close()

    def walk_positions(self, base_offset: int, position: int, end: int) -> Iterator[BatchPosition]:
        """Headers of the batches from `position`, a batch's edge, up to `end`; `Corrupt` where there is none."""
        file = self.log_file(base_offset)
        window, window_at = b"", position
        while position < end:
            if position + _HEAD.size > window_at + len(window):
                window, window_at = file.pread(position, WINDOW_BYTES), position
                if len(window) < HEADER_BYTES:
                    raise Corrupt("batch header is short", where=file.name, position=position)
            first, length, delta, timestamp = _HEAD.unpack_from(window, position - window_at)
            if length < MIN_LENGTH or delta < 0 or first < base_offset:
                raise Corrupt("no batch header", where=file.name, position=position)
            yield BatchPosition(position, length + LENGTH_FROM, first, first + delta, timestamp)
            position += length + LENGTH_FROM

    def read_batch(self, base_offset: int, position: int) -> WalkedBatch | None:
        """The batch at `position` of a log file, when it proves itself."""
        walked = walk(self.log_file(base_offset).map(), position, max_batches=1)
        return walked.batches[0] if walked.batches else None

    def walk_batches(self, base_offset: int, position: int, *, check_crc: bool) -> Iterator[WalkedBatch]:
        """Batches of a log file from `position` on, up to the first that does not prove itself."""
        for batches in self.walk_batch_lists(base_offset, position, check_crc=check_crc):
            yield from batches

    def walk_batch_lists(self, base_offset: int, position: int, *, check_crc: bool) -> Iterator[list[WalkedBatch]]:
        """The same, some thousands at a time: memory does not grow with the file."""
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

"""The files of the chunk cache on disk: their names, their order of use, and which ones go."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from typing import NamedTuple

from tiered.cold.chunks import Chunk
from tiered.ports import Space

KEPT_MS = 24 * 3_600_000
"""Longest time for which a chunk is kept. Its object may be deleted meanwhile: records that were deleted in the bucket
are on no disk after this time."""
FILES_MAX = 100_000
"""Most files, whatever their size: 30 MB of memory for their names."""
FREE_SHARE = 10
"""This part of the file system stays free: logs need the room more."""

_NAME = re.compile(r"(\d{13})-(\d{8})-([0-9a-f]{32})")


class CachedFile(NamedTuple):
    """One file: when it was written (ms), its size in bytes, and the digest of its chunk."""

    written_ms: int
    size: int
    digest: str

    @property
    def name(self) -> str:
        """The name, which tells all of this: a start reads no file."""
        return f"{self.written_ms:013d}-{self.size:08d}-{self.digest}"


def parse_name(name: str) -> CachedFile | None:
    """Returns the file of this name; None if it is no name of the cache."""
    found = _NAME.fullmatch(name)
    return CachedFile(int(found[1]), int(found[2]), found[3]) if found is not None else None


def digest_of(chunk: Chunk) -> str:
    """Returns the digest by which a chunk is found. Keys of objects are never used twice."""
    return hashlib.sha256(f"{chunk.start} {chunk.length} {chunk.key}".encode()).hexdigest()[:32]


def excess_bytes(space: Space, wanted: int = 0) -> int:
    """Returns by how many bytes the free room of a file system is too small, after a write of `wanted` bytes."""
    return max(0, space.total // FREE_SHARE - (space.free - wanted))


class CachedFiles:
    """At most `bytes_max` bytes of files, the least recently used first. After a start that is the order of writes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._files: OrderedDict[str, CachedFile] = OrderedDict()
        self.bytes = 0

    def __contains__(self, digest: str) -> bool:
        return digest in self._files

    def __len__(self) -> int:
        return len(self._files)

    def use(self, digest: str) -> CachedFile | None:
        """Returns the file of a chunk, which counts as used now; None if there is none."""
        found = self._files.get(digest)
        if found is not None:
            self._files.move_to_end(digest)
        return found

    def add(self, file: CachedFile) -> CachedFile | None:
        """Adds a file. Returns the one of the same chunk that it replaces."""
        before = self.remove(file.digest)
        self._files[file.digest] = file
        self.bytes += file.size
        return before

    def remove(self, digest: str) -> CachedFile | None:
        """Forgets the file of a chunk, and returns it."""
        found = self._files.pop(digest, None)
        if found is not None:
            self.bytes -= found.size
        return found

    def fits(self, size: int) -> bool:
        """True if a file of so many bytes may be kept, perhaps in place of others."""
        return size <= self._bytes_max

    def take_expired(self, now_ms: int) -> list[CachedFile]:
        """Forgets and returns the files that are too old, or from the future."""
        expired = [each for each in self._files.values() if not 0 <= now_ms - each.written_ms < KEPT_MS]
        for each in expired:
            self.remove(each.digest)
        return expired

    def take_excess(self, excess: int, size: int = 0) -> list[CachedFile]:
        """Forgets and returns the least recently used files that have to go before one of `size` bytes comes: until
        `excess` bytes are free, and all limits hold."""
        taken: list[CachedFile] = []
        while self._files and (
            excess > 0 or self.bytes + size > self._bytes_max or len(self._files) + (size > 0) > FILES_MAX
        ):
            _, file = self._files.popitem(last=False)
            self.bytes -= file.size
            excess -= file.size
            taken.append(file)
        return taken

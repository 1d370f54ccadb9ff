"""The cache of chunks on disk (`tiered.chunk.cache.disk.bytes`). It spares gets, also after a restart.

A file has the bytes of a chunk, and behind them a trailer that names the chunk. No byte is trusted: readers check each
batch and section by its CRC, whether it comes from here or from the bucket, and what fails is removed here. No file is
fsynced. Nothing depends on one, so each failure means a get from the bucket.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from tiered.cold.cached_files import CachedFile, CachedFiles, digest_of, excess_bytes, parse_name
from tiered.cold.chunks import MIB, Chunk
from tiered.errors import Unavailable
from tiered.log_limiter import LogLimiter
from tiered.metrics import Metrics
from tiered.ports import Clock, Disk

log = logging.getLogger(__name__)

FOLDER = "chunks"
"""Folder of the data directory."""
PART = "part"
"""Name of the file that is being written."""
MAGIC = b"tiered chunk 1\n"
WAITING_BYTES = 32 * MIB
"""Bytes of chunks that wait to be written. Others are not kept while there are so many."""
PIECE_BYTES = 256 << 10
"""Bytes that are written in one turn of the event loop."""
READS_AT_ONCE = 2
"""Files that are read at once: the threads of the disk also sync logs."""


class DiskCache:
    """At most `bytes_max` bytes of chunks in the folder `chunks` of the data directory; none if that is 0. It keeps
    nothing before `run`."""

    def __init__(self, disk: Disk, clock: Clock, metrics: Metrics, bytes_max: int) -> None:
        self._disk = disk
        self._clock = clock
        self.is_on = bytes_max > 0
        self._files = CachedFiles(bytes_max)
        self._waiting: deque[tuple[Chunk, bytes]] = deque()
        self._waiting_bytes = 0
        self._is_open = False
        """True while `run` takes chunks."""
        self._wakeup = asyncio.Event()
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._log_limiter = LogLimiter(clock)
        self._lookups = metrics.counter(
            "tiered_cold_disk_cache_lookups_total", "Chunks looked up in the cache on disk, by result.", ("result",)
        )
        gauge = metrics.gauge("tiered_cold_disk_cache_bytes", "Bytes of cold chunks in the cache on disk.")
        gauge.set_function(lambda: float(self._files.bytes))

    # -- reads --------------------------------------------------------------------------------------------------------

    async def get(self, chunk: Chunk) -> bytes | None:
        """Returns the bytes of a chunk, which the caller has to check; None if they are not here."""
        if not self._is_open:
            return None
        file = self._files.use(digest_of(chunk))
        data = await self._read(file, chunk) if file is not None else None
        self._lookups.inc(1, "miss" if data is None else "hit")
        return data

    async def _read(self, file: CachedFile, chunk: Chunk) -> bytes | None:
        try:
            async with self._reads:
                opened = self._disk.open(f"{FOLDER}/{file.name}", write=False)
                try:
                    data = await opened.read(0, chunk.length)
                    trailer = opened.pread(chunk.length, file.size)
                finally:
                    opened.close()
        except Unavailable as error:
            log.warning("chunk is read from the bucket instead of the disk why=%s", error)
            self.invalidate(chunk)
            return None
        if len(data) != chunk.length or trailer != _make_trailer(chunk):
            log.warning("file of a chunk is damaged, the bucket is read name=%s", file.name)
            self.invalidate(chunk)
            return None
        return data

    def invalidate(self, chunk: Chunk) -> None:
        """Removes a chunk whose bytes are wrong."""
        file = self._files.remove(digest_of(chunk))
        if file is not None:
            self._remove(file)

    # -- writes -------------------------------------------------------------------------------------------------------

    def keep(self, chunk: Chunk, data: bytes) -> None:
        """Has a chunk written soon, unless many wait. `data` is what the bucket had."""
        if self._is_open and self._waiting_bytes + len(data) <= WAITING_BYTES and self._files.fits(len(data)):
            self._waiting.append((chunk, data))
            self._waiting_bytes += len(data)
            self._wakeup.set()

    async def run(self) -> None:
        """Takes the files that an earlier process left, and writes chunks until it is cancelled, or the data directory
        has failed. Without a cache it removes these files, and returns."""
        try:
            if not self.is_on:
                await self._disk.discard(FOLDER)
                return
            await self._open()
            while True:
                while not self._waiting:
                    self._wakeup.clear()
                    await self._wakeup.wait()
                chunk, data = self._waiting.popleft()
                try:
                    await self._write(chunk, data)
                except Unavailable as error:
                    if error.final:
                        raise
                    if (suppressed := self._log_limiter.admit()) is not None:
                        log.warning("chunk is not kept on disk suppressed=%d why=%s", suppressed, error)
                finally:
                    self._waiting_bytes -= len(data)
        except Unavailable as error:
            log.error("cache of chunks on disk is off until the next start why=%s", error)
        finally:
            self._is_open = False
            self._waiting.clear()

    async def _open(self) -> None:
        self._disk.make_dirs(FOLDER)
        for name in self._disk.list(FOLDER):
            file = parse_name(name)
            if file is None or self._files.add(file) is not None:
                self._disk.remove(f"{FOLDER}/{name}")
        await self.expire()
        await self.make_room()
        self._is_open = True

    async def _write(self, chunk: Chunk, data: bytes) -> None:
        """Writes one file. A kill leaves a part, which the next start removes."""
        trailer = _make_trailer(chunk)
        size = len(data) + len(trailer)
        if digest_of(chunk) in self._files or not self._files.fits(size):
            return
        await self.make_room(size)
        if excess_bytes(self._disk.space(), size):
            return
        part, view = f"{FOLDER}/{PART}", memoryview(data)
        self._disk.remove(part)
        opened = self._disk.open(part, create=True)
        try:
            for start in range(0, len(data), PIECE_BYTES):
                opened.append([view[start : start + PIECE_BYTES]])
                await asyncio.sleep(0)  # each piece is a copy of its own into the page cache
            opened.append([trailer])
        finally:
            opened.close()
        file = CachedFile(self._clock.wall_ms(), size, digest_of(chunk))
        self._disk.rename(part, f"{FOLDER}/{file.name}")
        self._files.add(file)

    async def make_room(self, size: int = 0) -> None:
        """Removes the least recently used files as far as others need their room. Raises `Unavailable` if the disk
        fails."""
        for file in self._files.take_excess(excess_bytes(self._disk.space(), size), size):
            await self._disk.discard(f"{FOLDER}/{file.name}")

    async def expire(self) -> None:
        """Removes the files that are too old. Raises `Unavailable` if the disk fails."""
        for file in self._files.take_expired(self._clock.wall_ms()):
            await self._disk.discard(f"{FOLDER}/{file.name}")

    def _remove(self, file: CachedFile) -> None:
        try:
            self._disk.remove(f"{FOLDER}/{file.name}")
        except Unavailable as error:
            log.warning("file of a chunk stays until the next start name=%s why=%s", file.name, error)


def _make_trailer(chunk: Chunk) -> bytes:
    return MAGIC + f"{chunk.start} {chunk.length} {chunk.key}".encode()

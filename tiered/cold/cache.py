"""A bounded cache of chunks of cold objects. One get serves all readers of a chunk.

A reader has a lease on each chunk that it uses or waits for. Leased chunks stay. The others stay while there is room,
and the least recently used is evicted first. A get is cancelled once no reader waits for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from types import TracebackType

from tiered.cold.chunks import Chunk
from tiered.metrics import Metrics

CACHE_BYTES = 256 << 20
"""Room for the read-ahead of four fast readers."""

Fetch = Callable[[Chunk], Coroutine[None, None, bytes]]
"""Gets exactly the chunk's bytes, or raises `Unavailable` or `Corrupt`."""


class _CachedChunk:
    """One chunk: its get, and the number of leases on it."""

    __slots__ = ("chunk", "leases", "task")

    def __init__(self, chunk: Chunk, task: asyncio.Task[bytes]) -> None:
        self.chunk = chunk
        self.task = task
        self.leases = 0


class Lease:
    """The right to use a chunk until `release`. A context manager."""

    __slots__ = ("_cache", "_cached", "chunk")

    def __init__(self, cache: ChunkCache, cached: _CachedChunk) -> None:
        self._cache = cache
        self._cached: _CachedChunk | None = cached
        self.chunk = cached.chunk

    @property
    def is_ready(self) -> bool:
        """True if `data` returns without waiting."""
        return self._cached is not None and self._cached.task.done()

    async def data(self) -> bytes:
        """Returns the chunk's bytes. Raises the error of a failed get; the next lease then starts a new get."""
        assert self._cached is not None, "lease was released"
        return await asyncio.shield(self._cached.task)

    def release(self) -> None:
        """Releases the chunk. A second call does nothing."""
        if self._cached is not None:
            cached, self._cached = self._cached, None
            self._cache._on_release(cached)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class ChunkCache:
    """At most `bytes_max` bytes of chunks, including gets in flight. Belongs to one event loop.

    Leases alone may exceed the limit, because a reader must always get its next chunk. `share_bytes` tells a reader how
    large that may be, and `has_room` when to stop reading ahead. `on_invalid` is called with each chunk that had bad
    bytes.
    """

    def __init__(
        self, metrics: Metrics, bytes_max: int = CACHE_BYTES, on_invalid: Callable[[Chunk], None] | None = None
    ) -> None:
        self._bytes_max = bytes_max
        self._on_invalid = on_invalid
        self._chunks: OrderedDict[Chunk, _CachedChunk] = OrderedDict()
        self._bytes = 0
        self._leased_bytes = 0
        self.readers = 0
        """Readers that are open, each of which has a share."""
        self._lookups = metrics.counter("tiered_cold_cache_lookups_total", "Chunks requested, by result", ("result",))
        metrics.gauge("tiered_cold_cache_bytes", "Bytes of cold chunks in memory or under way").set_function(
            lambda: float(self._bytes)
        )

    @property
    def bytes_held(self) -> int:
        """Returns the bytes in memory or in flight."""
        return self._bytes

    @property
    def share_bytes(self) -> int:
        """Returns the part of one reader."""
        return self._bytes_max // max(1, self.readers)

    def has_room(self, length: int) -> bool:
        """True if `length` more bytes fit beside all leased chunks."""
        return self._leased_bytes + length <= self._bytes_max

    def lease(self, chunk: Chunk, fetch: Fetch) -> Lease:
        """Leases the chunk, from memory, from a get in flight, or from a new get with `fetch`."""
        cached = self._chunks.get(chunk)
        if cached is not None and _has_failed(cached):
            self._evict(cached)
            cached = None
        if cached is None:
            task = asyncio.get_running_loop().create_task(fetch(chunk), name=f"cold get {chunk.key}")
            task.add_done_callback(_consume_error)
            cached = self._chunks[chunk] = _CachedChunk(chunk, task)
            self._bytes += chunk.length
            self._lookups.inc(1, "miss")
        else:
            self._chunks.move_to_end(chunk)
            self._lookups.inc(1, "hit" if cached.task.done() else "joined")
        if cached.leases == 0:
            self._leased_bytes += chunk.length
        cached.leases += 1
        self._shrink()
        return Lease(self, cached)

    def invalidate(self, chunk: Chunk) -> None:
        """Removes a chunk with bad bytes: the next lease gets it again. Existing leases keep the old bytes."""
        cached = self._chunks.get(chunk)
        if cached is not None:
            self._evict(cached)
        if self._on_invalid is not None:
            self._on_invalid(chunk)

    def _on_release(self, cached: _CachedChunk) -> None:
        cached.leases -= 1
        if cached.leases:
            return
        self._leased_bytes -= cached.chunk.length
        if not cached.task.done():
            cached.task.cancel()
            self._evict(cached)
        elif _has_failed(cached):
            self._evict(cached)
        self._shrink()

    def _evict(self, cached: _CachedChunk) -> None:
        if self._chunks.get(cached.chunk) is cached:
            del self._chunks[cached.chunk]
            self._bytes -= cached.chunk.length

    def _shrink(self) -> None:
        if self._bytes <= self._bytes_max:
            return
        for cached in list(self._chunks.values()):
            if cached.leases == 0:
                self._evict(cached)
                if self._bytes <= self._bytes_max:
                    return


def _has_failed(cached: _CachedChunk) -> bool:
    task = cached.task
    return task.done() and (task.cancelled() or task.exception() is not None)


def _consume_error(task: asyncio.Task[bytes]) -> None:
    """Discards the error of a read-ahead that no reader waits for: the next lease tries again."""
    if not task.cancelled():
        task.exception()

"""How much one client, and all of them together, may ask of the broker: every bound of the HTTP side in one place."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from tiered.config.settings import Settings

MIB = 1 << 20


@dataclass(frozen=True)
class HttpLimits:
    """Bytes, milliseconds and seconds as the names say. A client over a limit gets 413, 414, 431, 429 or 503."""

    connections: int = 1_000
    connections_per_peer: int = 500
    streams_per_peer: int = 250
    """Event streams of one address: each keeps a connection for as long as its client likes."""
    line_bytes: int = 8_190
    """Longest request line and longest header."""
    headers: int = 64
    body_bytes: int = 64 * MIB
    """Largest request body that is held whole, as sent and after decompression. Streams have no whole."""
    record_bytes: int = 4 * MIB
    """Longest JSON text of one record on a stream; a larger one goes in a request of its own."""
    memory_bytes: int = 256 * MIB
    """All bodies and JSON answers that are held at one moment."""
    batch_entries: int = 1_000
    """Records in one `records:batch`."""
    poll_ms: int = 30_000
    """Longest `timeout` of a read; a larger one is cut to it."""
    read_bytes: int = 64 * MIB
    """Largest `max_bytes` of a raw read; a larger one is cut to it."""
    json_bytes: int = 8 * MIB
    """Largest `max_bytes` of a JSON read, and about how much its records may come to when decompressed."""
    first_request_seconds: float = 10.0
    """A new connection without the whole head of a request is closed after this."""
    idle_seconds: float = 75.0
    """A connection without a request, or with half of a request's head, is closed after this."""
    body_seconds: float = 60.0
    write_seconds: float = 60.0
    """A client that takes nothing of its answer for this long is cut off."""
    jobs: int = 256
    """Bodies and answers that wait for a thread which decompresses, parses or renders them, or are in one."""
    job_seconds: float = 60.0
    """Longest time of such a job, the wait included."""
    append_ms: int = 30_000
    leader_lookup_seconds: float = 20.0
    """How long a read looks for who leads its partition: longer than an election takes."""
    stream_idle_seconds: float = 600.0
    stream_seconds: float = 86_400.0
    """The age at which a produce stream or an event stream ends."""

    @classmethod
    def from_settings(cls, settings: Settings) -> HttpLimits:
        """What the broker's settings leave open."""
        connections = settings.tiered_http_connections_max
        per_peer = min(settings.tiered_http_connections_max_per_ip, connections)
        return cls(
            body_bytes=settings.tiered_http_body_max_bytes,
            connections=connections,
            connections_per_peer=per_peer,
            streams_per_peer=max(per_peer // 2, 1),
        )


class Exhausted(Exception):
    """The budget had no room within the deadline."""


class MemoryBudget:
    """Bytes that may be held at once. Takers wait in order, so a large one is not starved by small ones."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, size: int, seconds: float) -> int:
        """Waits for room, returns what was taken (never more than the whole budget); `Exhausted` after `seconds`."""
        size = min(size, self.size)
        if size <= self.free and not self._waiters:
            self.free -= size
            return size
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size, waiter))
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self.release(size)
            self._waiters = deque(w for w in self._waiters if w[1] is not waiter)
            self._admit()
            if isinstance(error, TimeoutError):
                raise Exhausted(f"no {size} bytes free within {seconds:g} s") from None
            raise
        return size

    def release(self, size: int) -> None:
        """Returns what `take` returned. A negative `size` takes at once, even what is not free."""
        self.free += size
        self._admit()

    def _admit(self) -> None:
        while self._waiters and self._waiters[0][0] <= self.free:
            size, waiter = self._waiters.popleft()
            if not waiter.done():
                self.free -= size
                waiter.set_result(None)

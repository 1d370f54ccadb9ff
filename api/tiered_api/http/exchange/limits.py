"""All limits of the HTTP server: on one client, and on all clients together."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from tiered.config.ip_overrides import read_ip_overrides
from tiered.config.settings import Settings
from tiered.quotas.shares import HTTP_MEMORY, Holdings, find_share, is_scarce

MIB = 1 << 20


@dataclass(frozen=True)
class HttpLimits:
    """The limits, in bytes, milliseconds and seconds as the names say. A client over a limit gets 413, 414, 431, 429 or
    503. Those of connections are settings that change while the broker runs: `max_connections` and `max_streams`."""

    line_bytes: int = 8_190
    """Longest request line and longest header."""
    headers: int = 64
    body_bytes: int = 64 * MIB
    """Largest request body in memory, as sent and after decompression. Streams are not held in memory."""
    record_bytes: int = 4 * MIB
    """Longest JSON text of one record on a stream; a larger one needs a request of its own."""
    object_bytes: int = 4 * MIB
    """Largest JSON body without records."""
    memory_bytes: int = 256 * MIB
    """Most bytes of all bodies and JSON responses that are held at one time."""
    batch_entries: int = 1_000
    """Records in one `records:batch`."""
    poll_ms: int = 30_000
    """Longest `timeout` of a read; a larger one is reduced to it."""
    read_bytes: int = 64 * MIB
    """Largest `max_bytes` of a raw read; a larger one is reduced to it."""
    json_bytes: int = 8 * MIB
    """Largest `max_bytes` of a JSON read, and roughly of its records after decompression."""
    first_request_seconds: float = 10.0
    """A new connection is closed after this time if it has not sent a whole request head."""
    idle_seconds: float = 75.0
    """A connection is closed after this time without a request, or with half of a request's head."""
    body_seconds: float = 60.0
    write_seconds: float = 60.0
    """A client that reads nothing of its response for this long is disconnected."""
    jobs: int = 256
    """Most bodies and responses that threads decompress, parse or render, those that wait for a thread included."""
    job_seconds: float = 60.0
    """Longest time of such a job, the wait included."""
    append_ms: int = 30_000
    leader_lookup_seconds: float = 20.0
    """Time in which a read looks for the leader of its partition: longer than an election takes."""
    stream_idle_seconds: float = 600.0
    stream_seconds: float = 86_400.0
    """The age at which a produce stream or an event stream ends."""

    @classmethod
    def from_settings(cls, settings: Settings) -> HttpLimits:
        """Returns the limits that the broker's settings say; all others keep their defaults. The memory is that of the
        machine: each of its processes has a share, which holds the largest body."""
        body_bytes = settings.tiered_http_body_max_bytes
        share = max(cls.memory_bytes // settings.processes, min(body_bytes, cls.memory_bytes))
        return cls(body_bytes=body_bytes, memory_bytes=share)


def max_connections(settings: Settings, peer: str) -> int:
    """Returns the most connections of an address. They change while the broker runs."""
    overrides = read_ip_overrides(settings.max_connections_per_ip_overrides)
    return overrides.get(peer, settings.tiered_http_connections_max_per_ip)


def max_streams(settings: Settings) -> int:
    """Returns the most event streams of an address: each keeps a connection for as long as its client likes."""
    per_peer = min(settings.tiered_http_connections_max_per_ip, settings.tiered_http_connections_max)
    return max(per_peer // 2, 1)


class Exhausted(Exception):
    """Raised if the budget had no room before the deadline."""


class MemoryBudget:
    """Bytes that may be held at the same time, with the shares of a pot: a holder that declares large bodies leaves
    room to others.

    Holders whose requests wait take turns. While any wait, others get what fits into their share of the scarce pot. So
    small requests do not starve a large one, and a large one does not delay the small ones of others.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size
        self.holdings = Holdings(HTTP_MEMORY, lambda: self.size, lambda: self.size - self.free)
        self._waiters: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        """Waiting requests by holder. The first holder is the next one."""

    def has_room(self, size: int, holder: str = "") -> bool:
        """True if `acquire` would not wait."""
        size = min(size, self.size)
        if not self._waiters:
            return self._fits(size, holder)
        return holder not in self._waiters and self._fits_share(size, holder)

    async def acquire(self, size: int, seconds: float, holder: str = "") -> int:
        """Waits for room, and returns the reserved bytes (never more than the whole budget). Raises `Exhausted` after
        `seconds`."""
        has_room, size = self.has_room(size, holder), min(size, self.size)
        if has_room:
            self._take(size, holder)
            return size
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = size, waiter
        self._waiters.setdefault(holder, deque()).append(entry)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self.release(size, holder)
            else:
                self._forget(entry, holder)
            if isinstance(error, TimeoutError):
                self.holdings.refuse(holder, size)
                raise Exhausted(f"no {size} bytes free within {seconds:g} s") from None
            raise
        return size

    def release(self, size: int, holder: str = "") -> None:
        """Gives back the bytes that `acquire` returned. A negative `size` takes bytes at once, even if they are not
        free."""
        self._take(-size, holder)
        self._admit()

    def _take(self, size: int, holder: str) -> None:
        self.free -= size
        self.holdings.add(holder, size)

    def _fits(self, size: int, holder: str) -> bool:
        """True if a holder may take so many bytes now. One request that needs nearly everything may have it alone."""
        return self.holdings.has_room(holder, size) or (self.free == self.size and size <= self.size)

    def _fits_share(self, size: int, holder: str) -> bool:
        """True if a holder may take so many bytes even while others wait."""
        share = min(find_share(self.size, self.size - self.free), self.free)
        return self.holdings.own(holder) + size <= share

    def _forget(self, entry: tuple[int, asyncio.Future[None]], holder: str) -> None:
        queue = self._waiters.get(holder)
        if queue is not None and entry in queue:
            queue.remove(entry)
            if not queue:
                del self._waiters[holder]
        self._admit()

    def _admit(self) -> None:
        while (holder := self._find_next()) is not None:
            queue = self._waiters.pop(holder)
            size, waiter = queue.popleft()
            if queue:  # the others have their turn before its next request
                self._waiters[holder] = queue
            if not waiter.done():
                self._take(size, holder)
                waiter.set_result(None)

    def _find_next(self) -> str | None:
        """Returns the holder whose request gets room now. Behind one that waits for the room of others, a request gets
        no more than its share."""
        is_held_up = False
        for holder, queue in self._waiters.items():
            size, own = queue[0][0], self.holdings.own(holder)
            if self._fits(size, holder) and (not is_held_up or self._fits_share(size, holder)):
                return holder
            is_held_up = is_held_up or not is_scarce(self.size, own + size)
        return None

"""Memory for requests too large for the shared scratch buffer: pooled, and bounded over all connections (I30).

The announced size of a frame proves nothing: a buffer begins small and grows with the received bytes. So memory is at
most four times the bytes that clients really sent. A pooled buffer is used whole, because it costs nothing.

No client address takes all memory: each holds at most half of the budget, and the last quarter is for addresses that
hold little. Released room goes first to the waiting address that holds least.
"""

from __future__ import annotations

from collections.abc import Callable

POOLED_MIN_BYTES = 64 << 10
FIRST_BUFFER_BYTES = 256 << 10
"""First buffer of a large frame, before its bytes arrive."""
RESERVE_HOST_MAX = 1 << 20
"""An address that holds at most so much may use the reserve."""
POOL_BYTES = 32 << 20
"""Most bytes of free buffers that are kept for the next frames."""


class RequestBuffers:
    """The buffers of one server, and the budget that they share.

    A frame without room parks, and its callback runs once there may be room. Frames that each hold half of what they
    need could block each other for good. So one frame at a time may exceed the budget, and one frame of each address
    its share.
    """

    def __init__(self, budget: int) -> None:
        self.free_bytes = budget
        """Free bytes of the budget; below zero while one frame exceeds the budget."""
        self.pooled_bytes = 0
        self._host_share = budget // 2
        self._reserve = budget // 4
        self._bytes_by_host: dict[str, int] = {}
        """Held bytes by client address."""
        self._pool: dict[int, list[bytearray]] = {}
        self._waiting: list[tuple[str, Callable[[], None]]] = []
        self._over_budget: Frame | None = None
        self._over_share: dict[str, Frame] = {}

    @property
    def has_waiting(self) -> bool:
        """True if a frame waits for room."""
        return bool(self._waiting)

    def new_frame(self, size: int, prefix: memoryview, host: str = "") -> Frame:
        """Returns a frame of `size` bytes from an address, with the bytes that were received already."""
        return Frame(self, size, prefix, host)

    def park(self, on_room: Callable[[], None], host: str = "") -> None:
        """Calls `on_room` once, when there may be room. It runs inside of `release`, so it must do its work later."""
        self._waiting.append((host, on_room))

    def acquire(self, size: int, frame: Frame) -> bytearray | None:
        """Returns a buffer of `size` bytes, or None if the budget or the share of the address has no room now."""
        host = frame.host
        held = self._bytes_by_host.get(host, 0) + size
        if self._over_budget is not frame:
            if held > self._host_share and self._over_share.setdefault(host, frame) is not frame:
                return None
            if self.free_bytes < size + (self._reserve if held > RESERVE_HOST_MAX else 0):
                if self._over_budget is not None:
                    return None
                self._over_budget = frame
        self.free_bytes -= size
        self._bytes_by_host[host] = held
        ready = self._pool.get(size)
        if ready:
            self.pooled_bytes -= size
            return ready.pop()
        return bytearray(size)

    def has_pooled(self, size: int) -> bool:
        """True if the pool has a buffer of that size."""
        return bool(self._pool.get(size))

    def release(self, buffer: bytearray, frame: Frame) -> None:
        """Returns a buffer of `frame` to the budget and the pool."""
        size, host = len(buffer), frame.host
        self.free_bytes += size
        held = self._bytes_by_host[host] - size
        if held:
            self._bytes_by_host[host] = held
        else:
            del self._bytes_by_host[host]
        if self.pooled_bytes + size <= POOL_BYTES:
            self._pool.setdefault(size, []).append(buffer)
            self.pooled_bytes += size
        if self._over_budget is frame and self.free_bytes >= self._reserve:
            self._over_budget = None
        if held <= self._host_share and self._over_share.get(host) is frame:
            del self._over_share[host]
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for _, call in sorted(waiting, key=lambda each: self._bytes_by_host.get(each[0], 0)):
                call()

    def forget_frame(self, frame: Frame) -> None:
        """Forgets a frame that has ended and holds nothing any more."""
        if self._over_budget is frame:
            self._over_budget = None
        if self._over_share.get(frame.host) is frame:
            del self._over_share[frame.host]

    def trim(self) -> None:
        """Frees half of the pool. The server calls it now and then, so that memory shrinks after a burst."""
        for size, ready in self._pool.items():
            drop = (len(ready) + 1) // 2
            del ready[:drop]
            self.pooled_bytes -= drop * size


class Frame:
    """One large frame while it is received. `view` is the whole frame once `filled` equals `size`."""

    __slots__ = ("_buffer", "_buffers", "_prefix", "filled", "filled_at_check", "host", "size", "view")

    def __init__(self, buffers: RequestBuffers, size: int, prefix: memoryview, host: str) -> None:
        self.size = size
        self.host = host
        self.filled = 0
        self.filled_at_check = -1
        """Value of `filled` at the last sweep, -1 before the first."""
        self._buffers = buffers
        self._prefix = bytes(prefix)
        self._buffer: bytearray | None = None
        self.view = memoryview(b"")

    def next_space(self) -> memoryview | None:
        """Returns the memory for the next bytes, None if there is none now."""
        if self.filled == len(self.view) and not self._grow():
            return None
        return self.view[self.filled :]

    def release(self) -> None:
        """Gives back the memory."""
        buffer, self._buffer = self._buffer, None
        self.view = memoryview(b"")
        self._buffers.forget_frame(self)
        if buffer is not None:
            self._buffers.release(buffer, self)

    def _grow(self) -> bool:
        whole = max(POOLED_MIN_BYTES, 1 << (self.size - 1).bit_length())
        step = whole if self._buffers.has_pooled(whole) else min(whole, max(FIRST_BUFFER_BYTES, 4 * len(self.view)))
        larger = self._buffers.acquire(step, self)
        if larger is None:
            return False
        view = memoryview(larger)[: self.size]
        if self._prefix:
            self.filled = len(self._prefix)
            view[: self.filled] = self._prefix
            self._prefix = b""
        else:
            view[: self.filled] = self.view[: self.filled]
        old, self._buffer, self.view = self._buffer, larger, view
        if old is not None:
            self._buffers.release(old, self)
        return True

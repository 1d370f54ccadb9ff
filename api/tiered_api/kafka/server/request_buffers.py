"""Memory for requests too large for the shared scratch buffer: pooled, and bounded over all connections.

What a client announces is not yet anything that it sent: a buffer begins small and grows with the bytes that came, so
that memory is at most four times what clients really sent. A buffer that lies ready is taken whole: it costs nothing.

No address has it all: one holds at most half of the budget, and the last quarter is for those that hold little. Room
that is given back goes first to the address that holds least.
"""

from __future__ import annotations

from collections.abc import Callable

SMALLEST = 64 << 10
FIRST_STEP = 256 << 10
"""What is given on the mere announcement of a large frame."""
LITTLE = 1 << 20
"""An address that holds no more has the reserve."""
KEPT_BYTES = 32 << 20
"""Free buffers that are kept for the next frames."""


class Buffers:
    """The buffers of one server and the budget that all of them share.

    A frame that gets no room parks and is called when there is some. So that frames which hold half of what they need
    never block each other for good, one of them at a time may go over the budget, and one of each address over its
    share.
    """

    def __init__(self, budget: int) -> None:
        self.free = budget
        """Bytes of the budget that nobody holds; below zero while one frame is over it."""
        self.kept = 0
        self._share = budget // 2
        self._reserve = budget // 4
        self._held: dict[str, int] = {}
        """Bytes by address."""
        self._pool: dict[int, list[bytearray]] = {}
        self._waiting: list[tuple[str, Callable[[], None]]] = []
        self._over: Frame | None = None
        self._over_share: dict[str, Frame] = {}

    @property
    def waiting(self) -> bool:
        """Whether a frame waits for room."""
        return bool(self._waiting)

    def frame(self, size: int, begun: memoryview, host: str = "") -> Frame:
        """For a frame of `size` bytes from an address, of which the first have come."""
        return Frame(self, size, begun, host)

    def park(self, call: Callable[[], None], host: str = "") -> None:
        """Calls once, when there may be room. The call must do its work later: it comes from within `give`."""
        self._waiting.append((host, call))

    def take(self, size: int, frame: Frame) -> bytearray | None:
        """A buffer of `size` bytes, or None when the budget, or the address's share, has no room for it now."""
        host = frame.host
        held = self._held.get(host, 0) + size
        if self._over is not frame:
            if held > self._share and self._over_share.setdefault(host, frame) is not frame:
                return None
            if self.free < size + (self._reserve if held > LITTLE else 0):
                if self._over is not None:
                    return None
                self._over = frame
        self.free -= size
        self._held[host] = held
        ready = self._pool.get(size)
        if ready:
            self.kept -= size
            return ready.pop()
        return bytearray(size)

    def has(self, size: int) -> bool:
        """Whether a buffer of that size lies ready."""
        return bool(self._pool.get(size))

    def give(self, buffer: bytearray, frame: Frame) -> None:
        """`frame` lets go of a buffer."""
        size, host = len(buffer), frame.host
        self.free += size
        held = self._held[host] - size
        if held:
            self._held[host] = held
        else:
            del self._held[host]
        if self.kept + size <= KEPT_BYTES:
            self._pool.setdefault(size, []).append(buffer)
            self.kept += size
        if self._over is frame and self.free >= self._reserve:
            self._over = None
        if held <= self._share and self._over_share.get(host) is frame:
            del self._over_share[host]
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for _, call in sorted(waiting, key=lambda each: self._held.get(each[0], 0)):
                call()

    def forget(self, frame: Frame) -> None:
        """`frame` has ended and holds nothing any more."""
        if self._over is frame:
            self._over = None
        if self._over_share.get(frame.host) is frame:
            del self._over_share[frame.host]

    def trim(self) -> None:
        """Lets go of half of what lies ready; called now and then, so that a burst is forgotten."""
        for size, ready in self._pool.items():
            drop = (len(ready) + 1) // 2
            del ready[:drop]
            self.kept -= drop * size


class Frame:
    """One frame that is being received. `view` is all of it once `filled` is `size`."""

    __slots__ = ("_begun", "_buffer", "_buffers", "filled", "host", "looked_at", "size", "view")

    def __init__(self, buffers: Buffers, size: int, begun: memoryview, host: str) -> None:
        self.size = size
        self.host = host
        self.filled = 0
        self.looked_at = -1
        """How much had come at the last look at all frames, -1 before the first."""
        self._buffers = buffers
        self._begun = bytes(begun)
        self._buffer: bytearray | None = None
        self.view = memoryview(b"")

    def room(self) -> memoryview | None:
        """Where the next bytes go; None when there is no memory for them now."""
        if self.filled == len(self.view) and not self._grow():
            return None
        return self.view[self.filled :]

    def release(self) -> None:
        """Gives the memory back."""
        buffer, self._buffer = self._buffer, None
        self.view = memoryview(b"")
        self._buffers.forget(self)
        if buffer is not None:
            self._buffers.give(buffer, self)

    def _grow(self) -> bool:
        whole = max(SMALLEST, 1 << (self.size - 1).bit_length())
        step = whole if self._buffers.has(whole) else min(whole, max(FIRST_STEP, 4 * len(self.view)))
        larger = self._buffers.take(step, self)
        if larger is None:
            return False
        view = memoryview(larger)[: self.size]
        if self._begun:
            self.filled = len(self._begun)
            view[: self.filled] = self._begun
            self._begun = b""
        else:
            view[: self.filled] = self.view[: self.filled]
        old, self._buffer, self.view = self._buffer, larger, view
        if old is not None:
            self._buffers.give(old, self)
        return True

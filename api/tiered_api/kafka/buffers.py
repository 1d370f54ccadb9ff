"""Memory for requests too large for the shared scratch buffer: pooled, and bounded over all connections.

What a client announces is not yet anything that it sent: a buffer begins small and grows with the bytes that came, so
that memory is at most four times what clients really sent. A buffer that lies ready is taken whole: it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable

SMALLEST = 64 << 10
FIRST_STEP = 256 << 10
"""What is given on the mere announcement of a large frame."""
KEPT_BYTES = 32 << 20
"""Free buffers that are kept for the next frames."""


class Buffers:
    """The buffers of one server and the budget that all of them share.

    Who gets no room parks and is called when there is some. So that frames which hold half of what they need never
    block each other for good, one of them at a time may go over the budget.
    """

    def __init__(self, budget: int) -> None:
        self.free = budget
        """Bytes of the budget that nobody holds; below zero while one frame is over it."""
        self.kept = 0
        self._pool: dict[int, list[bytearray]] = {}
        self._waiting: list[Callable[[], None]] = []
        self._over: Frame | None = None

    def frame(self, size: int, begun: memoryview) -> Frame:
        """For a frame of `size` bytes, of which the first have come."""
        return Frame(self, size, begun)

    def park(self, call: Callable[[], None]) -> None:
        """Calls once, when there may be room. The call must do its work later: it comes from within `give`."""
        self._waiting.append(call)

    def take(self, size: int, frame: Frame) -> bytearray | None:
        """A buffer of `size` bytes, or None when the budget has no room for it now."""
        if self.free < size:
            if self._over is not None and self._over is not frame:
                return None
            self._over = frame
        self.free -= size
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
        size = len(buffer)
        self.free += size
        if self.kept + size <= KEPT_BYTES:
            self._pool.setdefault(size, []).append(buffer)
            self.kept += size
        if self._over is frame and self.free >= 0:
            self._over = None
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def trim(self) -> None:
        """Lets go of half of what lies ready; called now and then, so that a burst is forgotten."""
        for size, ready in self._pool.items():
            drop = (len(ready) + 1) // 2
            del ready[:drop]
            self.kept -= drop * size


class Frame:
    """One frame that is being received. `view` is all of it once `filled` is `size`."""

    __slots__ = ("_begun", "_buffer", "_buffers", "filled", "size", "view")

    def __init__(self, buffers: Buffers, size: int, begun: memoryview) -> None:
        self.size = size
        self.filled = 0
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

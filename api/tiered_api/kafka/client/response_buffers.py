"""Reusable memory for large responses: fresh pages cost more than receiving the bytes into them.

The records of a response are views of its memory. So no caller returns memory explicitly: it is free again once it has
no views.
"""

from __future__ import annotations

POOLED_MIN_BYTES = 256 << 10
"""Smaller buffers are not kept."""
POOL_BYTES = 32 << 20


class ResponseBuffers:
    """The memory of connections that share it; keeps at most `max_bytes` bytes."""

    def __init__(self, max_bytes: int = POOL_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pool: list[bytearray] = []

    @property
    def pooled_bytes(self) -> int:
        """Returns the bytes of all buffers, in use or free."""
        return sum(map(len, self._pool))

    def reuse(self, size: int) -> memoryview | None:
        """Returns a free buffer of this size with any content; None if there is none."""
        if size < POOLED_MIN_BYTES:
            return None
        fitting = [each for each in self._pool if len(each) >= size and _is_free(each)]
        return memoryview(min(fitting, key=len))[:size] if fitting else None

    def acquire(self, size: int) -> memoryview:
        """Returns a buffer of this size, a fresh one if none is free."""
        found = self.reuse(size)
        if found is not None:
            return found
        whole = 1 << (size - 1).bit_length()
        if size < POOLED_MIN_BYTES or not self._make_room(whole):
            return memoryview(bytearray(size))
        self._pool.append(bytearray(whole))
        return memoryview(self._pool[-1])[:size]

    def _make_room(self, size: int) -> bool:
        """Frees smaller buffers to make room. Returns False if there is not enough."""
        while self.pooled_bytes + size > self._max_bytes:
            smaller = [at for at, each in enumerate(self._pool) if len(each) < size and _is_free(each)]
            if not smaller:
                return False
            del self._pool[smaller[0]]
        return True

    def clear(self) -> None:
        """Frees all buffers, because no large response is expected."""
        self._pool.clear()


def _is_free(buffer: bytearray) -> bool:
    """True if no view exists: a viewed buffer cannot change its size."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True

"""Memory for large answers, kept for the next ones: to get fresh pages costs more than to receive what goes into them.

The records of an answer are views of its memory for as long as somebody needs them. So nobody gives memory back by a
word: it lies ready again once nobody views it.
"""

from __future__ import annotations

POOLED_MIN_BYTES = 256 << 10
"""Less is not worth keeping."""
POOL_BYTES = 32 << 20


class ResponseBuffers:
    """Memory of the connections that share it; keeps `most` bytes of it."""

    def __init__(self, max_bytes: int = POOL_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pool: list[bytearray] = []

    @property
    def pooled_bytes(self) -> int:
        """Bytes, in use or not."""
        return sum(map(len, self._pool))

    def reuse(self, size: int) -> memoryview | None:
        """So many bytes that are there already, whatever is in them."""
        if size < POOLED_MIN_BYTES:
            return None
        fitting = [each for each in self._pool if len(each) >= size and _is_free(each)]
        return memoryview(min(fitting, key=len))[:size] if fitting else None

    def acquire(self, size: int) -> memoryview:
        """So many bytes, fresh ones where none lie ready."""
        found = self.reuse(size)
        if found is not None:
            return found
        whole = 1 << (size - 1).bit_length()
        if size < POOLED_MIN_BYTES or not self._make_room(whole):
            return memoryview(bytearray(size))
        self._pool.append(bytearray(whole))
        return memoryview(self._pool[-1])[:size]

    def _make_room(self, size: int) -> bool:
        """Makes it, of smaller pieces that lie ready."""
        while self.pooled_bytes + size > self._max_bytes:
            smaller = [at for at, each in enumerate(self._pool) if len(each) < size and _is_free(each)]
            if not smaller:
                return False
            del self._pool[smaller[0]]
        return True

    def clear(self) -> None:
        """Keeps nothing: there is nothing large to receive."""
        self._pool.clear()


def _is_free(buffer: bytearray) -> bool:
    """What somebody views cannot change its size."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True

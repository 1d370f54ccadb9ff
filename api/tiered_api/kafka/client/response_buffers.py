"""Memory for large answers, kept for the next ones: to get fresh pages costs more than to receive what goes into them.

The records of an answer are views of its memory for as long as somebody needs them. So nobody gives memory back by a
word: it lies ready again once nobody views it.
"""

from __future__ import annotations

SMALLEST = 256 << 10
"""Less is not worth keeping."""
KEPT_BYTES = 32 << 20


class FrameMemory:
    """Memory of the connections that share it; keeps `most` bytes of it."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most = most
        self._kept: list[bytearray] = []

    @property
    def kept(self) -> int:
        """Bytes, in use or not."""
        return sum(map(len, self._kept))

    def ready(self, size: int) -> memoryview | None:
        """So many bytes that are there already, whatever is in them."""
        if size < SMALLEST:
            return None
        fitting = [each for each in self._kept if len(each) >= size and _is_free(each)]
        return memoryview(min(fitting, key=len))[:size] if fitting else None

    def take(self, size: int) -> memoryview:
        """So many bytes, fresh ones where none lie ready."""
        found = self.ready(size)
        if found is not None:
            return found
        whole = 1 << (size - 1).bit_length()
        if size < SMALLEST or not self._has_room(whole):
            return memoryview(bytearray(size))
        self._kept.append(bytearray(whole))
        return memoryview(self._kept[-1])[:size]

    def _has_room(self, size: int) -> bool:
        """Makes it, of smaller pieces that lie ready."""
        while self.kept + size > self._most:
            smaller = [at for at, each in enumerate(self._kept) if len(each) < size and _is_free(each)]
            if not smaller:
                return False
            del self._kept[smaller[0]]
        return True

    def rest(self) -> None:
        """Keeps nothing: there is nothing large to receive."""
        self._kept.clear()


def _is_free(buffer: bytearray) -> bool:
    """What somebody views cannot change its size."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True

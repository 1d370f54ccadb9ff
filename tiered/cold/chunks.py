"""Byte ranges of objects as chunks to get and to cache: small first, then large, on one common grid.

The first get of a reader is 1 MiB so that the first byte comes early, the second 4 MiB, all others 8 MiB. Each ends on
a multiple of its own size, so readers that began anywhere soon ask for the same chunks and share them.
"""

from __future__ import annotations

from typing import NamedTuple

MIB = 1 << 20
STEPS = (1 * MIB, 4 * MIB, 8 * MIB)


class Chunk(NamedTuple):
    """`[start, start + length)` of the object `key`: the unit of a ranged get and of the cache."""

    key: str
    start: int
    length: int

    @property
    def end(self) -> int:
        """First byte behind the chunk."""
        return self.start + self.length


def next_chunk(key: str, position: int, end: int, step: int) -> Chunk:
    """The chunk that holds `position`, for a reader that has asked `step` times before. `end` bounds the object's log.

    The first begins on the 1 MiB grid at or before `position`; the others begin where the last one ended.
    """
    size = STEPS[min(step, len(STEPS) - 1)]
    start = position - position % STEPS[0] if step == 0 else position
    stop = min(end, start - start % size + size)
    return Chunk(key, start, stop - start)

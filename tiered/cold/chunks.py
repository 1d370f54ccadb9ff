"""Divides objects into chunks for gets and for the cache: small ones first, then large ones, on one common grid.

The first get of a reader is 1 MiB so that the first byte comes early. The second is 4 MiB, all others are 16 MiB. Each
ends on a multiple of its own size. Therefore readers that began at different positions soon need the same chunks and
share them. A clean pays for each request and waits for no first byte, so it gets 64 MiB at a time.
"""

from __future__ import annotations

from typing import NamedTuple

MIB = 1 << 20
STEPS = (1 * MIB, 4 * MIB, 16 * MIB)
FEW_GETS_STEP = -1
"""The step of a reader that needs few gets, and not an early first byte."""
FEW_GETS_BYTES = 64 * MIB


class Chunk(NamedTuple):
    """Bytes `[start, start + length)` of the object `key`: the unit of a ranged get and of the cache."""

    key: str
    start: int
    length: int

    @property
    def end(self) -> int:
        """Returns the position after the last byte of the chunk."""
        return self.start + self.length


def next_chunk(key: str, position: int, end: int, step: int) -> Chunk:
    """Returns the chunk that holds `position`, for a reader that has had `step` chunks. `end` is the end of the
    object's log.

    The first chunk begins on the 1 MiB grid at or before `position`. Each other chunk begins where the last one ended.
    """
    size = FEW_GETS_BYTES if step == FEW_GETS_STEP else STEPS[min(step, len(STEPS) - 1)]
    start = position - position % STEPS[0] if step == 0 else position
    stop = min(end, start - start % size + size)
    return Chunk(key, start, stop - start)

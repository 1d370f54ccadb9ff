"""Divides objects into chunks for gets and for the cache: small ones first, then large ones, on one common grid.

The first get of a reader is 1 MiB so that the first byte comes early. Then come 4, 8, and 16 MiB for all others. A
reader with little room for read-ahead stops at an eighth of it: it needs several gets in flight more than few. Each
ends on a multiple of its own size. Therefore readers that began at different positions soon need the same chunks and
share them. A clean pays for each request and waits for no first byte, so it gets 64 MiB at a time.
"""

from __future__ import annotations

from typing import NamedTuple

MIB = 1 << 20
STEPS = (1 * MIB, 4 * MIB, 8 * MIB, 16 * MIB)
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


GETS_IN_FLIGHT = 8
"""Chunks for which the read-ahead of a reader has room."""


def largest_step(window_bytes: int) -> int:
    """Returns the last step of a reader with this read-ahead."""
    return max((step for step, size in enumerate(STEPS) if size * GETS_IN_FLIGHT <= window_bytes), default=0)


CHUNKS_OF_SHARE = 4
"""Chunks that a reader's share of the cache has to hold: the one that is read, and three in flight."""


def step_in_share(share_bytes: int) -> int:
    """Returns the last step of a reader with this share of a cache: many readers have small chunks each."""
    return max((step for step, size in enumerate(STEPS) if size * CHUNKS_OF_SHARE <= share_bytes), default=0)


def next_chunk(key: str, position: int, end: int, step: int) -> Chunk:
    """Returns the chunk that holds `position`, for a reader at this step. `end` is the end of the object's log.

    The first chunk begins on the 1 MiB grid at or before `position`. Each other chunk begins where the last one ended.
    """
    size = FEW_GETS_BYTES if step == FEW_GETS_STEP else STEPS[step]
    start = position - position % STEPS[0] if step == 0 else position
    stop = min(end, start - start % size + size)
    return Chunk(key, start, stop - start)

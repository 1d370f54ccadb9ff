"""The requests of a clean in the bucket, and the time at which the clean is worth them.

A clean waits while its requests are many beside those of uploads. Then one clean frees what several would have freed.
Superseded records that stay for longer are lawful, and they cost storage. So the wait ends once the storage costs as
much as the requests, after a week, or once the log is a multiple of its clean part. Keeps I32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import NamedTuple

from tiered.compaction.cleanable_range import CleanableRange
from tiered.compaction.rewrites import KeyedSegment

UPLOAD_REQUESTS = 4
"""Requests of the upload of one segment: its object, the check of the object's end, a read of the manifest, a change
of it."""
OBJECT_REQUESTS = 2
"""Requests for an object that a clean puts: the object, and the check of its end."""
CHANGE_REQUESTS = 2
"""Requests of a clean beside its objects: the change of the manifest, and the deletion of what was replaced."""
REQUEST_BYTE_MS = (8 << 20) * 86_400_000
"""Bytes times milliseconds of storage that cost as much as a request: 8 MiB for a day, by the prices of S3."""
WAIT_MAX_MS = 7 * 86_400_000
"""Longest wait, however little is dirty."""
DIRTY_MAX = 3
"""A log of which so many times the clean part is dirty waits no longer."""
SMALL_BYTES = 64 << 20
"""The clean part counts as so large at least."""
NEXT_LOOK = 1.25
"""A clean that was put off looks again after so many times the uploads, if not earlier."""


class CleanCost(NamedTuple):
    """The requests of a clean, and the bytes that it frees."""

    requests: int
    freed_bytes: int

    def is_worth(self, dirty: CleanableRange, age_ms: int, share: float) -> bool:
        """True if a clean of the `dirty` part may make these requests, so long after the last clean. It makes at most
        `share` requests for each one of uploads, unless the wait costs more than they do."""
        return (
            self.requests <= share * UPLOAD_REQUESTS * dirty.dirty_segments
            or self.freed_bytes * age_ms >= self.requests * REQUEST_BYTE_MS
            or age_ms > WAIT_MAX_MS
            or dirty.dirty_bytes > DIRTY_MAX * max(dirty.clean_bytes, SMALL_BYTES)
        )


class PutOff(NamedTuple):
    """A clean that was not worth its cost when there were so many dirty segments."""

    cost: CleanCost
    dirty_segments: int

    def is_over(self, dirty: CleanableRange, age_ms: int, share: float) -> bool:
        """True if the clean may be worth its cost by now."""
        return dirty.dirty_segments > NEXT_LOOK * self.dirty_segments or self.cost.is_worth(dirty, age_ms, share)


def count_gets(sizes: Iterable[int], get_bytes: int) -> int:
    """Returns the gets of the log parts of objects."""
    return sum(ceil(size / get_bytes) for size in sizes)


def count_cost(runs: Iterable[Sequence[KeyedSegment]], object_bytes: int, get_bytes: int) -> CleanCost:
    """Returns an estimate of the cost to write these runs again, and to name them in the manifest."""
    requests, freed_bytes = CHANGE_REQUESTS, 0
    for run in runs:
        kept = sum(each.size - each.free_bytes for each in run)
        freed_bytes += sum(each.free_bytes for each in run)
        requests += count_gets((each.size for each in run if not (each.is_local or each.is_dead)), get_bytes)
        requests += run[-1].is_dead and not run[-1].is_local
        requests += OBJECT_REQUESTS * max(ceil(kept / object_bytes), 1)
    return CleanCost(requests, freed_bytes)

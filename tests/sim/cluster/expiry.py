"""I22: the reasons for which a log may start where it does. Pure: the committed batches and the settings in, the
batches that were deleted too early out.

Retention deletes segments, the oldest first. A deleted batch had at least `retention.bytes` above it, or was older than
`retention.ms`. That holds for each batch alone, so that the ends of segments do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class LogBatch(NamedTuple):
    """One batch of a log. Equal values mean the same records."""

    base: int
    last: int
    epoch: int
    crc: int
    size: int = 0
    max_timestamp: int = 0


class Retention(NamedTuple):
    """Retention that a topic promises, in bytes and ms (negative: unlimited)."""

    retention_bytes: int = -1
    retention_ms: int = -1


def find_early_expiry(
    committed: Iterable[LogBatch],
    start: int,
    retention: Retention,
    *,
    tail_bytes: int,
    now_ms: int,
    max_clock_skew_ms: int = 0,
) -> Iterator[LogBatch]:
    """Returns batches below the new `start` that no setting allowed to delete. `committed` are the batches above the
    earlier start, in order. Some leader may have had `tail_bytes` of uncommitted records above them. The clocks of
    brokers differ from each other and from `now_ms` by at most `max_clock_skew_ms`."""
    above = tail_bytes
    for batch in sorted(committed, reverse=True):
        if batch.last < start:
            enough = 0 <= retention.retention_bytes <= above
            age_ms = now_ms + max_clock_skew_ms - batch.max_timestamp
            if not enough and not 0 <= retention.retention_ms < age_ms:
                yield batch
        above += batch.size

"""I22: why a log may start where it does. Pure: what is committed and what the topic keeps, in; what went too early,
out.

Retention goes by segments, oldest first. Whatever they were: a batch that went left at least `retention.bytes` above
it, or was older than `retention.ms`. That holds for each batch by itself, so nobody need know where segments ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class LogBatch(NamedTuple):
    """One batch of a log: equal ones are the same records."""

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
    """Batches below the new `start` that nothing allowed to go. `committed`: those above the start before, in order.
    `tail_bytes` may have stood above them on some leader, uncommitted; brokers' clocks differ by `max_clock_skew_ms` at
    most from each other and from the clock `now_ms`."""
    above = tail_bytes
    for batch in sorted(committed, reverse=True):
        if batch.last < start:
            enough = 0 <= retention.retention_bytes <= above
            age_ms = now_ms + max_clock_skew_ms - batch.max_timestamp
            if not enough and not 0 <= retention.retention_ms < age_ms:
                yield batch
        above += batch.size

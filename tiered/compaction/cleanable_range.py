"""The part of a log that a clean may read and rewrite, how urgent a clean is, and the segments that become one.

The rules are Kafka's. The dirty part begins where the last clean ended. Nothing is cleaned that a follower, a reader of
committed records or a truncation could still see otherwise: the range ends at the high watermark, at the last stable
offset, and before the active segment. Keeps I26.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

RELATIVE_MAX = 2**31 - 1
"""Limit on the offsets that one segment spans: indexes have relative offsets of 31 bits."""
COMPACT, DELETE = "compact", "delete"


class CompactionConfig(Protocol):
    """The topic settings that decide."""

    @property
    def cleanup_policy(self) -> Sequence[str]: ...
    @property
    def min_cleanable_dirty_ratio(self) -> float: ...
    @property
    def min_compaction_lag_ms(self) -> int: ...
    @property
    def max_compaction_lag_ms(self) -> int: ...
    @property
    def segment_size(self) -> int: ...
    @property
    def segment_index_bytes(self) -> int: ...


class CleanableSegment(NamedTuple):
    """A segment: offsets `[base_offset, next_offset)`, `size` bytes. Times in ms.

    `created_ms` is when its first batch came, by the broker's clock. `ended_ms` is a time after its last batch came, as
    far as it is known, or -1. `index_bytes` is the size of its larger index.
    """

    base_offset: int
    next_offset: int
    size: int
    max_timestamp: int
    created_ms: int
    index_bytes: int = 0
    ended_ms: int = -1

    @property
    def newest_ms(self) -> int:
        """Returns the greatest timestamp of the records. If none is named, the segment is as old as its end, as in
        Kafka."""
        return self.max_timestamp if self.max_timestamp >= 0 else max(self.ended_ms, self.created_ms)


class LogEnds(NamedTuple):
    """Offsets of a log that bound a clean. `clean_to` is where the last clean ended, -1 if there was none."""

    start_offset: int
    clean_to: int
    high_watermark: int
    last_stable_offset: int
    end_offset: int


class CleanableRange(NamedTuple):
    """Offsets `[first_dirty, first_uncleanable)` may be cleaned; those below `first_dirty` were cleaned before.

    `overdue_ms` is how long the oldest dirty record is older than max.compaction.lag.ms.
    """

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int

    @property
    def dirty_ratio(self) -> float:
        """Returns the dirty share of all bytes that a clean would read."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, config: CompactionConfig) -> bool:
        """True if a clean is worth its cost, or overdue."""
        if self.dirty_bytes == 0:
            return False
        return self.overdue_ms > 0 or self.dirty_ratio > config.min_cleanable_dirty_ratio


def is_compacted(config: CompactionConfig) -> bool:
    """True if the topic keeps the last record of each key."""
    return COMPACT in config.cleanup_policy


def find_cleanable(
    closed: Sequence[CleanableSegment], ends: LogEnds, config: CompactionConfig, now_ms: int
) -> CleanableRange:
    """Returns the range of a log with these closed segments, oldest first; the active segment is not among them.

    If the log was truncated below `clean_to`, or its start moved above, the dirty part begins at the log start.
    """
    first_dirty = ends.clean_to
    if not ends.start_offset <= first_dirty <= ends.end_offset:
        first_dirty = ends.start_offset
    limit = min(ends.high_watermark, ends.last_stable_offset)
    newest_ms = now_ms - max(config.min_compaction_lag_ms, 0)
    first_uncleanable = closed[0].base_offset if closed else first_dirty
    clean_bytes = dirty_bytes = 0
    oldest_ms = -1
    for segment in closed:
        if segment.next_offset > limit:
            break
        is_dirty = segment.next_offset > first_dirty
        if is_dirty and config.min_compaction_lag_ms > 0 and segment.newest_ms > newest_ms:
            break
        first_uncleanable = segment.next_offset
        if not is_dirty:
            clean_bytes += segment.size
            continue
        dirty_bytes += segment.size
        if segment.size and oldest_ms < 0:
            oldest_ms = segment.created_ms
    late_ms = now_ms - config.max_compaction_lag_ms - oldest_ms if oldest_ms >= 0 else 0
    return CleanableRange(first_dirty, max(first_uncleanable, first_dirty), clean_bytes, dirty_bytes, max(late_ms, 0))


def group_segments(
    segments: Sequence[CleanableSegment], end_offset: int, segment_bytes: int, index_bytes: int
) -> list[list[CleanableSegment]]:
    """Groups segments that begin below `end_offset`, each group to become one segment.

    A group has at most `segment_bytes` of log, `index_bytes` of an index, and a span of 31 bits of offsets. A segment
    that is larger by itself is a group.
    """
    groups: list[list[CleanableSegment]] = []
    size = index_size = 0
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        size, index_size = size + segment.size, index_size + segment.index_bytes
        if (
            not groups
            or size > segment_bytes
            or index_size > index_bytes
            or segment.next_offset - 1 - groups[-1][0].base_offset > RELATIVE_MAX
        ):
            groups.append([])
            size, index_size = segment.size, segment.index_bytes
        groups[-1].append(segment)
    return groups

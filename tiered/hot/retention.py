"""Decides which closed segments the local disk drops, and below which offset records are deleted for good.

Pure. Keeps I21, I22 and I32. Two rules stand above all settings:

- A local record is dropped only if it is in the bucket, or if total retention deletes the record itself.
- Total size counts only if the size in the bucket is known.

The active segment is never dropped. If all of it is too old, it is rolled first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from tiered.compaction.cleanable_range import DELETE
from tiered.config.settings import TopicConfig
from tiered.value import value

SAME_AS_TOTAL = -2
"""Value of `local.retention.*` that means the same as `retention.*`. Every other negative limit means no limit."""


class TotalLimits(NamedTuple):
    """Total retention in force, in milliseconds and bytes. Negative means no limit."""

    retention_ms: int
    retention_bytes: int


def total_limits(config: TopicConfig) -> TotalLimits:
    """Returns total retention: without `delete` in its policy a topic keeps everything that compaction keeps."""
    if DELETE not in config.cleanup_policy:
        return TotalLimits(-1, -1)
    return TotalLimits(config.retention_ms, config.retention_bytes)


class RetentionSegment(Protocol):
    """The facts of a segment that retention needs (`SegmentView` has them). Times in ms, sizes in bytes."""

    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def created_ms(self) -> int: ...


@value
class RetentionPlan:
    """The result of a retention check.

    `log_start`: records below it are deleted. `drop_below`: closed local segments that end at or below it are dropped.
    `roll_active`: the active segment is due, and the check after its roll drops it.
    """

    log_start: int
    drop_below: int
    roll_active: bool


def plan_retention(
    closed: Sequence[RetentionSegment],
    active: RetentionSegment,
    config: TopicConfig,
    now_ms: int,
    *,
    log_start: int,
    deletable_below: int,
    cold_end: int | None,
    cold_bytes_known: bool,
    clean_to: int = 0,
) -> RetentionPlan:
    """Returns what can be deleted from a partition now.

    `closed` is ordered oldest first. `deletable_below` bounds everything (the high watermark, or what readers still
    need). `cold_end` is the cold end offset, None for a log that is not tiered. `cold_bytes_known`: this leader has
    read the manifest under its epoch. `clean_to` is as in `find_local_start`.
    """
    size_known = cold_end is None or cold_bytes_known
    start = _find_log_start(closed, active, config, now_ms, log_start, deletable_below, size_known)
    drop_below = start
    if cold_end is not None:
        drop_below = max(
            start,
            find_local_start(
                closed, active, config, now_ms, cold_end=min(cold_end, deletable_below), clean_to=clean_to
            ),
        )
    all_closed_deleted = all(segment.next_offset <= start for segment in closed)
    # Without usable timestamps the age of the active segment counts from its first record. Once the segment is closed,
    # it counts from its last record.
    is_due = _is_expired(active, active.created_ms, config, now_ms)
    roll_active = all_closed_deleted and active.size > 0 and active.next_offset <= deletable_below and is_due
    return RetentionPlan(max(start, log_start), max(drop_below, log_start), roll_active)


def age_start_ms(max_timestamp: int, known_since_ms: int, now_ms: int) -> int:
    """Returns the time from which the age of a segment counts, hot or cold: its newest timestamp.

    If the producer sent no timestamp, or one in the future, the age counts from `known_since_ms`. This is a time of the
    broker's clock: when the segment began, or was uploaded. Kafka trusts timestamps in the future. It keeps such a
    segment, and all after it, until that time.
    """
    return max_timestamp if 0 <= max_timestamp <= now_ms else known_since_ms


def _is_expired(segment: RetentionSegment, ended_ms: int, config: TopicConfig, now_ms: int) -> bool:
    since_ms = age_start_ms(segment.max_timestamp, ended_ms, now_ms)
    return total_limits(config).retention_ms >= 0 and now_ms - since_ms > config.retention_ms


def segment_end_times(closed: Sequence[RetentionSegment], active: RetentionSegment) -> list[int]:
    """Returns for each closed segment a time by the broker's clock after its last record: when the next segment began.

    The segment's own creation time is of no use. A slow segment is old by then, and its last record may be new, with a
    timestamp slightly ahead of the broker's clock.
    """
    return [max(segment.created_ms, after.created_ms) for segment, after in pairwise((*closed, active))]


def _find_log_start(
    closed: Sequence[RetentionSegment],
    active: RetentionSegment,
    config: TopicConfig,
    now_ms: int,
    log_start: int,
    deletable_below: int,
    size_known: bool,
) -> int:
    """Returns the new log start as far as local segments decide it.

    The cold tier's plan deletes records that are only in the bucket first. Therefore size deletes local segments only
    if they alone exceed the limit. Age deletes them only if nothing lies between the log start and them. Timestamps
    come from producers, so a record that was sent again later may be older than those before it.
    """
    excess = 0
    if total_limits(config).retention_bytes >= 0 and size_known:
        excess = sum(segment.size for segment in closed) + active.size - config.retention_bytes
    start = log_start
    for segment, ended_ms in zip(closed, segment_end_times(closed, active), strict=True):
        is_deleted = segment.next_offset <= log_start
        if not is_deleted:
            # A cleaned segment may have no byte.
            too_much = excess > 0 and excess >= segment.size
            too_old = segment.base_offset <= start and _is_expired(segment, ended_ms, config, now_ms)
            if segment.next_offset > deletable_below or not (too_much or too_old):
                break
            start = segment.next_offset
        excess -= segment.size
    return start


def find_local_start(
    closed: Sequence[RetentionSegment],
    active: RetentionSegment,
    config: TopicConfig,
    now_ms: int,
    *,
    cold_end: int,
    clean_to: int = 0,
) -> int:
    """Returns where the local disk may begin: segments that are cold and exceed local retention are dropped.

    Cold segments below `clean_to` are dropped whatever local retention says: the bucket has them cleaned, and the disk
    would show superseded values (I32). Logs that are not compacted pass 0.

    Size counts closed segments only, and the active one always stays. A limit of one segment keeps the newest closed
    one, whatever the active one has. A limit of one byte keeps no closed one.
    """
    keep_ms = config.retention_ms if config.local_retention_ms == SAME_AS_TOTAL else config.local_retention_ms
    keep_bytes = (
        config.retention_bytes if config.local_retention_bytes == SAME_AS_TOTAL else config.local_retention_bytes
    )
    closed_bytes = sum(segment.size for segment in closed)
    local_start = 0
    for segment, ended_ms in zip(closed, segment_end_times(closed, active), strict=True):
        age_ms = now_ms - age_start_ms(segment.max_timestamp, ended_ms, now_ms)
        by_time = 0 <= keep_ms < age_ms
        by_size = 0 <= keep_bytes < closed_bytes
        is_clean = segment.next_offset <= clean_to
        if segment.next_offset > cold_end or not (is_clean or by_time or by_size):
            break
        closed_bytes -= segment.size
        local_start = segment.next_offset
    return local_start

"""What may leave: which closed segments the local disk drops, and up to where records are gone for good.

Pure. Two rules stand above all settings. Nothing local goes that is not in the bucket, unless the record itself is to
go (total retention), and total size is judged only when the size in the bucket is known. The active segment never
goes; when all of it is too old it is to be closed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from tiered.config.settings import TopicConfig

SAME_AS_TOTAL = -2
"""Value of `local.retention.*`: as `retention.*`. Every other negative limit is infinite."""


class RetentionSegment(Protocol):
    """A segment as retention sees it (`SegmentView` is one). Times in ms, sizes in bytes."""

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


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """`log_start`: records below it are gone. `drop_below`: closed local segments that end at or below it go.
    `close_active`: the active segment is due, and goes with the plan after the next roll."""

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
) -> RetentionPlan:
    """What may leave a partition now.

    `closed` oldest first. `deletable_below` bounds everything (the high watermark, or what readers still need).
    `cold_end`: the offset up to which the bucket has all, None for a log that is not tiered. `cold_bytes_known`:
    whether this leader has read the manifest under its epoch.
    """
    size_known = cold_end is None or cold_bytes_known
    start = _find_log_start(closed, active, config, now_ms, log_start, deletable_below, size_known)
    drop_below = start
    if cold_end is not None:
        drop_below = max(
            start, find_local_start(closed, active, config, now_ms, cold_end=min(cold_end, deletable_below))
        )
    emptied = all(segment.next_offset <= start for segment in closed)
    # Where its records say no age the oldest of them counts: from when it is closed on, the newest of them does.
    due = _is_expired(active, active.created_ms, config, now_ms)
    close_active = emptied and active.size > 0 and active.next_offset <= deletable_below and due
    return RetentionPlan(max(start, log_start), max(drop_below, log_start), close_active)


def age_start_ms(max_timestamp: int, known_since_ms: int, now_ms: int) -> int:
    """Returns from when on the age of a segment counts, hot or cold: from its newest timestamp, or where producers
    named none or one in the future, from `known_since_ms`, a time of the broker (it began the segment, or copied it).
    Kafka believes a timestamp of the future, and keeps such a segment, and all behind it, until that time comes."""
    return max_timestamp if 0 <= max_timestamp <= now_ms else known_since_ms


def _is_expired(segment: RetentionSegment, ended_ms: int, config: TopicConfig, now_ms: int) -> bool:
    since_ms = age_start_ms(segment.max_timestamp, ended_ms, now_ms)
    return config.retention_ms >= 0 and now_ms - since_ms > config.retention_ms


def segment_end_times(closed: Sequence[RetentionSegment], active: RetentionSegment) -> list[int]:
    """Returns for each closed segment a time of the broker after its last record came: when the next segment began.
    When it began itself says nothing: a slow segment is old by then, and its last record may be of a moment ago, with
    a timestamp that is a little ahead of the broker's clock."""
    return [max(one.created_ms, after.created_ms) for one, after in pairwise((*closed, active))]


def _find_log_start(
    closed: Sequence[RetentionSegment],
    active: RetentionSegment,
    config: TopicConfig,
    now_ms: int,
    log_start: int,
    deletable_below: int,
    size_known: bool,
) -> int:
    """The new log start as far as local segments decide it.

    What only the bucket holds leaves first, by the cold tier's plan. So local segments go for size only when they alone
    exceed the limit, and for age only when nothing lies between the log start and them: producers name the timestamps,
    and what was sent again after a while may be older than what stands before it.
    """
    excess = 0
    if config.retention_bytes >= 0 and size_known:
        excess = sum(segment.size for segment in closed) + active.size - config.retention_bytes
    start = log_start
    for segment, ended_ms in zip(closed, segment_end_times(closed, active), strict=True):
        gone = segment.next_offset <= log_start
        if not gone:
            too_much = excess >= segment.size
            too_old = segment.base_offset <= start and _is_expired(segment, ended_ms, config, now_ms)
            if segment.next_offset > deletable_below or not (too_much or too_old):
                break
            start = segment.next_offset
        excess -= segment.size
    return start


def find_local_start(
    closed: Sequence[RetentionSegment], active: RetentionSegment, config: TopicConfig, now_ms: int, *, cold_end: int
) -> int:
    """Where the local disk may begin: what is cold and beyond local retention goes.

    Size counts closed segments, the active one stays in any case: a limit of one segment keeps the newest closed one
    whatever the active one holds, a limit of one byte keeps none.
    """
    keep_ms = config.retention_ms if config.local_retention_ms == SAME_AS_TOTAL else config.local_retention_ms
    keep_bytes = (
        config.retention_bytes if config.local_retention_bytes == SAME_AS_TOTAL else config.local_retention_bytes
    )
    held = sum(segment.size for segment in closed)
    below = 0
    for segment, ended_ms in zip(closed, segment_end_times(closed, active), strict=True):
        age_ms = now_ms - age_start_ms(segment.max_timestamp, ended_ms, now_ms)
        by_time = 0 <= keep_ms < age_ms
        by_size = 0 <= keep_bytes < held
        if segment.next_offset > cold_end or not (by_time or by_size):
            break
        held -= segment.size
        below = segment.next_offset
    return below

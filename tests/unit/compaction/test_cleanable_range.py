"""Tests of the part of a log that a clean may read, of its urgency, and of the segments that become one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiered.compaction.cleanable_range import (
    RELATIVE_MAX,
    CleanableRange,
    CleanableSegment,
    LogEnds,
    find_cleanable,
    group_segments,
)
from tiered.config.settings import TopicConfig

NOW, DAY = 1_700_000_000_000, 86_400_000
COMPACTED = replace(TopicConfig(), cleanup_policy=("compact",))
SEGMENTS = [CleanableSegment(base, base + 10, 100, NOW - 5 * DAY + base, NOW - 5 * DAY + base) for base in (0, 10, 20)]


def find(
    clean_to: int = -1,
    *,
    start: int = 0,
    watermark: int = 30,
    stable: int = 30,
    config: TopicConfig = COMPACTED,
    now_ms: int = NOW,
) -> CleanableRange:
    return find_cleanable(SEGMENTS, LogEnds(start, clean_to, watermark, stable, 40), config, now_ms)


def test_dirty_part_begins_where_the_last_clean_ended() -> None:
    assert find() == (0, 30, 0, 300, 0)
    assert find(10) == (10, 30, 100, 200, 0)
    assert find(30) == (30, 30, 300, 0, 0)


@pytest.mark.parametrize(("start", "clean_to"), [(15, 10), (0, 41)])
def test_dirty_part_begins_at_a_log_start_that_moved_or_after_a_truncation(start: int, clean_to: int) -> None:
    found = find(clean_to, start=start)
    assert found.first_dirty == start and found.first_uncleanable == 30


@pytest.mark.parametrize(("watermark", "stable"), [(29, 30), (30, 20), (21, 25)])
def test_no_segment_is_cleaned_above_the_watermark_or_the_stable_offset(watermark: int, stable: int) -> None:
    assert find(watermark=watermark, stable=stable).first_uncleanable == 20
    assert find(30, stable=5) == (30, 30, 0, 0, 0)


def test_clean_is_due_above_the_dirty_ratio() -> None:
    found = find(10)
    assert found.dirty_ratio == pytest.approx(2 / 3)
    assert found.is_due(replace(COMPACTED, min_cleanable_dirty_ratio=0.66))
    assert not found.is_due(replace(COMPACTED, min_cleanable_dirty_ratio=0.67))
    assert not find(30).is_due(replace(COMPACTED, min_cleanable_dirty_ratio=0.0)), "nothing is dirty"


def test_segment_with_a_record_younger_than_the_lag_stays() -> None:
    lag = replace(COMPACTED, min_compaction_lag_ms=5 * DAY - 10)
    assert find(config=lag).first_uncleanable == 20 and find(config=lag, now_ms=NOW + 10).first_uncleanable == 30
    assert find(20, config=lag) == (20, 20, 200, 0, 0)


def test_segment_without_a_timestamp_is_as_old_as_its_end() -> None:
    lag = replace(COMPACTED, min_compaction_lag_ms=DAY)
    ends = LogEnds(0, -1, 30, 30, 40)

    def first_uncleanable(*times: tuple[int, int]) -> int:
        segments = [
            CleanableSegment(base * 10, base * 10 + 10, 100, -1, created, ended_ms=ended)
            for base, (created, ended) in enumerate(times)
        ]
        return find_cleanable(segments, ends, lag, NOW).first_uncleanable

    old = (NOW - 5 * DAY, NOW - 4 * DAY)
    assert first_uncleanable(old, old, (NOW - 5 * DAY, NOW)) == 20
    assert first_uncleanable(old, (NOW - 5, -1), old) == 10
    assert first_uncleanable(old, old, old) == 30


def test_log_is_overdue_once_its_oldest_dirty_record_is_too_old() -> None:
    lag = replace(COMPACTED, max_compaction_lag_ms=5 * DAY - 10, min_cleanable_dirty_ratio=1.0)
    assert find(config=lag).overdue_ms == 10 and find(config=lag).is_due(lag)
    assert find(10, config=lag).overdue_ms == 0 and not find(10, config=lag).is_due(lag)
    assert find(30, config=lag).overdue_ms == 0


def test_group_has_at_most_a_segment_of_bytes_and_indexes_and_its_span() -> None:
    def groups(segments: list[CleanableSegment], segment_bytes: int = 250, index_bytes: int = 100) -> list[list[int]]:
        found = group_segments(segments, 1 << 40, segment_bytes, index_bytes)
        return [[each.base_offset for each in group] for group in found]

    assert groups(SEGMENTS) == [[0, 10], [20]] and groups(SEGMENTS, 50) == [[0], [10], [20]]
    indexed = [each._replace(index_bytes=40) for each in SEGMENTS]
    assert groups(indexed, 1000) == [[0, 10], [20]]
    far = SEGMENTS[0]._replace(base_offset=RELATIVE_MAX - 4, next_offset=RELATIVE_MAX + 2)
    assert groups([SEGMENTS[0], far]) == [[0], [RELATIVE_MAX - 4]]
    assert groups([SEGMENTS[0], far._replace(next_offset=RELATIVE_MAX + 1)]) == [[0, RELATIVE_MAX - 4]]
    assert [len(each) for each in group_segments(SEGMENTS, 11, 1000, 1000)] == [2]

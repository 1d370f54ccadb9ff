"""Retention deletes what it should, and nothing else."""

from __future__ import annotations

import pytest

from tests.unit.hot.fixtures import NOW, config
from tiered.hot.retention import RetentionPlan, age_start_ms, plan_retention
from tiered.hot.segments import Segment

HOUR = 3_600_000


def segment(number: int, *, newest: int | None = None, size: int = 100) -> Segment:
    """Offsets `[10 n, 10 n + 10)`, written `9 - n` hours ago."""
    written = NOW - (9 - number) * HOUR
    return Segment(number * 10, number * 10 + 10, size, written, written if newest is None else newest)


CLOSED = [segment(number) for number in range(5)]
ACTIVE = segment(5)
KEEP_ALL = {"retention_ms": -1, "retention_bytes": -1, "local_retention_ms": -2, "local_retention_bytes": -2}


def planned(
    *,
    log_start: int = 0,
    deletable: int = 60,
    cold_end: int | None = None,
    known: bool = True,
    closed: list[Segment] = CLOSED,
    active: Segment = ACTIVE,
    now: int = NOW,
    **settings: int,
) -> RetentionPlan:
    return plan_retention(
        closed,
        active,
        config(**{**KEEP_ALL, **settings}),
        now,
        log_start=log_start,
        deletable_below=deletable,
        cold_end=cold_end,
        cold_bytes_known=known,
    )


def test_without_limits_nothing_leaves() -> None:
    assert planned() == RetentionPlan(0, 0, False)
    assert planned(cold_end=50) == RetentionPlan(0, 0, False)


def test_age_takes_the_oldest_first() -> None:
    assert planned(retention_ms=7 * HOUR) == RetentionPlan(20, 20, False)


def test_age_deletes_nothing_after_records_that_only_the_bucket_has() -> None:
    """A record that was sent again later may be older than the records before it."""
    old = segment(2, newest=NOW - 9 * HOUR)
    behind = [old, segment(3)]
    assert planned(retention_ms=7 * HOUR, log_start=10, closed=behind, cold_end=40) == RetentionPlan(10, 30, False)
    assert planned(retention_ms=7 * HOUR, log_start=20, closed=behind, cold_end=40) == RetentionPlan(30, 30, False)
    assert planned(retention_ms=7 * HOUR, log_start=25, closed=behind, cold_end=40) == RetentionPlan(30, 30, False)
    assert planned(retention_bytes=100, log_start=10, closed=behind, cold_end=40).log_start == 40, (
        "of size there is more"
    )


@pytest.mark.parametrize(("limit", "start"), [(600, 0), (501, 0), (500, 10), (350, 20), (0, 50)])
def test_size_takes_whole_segments_only_as_long_as_the_limit_is_exceeded(limit: int, start: int) -> None:
    assert planned(retention_bytes=limit).log_start == start


def test_what_is_not_decided_or_replicated_yet_stays() -> None:
    assert planned(retention_ms=1, deletable=25) == RetentionPlan(20, 20, False)


def test_an_active_segment_that_is_too_old_is_closed_and_stays_until_then() -> None:
    assert planned(retention_ms=1) == RetentionPlan(50, 50, True)
    assert planned(retention_ms=1, active=segment(5, size=0)) == RetentionPlan(50, 50, False)
    assert planned(retention_ms=1, active=segment(5, newest=NOW)) == RetentionPlan(50, 50, False)


def test_local_copies_leave_only_below_the_cold_end() -> None:
    assert planned(cold_end=30, local_retention_ms=1) == RetentionPlan(0, 30, False)
    assert planned(cold_end=25, local_retention_ms=1) == RetentionPlan(0, 20, False)
    assert planned(cold_end=0, local_retention_ms=1) == RetentionPlan(0, 0, False)


def test_local_size_is_what_closed_segments_hold_at_most() -> None:
    assert planned(cold_end=50, local_retention_bytes=300) == RetentionPlan(0, 20, False)
    assert planned(cold_end=50, local_retention_bytes=100) == RetentionPlan(0, 40, False)
    assert planned(cold_end=50, local_retention_bytes=1) == RetentionPlan(0, 50, False)
    assert planned(cold_end=50, local_retention_bytes=1, active=segment(5, size=0)) == RetentionPlan(0, 50, False)


def test_local_retention_follows_total_retention_where_it_says_so() -> None:
    assert planned(cold_end=50, retention_ms=7 * HOUR, log_start=20) == RetentionPlan(20, 20, False)
    assert planned(cold_end=50, retention_ms=-1, local_retention_ms=-2) == RetentionPlan(0, 0, False)


def test_total_retention_takes_what_is_not_cold_only_by_age_until_the_cold_size_is_known() -> None:
    assert planned(cold_end=10, known=False, retention_bytes=300).log_start == 0
    assert planned(cold_end=10, known=True, retention_bytes=300).log_start == 30
    assert planned(cold_end=10, known=False, retention_ms=7 * HOUR).log_start == 20


def test_a_log_start_that_moved_takes_its_segments_along() -> None:
    assert planned(log_start=35) == RetentionPlan(35, 35, False)


@pytest.mark.parametrize("stamp", [NOW + 5, NOW + HOUR, -1], ids=["a little ahead", "of the future", "none"])
def test_where_timestamps_say_no_age_it_counts_from_when_the_segment_ended(stamp: int) -> None:
    """Segment 2 began seven hours ago and took its last record when segment 3 began, six hours ago."""
    closed = [segment(2, newest=stamp), segment(3)]
    for hours, start in ((8, 20), (6.5, 20), (5.5, 40)):
        assert planned(retention_ms=int(hours * HOUR), log_start=20, closed=closed).log_start == start
        assert (
            planned(local_retention_ms=int(hours * HOUR), cold_end=40, log_start=20, closed=closed).drop_below == start
        )


def test_a_record_of_this_moment_stays_though_its_clock_is_ahead_and_its_segment_is_old() -> None:
    last, fresh = segment(4, newest=NOW + 5), Segment(50, 50, 0, NOW)
    assert planned(retention_ms=HOUR, log_start=40, closed=[last], active=fresh).log_start == 40


def test_active_segment_without_timestamps_is_rolled_by_its_creation_time() -> None:
    """From then on its age counts from its end."""
    assert planned(retention_ms=HOUR, active=segment(5, newest=NOW + 5)) == RetentionPlan(50, 50, True)


def test_a_timestamp_of_the_past_counts_as_it_is() -> None:
    assert age_start_ms(5, NOW, NOW) == 5
    assert age_start_ms(NOW, 5, NOW) == NOW
    assert age_start_ms(NOW + 1, 5, NOW) == 5

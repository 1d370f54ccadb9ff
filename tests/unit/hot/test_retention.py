"""Tests of retention: it deletes what its settings and the state of the partition allow, and nothing else."""

from __future__ import annotations

import pytest

from tests.unit.hot.fixtures import NOW, config
from tiered.hot.retention import RetentionPlan, age_start_ms, plan_retention
from tiered.hot.segments import Segment

HOUR = 3_600_000


def segment(number: int, *, newest: int | None = None, size: int = 100) -> Segment:
    """Returns a segment of the offsets `[10 n, 10 n + 10)`, written `9 - n` hours ago."""
    written = NOW - (9 - number) * HOUR
    return Segment(number * 10, number * 10 + 10, size, written, written if newest is None else newest)


CLOSED = [segment(number) for number in range(5)]
ACTIVE = segment(5)
KEEP_ALL = {"retention_ms": -1, "retention_bytes": -1, "local_retention_ms": -2, "local_retention_bytes": -2}


def plan(
    *,
    log_start: int = 0,
    deletable: int = 60,
    cold_end: int | None = None,
    known: bool = True,
    closed: list[Segment] = CLOSED,
    active: Segment = ACTIVE,
    now: int = NOW,
    clean_to: int = 0,
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
        clean_to=clean_to,
    )


def test_nothing_is_deleted_without_limits() -> None:
    assert plan() == RetentionPlan(0, 0, False)
    assert plan(cold_end=50) == RetentionPlan(0, 0, False)


def test_oldest_segments_expire_first() -> None:
    assert plan(retention_ms=7 * HOUR) == RetentionPlan(20, 20, False)


def test_age_deletes_nothing_behind_younger_records_of_the_bucket() -> None:
    """A record that was sent again later may carry an older timestamp than the records before it."""
    old = segment(2, newest=NOW - 9 * HOUR)
    behind = [old, segment(3)]
    assert plan(retention_ms=7 * HOUR, log_start=10, closed=behind, cold_end=40) == RetentionPlan(10, 30, False)
    assert plan(retention_ms=7 * HOUR, log_start=20, closed=behind, cold_end=40) == RetentionPlan(30, 30, False)
    assert plan(retention_ms=7 * HOUR, log_start=25, closed=behind, cold_end=40) == RetentionPlan(30, 30, False)
    assert plan(retention_bytes=100, log_start=10, closed=behind, cold_end=40).log_start == 40, "of size there is more"


@pytest.mark.parametrize(("limit", "start"), [(600, 0), (501, 0), (500, 10), (350, 20), (0, 50)])
def test_size_limit_deletes_whole_segments_until_it_is_met(limit: int, start: int) -> None:
    assert plan(retention_bytes=limit).log_start == start


def test_records_that_are_not_stable_or_replicated_stay() -> None:
    assert plan(retention_ms=1, deletable=25) == RetentionPlan(20, 20, False)


def test_expired_active_segment_is_rolled_before_it_is_deleted() -> None:
    assert plan(retention_ms=1) == RetentionPlan(50, 50, True)
    assert plan(retention_ms=1, active=segment(5, size=0)) == RetentionPlan(50, 50, False)
    assert plan(retention_ms=1, active=segment(5, newest=NOW)) == RetentionPlan(50, 50, False)


def test_local_copies_are_deleted_only_below_the_cold_end() -> None:
    assert plan(cold_end=30, local_retention_ms=1) == RetentionPlan(0, 30, False)
    assert plan(cold_end=25, local_retention_ms=1) == RetentionPlan(0, 20, False)
    assert plan(cold_end=0, local_retention_ms=1) == RetentionPlan(0, 0, False)


def test_local_copies_of_what_the_bucket_has_cleaned_are_deleted() -> None:
    assert plan(cold_end=50, clean_to=30) == RetentionPlan(0, 30, False)
    assert plan(cold_end=50, clean_to=35) == RetentionPlan(0, 30, False), "a part of the segment is not clean"
    assert plan(cold_end=50, clean_to=50, deletable=20) == RetentionPlan(0, 20, False)
    assert plan(cold_end=50, clean_to=30, local_retention_bytes=100) == RetentionPlan(0, 40, False)


def test_local_size_limits_the_closed_segments() -> None:
    assert plan(cold_end=50, local_retention_bytes=300) == RetentionPlan(0, 20, False)
    assert plan(cold_end=50, local_retention_bytes=100) == RetentionPlan(0, 40, False)
    assert plan(cold_end=50, local_retention_bytes=1) == RetentionPlan(0, 50, False)
    assert plan(cold_end=50, local_retention_bytes=1, active=segment(5, size=0)) == RetentionPlan(0, 50, False)


def test_local_retention_of_minus_two_follows_total_retention() -> None:
    assert plan(cold_end=50, retention_ms=7 * HOUR, log_start=20) == RetentionPlan(20, 20, False)
    assert plan(cold_end=50, retention_ms=-1, local_retention_ms=-2) == RetentionPlan(0, 0, False)


def test_size_limit_waits_until_the_cold_size_is_known() -> None:
    assert plan(cold_end=10, known=False, retention_bytes=300).log_start == 0
    assert plan(cold_end=10, known=True, retention_bytes=300).log_start == 30
    assert plan(cold_end=10, known=False, retention_ms=7 * HOUR).log_start == 20


def test_segments_below_the_log_start_are_deleted() -> None:
    assert plan(log_start=35) == RetentionPlan(35, 35, False)


@pytest.mark.parametrize("stamp", [NOW + 5, NOW + HOUR, -1], ids=["a little ahead", "of the future", "none"])
def test_age_without_timestamps_counts_from_the_end_of_the_segment(stamp: int) -> None:
    """Segment 2 began seven hours ago and took its last record when segment 3 began, six hours ago."""
    closed = [segment(2, newest=stamp), segment(3)]
    for hours, start in ((8, 20), (6.5, 20), (5.5, 40)):
        assert plan(retention_ms=int(hours * HOUR), log_start=20, closed=closed).log_start == start
        assert plan(local_retention_ms=int(hours * HOUR), cold_end=40, log_start=20, closed=closed).drop_below == start


def test_new_record_with_a_clock_ahead_stays_in_an_old_segment() -> None:
    last, fresh = segment(4, newest=NOW + 5), Segment(50, 50, 0, NOW)
    assert plan(retention_ms=HOUR, log_start=40, closed=[last], active=fresh).log_start == 40


def test_active_segment_without_timestamps_is_rolled_by_its_creation_time() -> None:
    """After the roll its age counts from its end."""
    assert plan(retention_ms=HOUR, active=segment(5, newest=NOW + 5)) == RetentionPlan(50, 50, True)


def test_old_timestamp_of_a_new_record_counts() -> None:
    assert age_start_ms(5, NOW, NOW) == 5
    assert age_start_ms(NOW, 5, NOW) == NOW
    assert age_start_ms(NOW + 1, 5, NOW) == 5


def test_policy_without_delete_keeps_what_total_retention_would_delete() -> None:
    for policy in (("compact",), ()):
        kept = plan_retention(
            CLOSED, ACTIVE, config(retention_ms=HOUR, retention_bytes=100, cleanup_policy=policy), NOW,
            log_start=0, deletable_below=60, cold_end=None, cold_bytes_known=True,
        )  # fmt: skip
        assert kept == RetentionPlan(0, 0, False)
    assert plan(retention_ms=HOUR).log_start > 0


def test_cleaned_segment_without_a_byte_does_not_count_as_too_much() -> None:
    emptied = [segment(0, size=0), segment(1, size=0), segment(2)]
    assert plan(closed=emptied) == RetentionPlan(0, 0, False)
    assert plan(closed=emptied, retention_bytes=150).log_start == 20

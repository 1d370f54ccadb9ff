"""Tests of the list of segments in both tiers: rows lie side by side, and each says why the disk has it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cold.rig import entry
from tests.unit.hot.fixtures import NOW, config
from tiered.broker.stored_segments import LeaderFacts, StoredSegment, TimeMark, list_stored_segments, mark_times
from tiered.hot.segments import Segment

HOUR = 3_600_000


def segment(base: int, end: int, *, hours: int = 1) -> Segment:
    written = NOW - hours * HOUR
    return Segment(base, end, 100, written, written)


def listed(
    cold: list[Any], closed: list[Segment], active: Segment, cold_end: int, most: int = 100, **changes: Any
) -> list[StoredSegment]:
    settings = {name: changes.pop(name) for name in list(changes) if name not in LeaderFacts._fields}
    facts = LeaderFacts(
        config(**{"retention_ms": -1, "retention_bytes": -1, **settings}),
        start=changes.pop("start", -1),
        cold_end_offset=cold_end,
        last_stable_offset=changes.pop("last_stable_offset", active.next_offset),
        high_watermark=changes.pop("high_watermark", active.next_offset),
        clean_to=changes.pop("clean_to", -1),
        closed_bytes=sum(each.size for each in closed),
        upload_problem=changes.pop("upload_problem", ""),
        upload_max_lag_ms=HOUR * 2,
        now_ms=NOW,
    )
    return list_stored_segments(cold, closed, active, facts, most)


def ranges(rows: list[StoredSegment]) -> list[tuple[int, int]]:
    return [(row.base_offset, row.end_offset) for row in rows]


def test_rows_have_no_gap_where_the_tiers_have_other_segments() -> None:
    rows = listed([entry(0, 15), entry(15, 25)], [segment(10, 20), segment(20, 30)], segment(30, 33), 25)
    assert ranges(rows) == [(0, 15), (15, 25), (25, 30), (30, 33)]
    assert [bool(row.key) for row in rows] == [True, True, False, False]
    assert all(row.why_local for row in rows)


def test_row_of_the_bucket_alone_has_no_reason_to_be_on_the_disk() -> None:
    first, second, _ = listed([entry(0, 10), entry(10, 20)], [segment(10, 20)], segment(20, 25), 20)
    assert (
        (first.why_local, first.why_code, first.created_ms) == ("", "", -1)
        and second.why_local
        and second.created_ms > 0
    )


def test_empty_active_segment_is_no_row() -> None:
    empty = Segment(20, 20, 0, 0)
    assert ranges(listed([entry(0, 10)], [segment(10, 20)], empty, 10)) == [(0, 10), (10, 20)]


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_pages_have_each_row_once(most: int) -> None:
    cold = [entry(n, n + 10) for n in range(0, 70, 10)]
    closed = [segment(n, n + 5) for n in range(30, 100, 5)]
    active = segment(100, 103)
    whole = ranges(listed(cold, closed, active, 70))
    start, found = 0, list[tuple[int, int]]()
    while start < 103:
        page = listed(
            [each for each in cold if each.next_offset > start][:most],
            [each for each in closed if each.next_offset > start][: most + 1],
            active, 70, most, start=start,
        )  # fmt: skip
        assert 0 < len(page) <= most
        found += ranges(page)
        start = page[-1].end_offset
    assert found == whole


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [
        ({"remote_storage_enable": False}, "tier-off", "remote.storage.enable=false"),
        ({"remote_log_copy_disable": True}, "copy-off", "remote.log.copy.disable=true"),
        ({"high_watermark": 15}, "not-committed", "the high watermark is 15"),
        ({"last_stable_offset": 15}, "open-transaction", "a transaction is open from offset 15 on"),
        ({"upload_problem": "the disk is damaged"}, "upload-fails", "its upload fails: the disk is damaged"),
        ({}, "upload-waits", "it waits for its upload: 60 min since it closed"),
    ],
)
def test_closed_segment_above_the_cold_end_names_its_obstacle(facts: dict[str, Any], code: str, words: str) -> None:
    [row, _] = listed([], [segment(10, 20, hours=3)], segment(20, 25), 10, **facts)
    assert words in row.why_local and row.why_code == code


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [
        ({"local_retention_ms": 5 * HOUR}, "retention-keeps", "local.retention.ms=18000000 keeps it for 2 h more"),
        ({"local_retention_ms": HOUR}, "retention-due", "older than local.retention.ms=3600000"),
        ({"retention_ms": 5 * HOUR}, "retention-keeps", "retention.ms=18000000 keeps it for 2 h more"),
        (
            {"local_retention_bytes": 500}, "retention-keeps",
            "local.retention.bytes=500, and closed segments have 100 bytes",
        ),
        ({}, "no-limit", "retention.ms and retention.bytes set no limit"),
        ({"clean_to": 20, "cleanup_policy": ("compact",)}, "cleaned", "the bucket has it cleaned"),
    ],
)  # fmt: skip
def test_segment_of_both_tiers_names_the_setting_that_keeps_it(facts: dict[str, Any], code: str, words: str) -> None:
    [row, _] = listed([entry(10, 20)], [segment(10, 20, hours=3)], segment(20, 25), 20, **facts)
    assert words in row.why_local and row.why_code == code


def test_active_segment_says_when_it_closes() -> None:
    [row] = listed([], [], segment(0, 5), 0, segment_bytes=4096, segment_ms=3 * HOUR)
    assert row.why_local.startswith("it is open, and closes at 4096 bytes (segment.bytes), or after 3 h (segment.ms)")
    assert row.why_local.endswith("after 2 h (the brokers' tiered.upload.max.lag.ms)")
    [row] = listed([], [], segment(0, 5), 0, segment_bytes=4096, internal_segment_bytes=1024)
    assert "at 1024 bytes (internal.segment.bytes)" in row.why_local


def test_marks_of_time_rise_and_begin_at_the_log_start() -> None:
    cold = [entry(0, 10, newest=2_000), entry(10, 20, newest=500), entry(20, 30, newest=NOW + 10**9)]
    marks = mark_times(cold, [segment(30, 40, hours=3)], segment(40, 45), NOW, 64)
    assert marks == [
        TimeMark(0, 0),
        TimeMark(10, 2_000),
        TimeMark(20, 2_000),
        *(TimeMark(n, NOW) for n in (30, 40, 45)),
    ]
    [first, last] = mark_times([], [segment(0, 10, hours=3)], Segment(10, 10, 0, 0), NOW, 64)
    assert (first, last) == (TimeMark(0, NOW - 3 * HOUR), TimeMark(10, NOW - 3 * HOUR))


@pytest.mark.parametrize("most", [1, 2, 7, 64])
def test_marks_of_time_are_bounded_and_keep_the_end(most: int) -> None:
    closed = [segment(n, n + 10, hours=500 - n // 10) for n in range(0, 2_000, 10)]
    marks = mark_times([], closed, segment(2_000, 2_005), NOW, most)
    assert len(marks) == most and marks[-1].offset == 2_005 and marks == sorted(marks)

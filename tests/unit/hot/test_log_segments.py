"""Tests of the segments of a log as their readers see them."""

from __future__ import annotations

import pytest

from tests.scenario import run_alone, run_by
from tests.unit.hot.fixtures import NOW, FixedClock, batch, disk, open_log
from tiered.errors import Corrupt
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_segments import LogSegments
from tiered.hot.time_lookup import TimeLookups


async def three_segments(clock: FixedClock | None = None) -> DiskLog:
    """Returns a log with the segments `[0, 5)`, `[5, 10)` and `[10, 15)`, the last of them active. They begin at NOW,
    NOW + 1000 and NOW + 2000."""
    clock = clock or FixedClock()
    log = await open_log(disk(), clock=clock)
    for base in (0, 5, 10):
        if base:
            log.roll()
        for number in range(base, base + 5):
            log.append(batch(number), leader_epoch=0, now_ms=NOW + 200 * base)
    return log


def ranges(segments: LogSegments, above: int = 0, limit: int | None = None) -> list[tuple[int, int]]:
    return [(view.base_offset, view.next_offset) for view in segments.closed(above, limit)]


@run_by(run_alone)
async def test_closed_segments_end_above_an_offset_and_within_a_limit() -> None:
    segments = (await three_segments()).segments
    assert ranges(segments) == [(0, 5), (5, 10)] and segments.count == 3
    assert [ranges(segments, above) for above in (4, 5, 9, 10, 99)] == [
        [(0, 5), (5, 10)], [(5, 10)], [(5, 10)], [], [],
    ]  # fmt: skip
    assert (ranges(segments, 0, 1), ranges(segments, 0, 0), ranges(segments, 5, 9)) == ([(0, 5)], [], [(5, 10)])


@run_by(run_alone)
async def test_active_segment_follows_the_closed_ones() -> None:
    log = await three_segments()
    active = log.segments.active
    assert (active.base_offset, active.next_offset, active.max_timestamp) == (10, 15, NOW + 14)
    assert log.segments.size_bytes == sum(view.size for view in (*log.segments.closed(), active))
    log.roll()
    assert (log.segments.active.base_offset, log.segments.active.size) == (15, 0)
    assert ranges(log.segments) == [(0, 5), (5, 10), (10, 15)]


@run_by(run_alone)
async def test_age_of_an_offset_is_that_of_its_segment() -> None:
    segments = (await three_segments()).segments
    begun = [segments.created_ms(offset) - NOW for offset in (0, 4, 5, 9, 10, 14, 99)]
    assert begun == [0, 0, 1000, 1000, 2000, 2000, 2000]


@run_by(run_alone)
async def test_data_of_a_segment_begins_at_the_batch_of_an_offset() -> None:
    segments = (await three_segments()).segments
    whole, part = segments.data(5), segments.data(5, from_offset=8)
    assert (whole.base_offset, whole.next_offset, whole.log.start) == (5, 10, 0)
    assert (part.base_offset, part.next_offset) == (8, 10)
    assert part.log.start + part.log.length == whole.log.length and part.log.length < whole.log.length
    assert part.producer_snapshot == whole.producer_snapshot


@run_by(run_alone)
async def test_offset_between_two_segments_has_no_data() -> None:
    log = await three_segments()
    log._writer.segments[0].next_offset = 4  # as a load notes it after damage
    assert log.segments.gaps == [(4, 5)]
    with pytest.raises(Corrupt, match="offset 4 is missing between two segments"):
        log.segments.data(4)


@run_by(run_alone)
async def test_batch_by_time_is_looked_up_over_all_segments() -> None:
    segments, headers = (await three_segments()).segments, TimeLookups().headers
    found = [segments.find_batch_by_time(NOW + late, 0, headers) for late in (0, 5, 12)]
    assert [each.base_offset for each in found if each is not None] == [0, 5, 12]
    assert segments.find_batch_by_time(NOW + 15, 0, headers) is None
    for end, newest in ((10, NOW + 9), (15, NOW + 14)):
        bound, unsure = segments.bound_timestamps(0, end, NOW + 99, headers)
        assert max([bound, *(each.max_timestamp for each in unsure)]) == newest

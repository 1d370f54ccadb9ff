"""Tests of logs of earlier versions, which have batches with false timestamps in their headers, or beyond 64 bits: they
are cleaned, read and searched."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.scenario import run_by
from tests.unit.hot.cleaning import clean, facts, put, read_all
from tests.unit.hot.fixtures import NOW, FixedClock, append, config, disk, open_log
from tests.unit.hot.test_validation_of_timestamps import made, overflowing
from tiered.hot.disk_log import DiskLog
from tiered.hot.time_lookup import TimeLookups, find_max_timestamp, search_log
from tiered.records import native, pure
from tiered.records.batch import decode_records, first_at_or_after, open_section, stamp
from tiered.records.model import Codec

HOUR = 3_600_000
SMALL = {"segment_bytes": 300, "cleanup_policy": ("compact",), "min_cleanable_dirty_ratio": 0.0}


def run_log(scenario: Callable[[DiskLog, FixedClock], Awaitable[None]], **settings: object) -> None:
    async def main() -> None:
        clock = FixedClock()
        await scenario(await open_log(disk(), config(**settings), clock=clock), clock)

    asyncio.run(main())


def put_old(log: DiskLog, data: bytearray, now_ms: int = NOW) -> None:
    """Appends a batch as it is, as a follower of an earlier version did."""
    stamp(data, 0, log.end_offset, 0)
    log.append_as_follower(data, now_ms=now_ms)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_timestamps_beyond_64_bits_wrap_around_for_readers(codec: Codec) -> None:
    data = overflowing(codec)
    assert [record.timestamp for record in decode_records(data)] == [2**63 - 1, -(2**63)]
    assert first_at_or_after(data, 0, NOW) == (0, 2**63 - 1)
    section = open_section(data)
    columns = [module.arrow([section], ["timestamp"]) for module in (native, pure)]
    assert columns[0] == columns[1]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@run_by(run_log, **SMALL)
async def test_log_with_a_timestamp_beyond_64_bits_is_cleaned(log: DiskLog, clock: FixedClock, *, codec: Codec) -> None:
    put(log, "k", "old")
    put_old(log, overflowing(codec))
    for number in range(6):
        put(log, "k", f"new{number}")
    await log.flush()
    await clean(log)
    kept = facts(read_all(log))
    assert kept[-1] == (8, "k", "new5") and (0, "k", "old") not in kept and (1, "k", "v") not in kept


@run_by(run_log, **SMALL, min_compaction_lag_ms=HOUR)
async def test_unset_timestamps_keep_the_lag_of_compaction(log: DiskLog, clock: FixedClock) -> None:
    for _ in range(8):
        put_old(log, made([NOW], newest=-1), NOW)
    await log.flush()
    await clean(log)
    assert len(facts(read_all(log))) == 8
    assert (
        log.compaction.find_cleanable(log.start_offset, 8, NOW + HOUR + 1).first_uncleanable
        == log.segments.closed()[-1].next_offset
    )


def run_lookups(log: DiskLog, times: list[list[int]], moments: list[int]) -> Awaitable[None]:
    """Compares look-ups by time, and by the greatest timestamp, with the list of all records."""
    rows = [time for batch in times for time in batch]

    async def compare() -> None:
        for moment in moments:
            found = await search_log(log, moment, 0, TimeLookups())
            first = next(((offset, time) for offset, time in enumerate(rows) if time >= moment), None)
            assert (found.found and found.found[:2]) == first, moment
        assert await find_max_timestamp(log, len(rows), 1 << 62, TimeLookups()) == max(rows)

    return compare()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@run_by(run_log, segment_bytes=500)
async def test_records_with_unset_headers_in_order_are_found_by_time(
    log: DiskLog, clock: FixedClock, *, codec: Codec
) -> None:
    times = [[NOW + 10 * number, NOW + 10 * number + 7, NOW + 10 * number + 3] for number in range(20)]
    for each in times:
        put_old(log, made(each, codec, newest=-1))
    assert len(log.segments.closed()) > 2
    await run_lookups(log, times, [*range(NOW - 2, NOW + 200), 0])


def test_any_headers_of_producers_are_answered_like_a_list() -> None:
    """Batches with false headers that came in through the broker, of every codec, in any order of time."""
    rng = random.Random(7)
    for _ in range(40):
        times: list[list[int]] = []

        async def scenario(log: DiskLog, clock: FixedClock, times: list[list[int]] = times) -> None:
            for _ in range(rng.randrange(1, 30)):
                each = [NOW + rng.randrange(-99, 99) for _ in range(rng.randrange(1, 6))]
                codec = rng.choice(list(Codec))
                claims = [-1, max(each), each[0] - 1, NOW + 2 * HOUR]
                newest = rng.choice(claims if codec else [*claims, NOW - 200, NOW + 150])
                append(log, made(each, codec, newest=newest))
                times.append(each)
            await run_lookups(log, times, [NOW + rng.randrange(-110, 110) for _ in range(20)])

        run_log(scenario, segment_bytes=rng.choice([300, 600, 1 << 20]))


def test_old_unset_headers_before_new_ones_are_answered_like_a_list() -> None:
    """A log whose broker was replaced by one of this version, in the middle of a segment."""
    rng = random.Random(8)
    for _ in range(40):
        times: list[list[int]] = []

        async def scenario(log: DiskLog, clock: FixedClock, times: list[list[int]] = times) -> None:
            upgrade, now = rng.randrange(1, 12), NOW
            for number in range(rng.randrange(1, 25)):
                each = [now + rng.randrange(9) for _ in range(rng.randrange(1, 6))]
                data = made(sorted(each)[:1] + each[1:], rng.choice(list(Codec)), newest=-1)
                each = sorted(each)[:1] + each[1:]
                put_old(log, data) if number < upgrade else append(log, data)
                times.append(each)
                now += 10
            await run_lookups(log, times, [NOW + rng.randrange(-5, 250) for _ in range(20)])

        run_log(scenario, segment_bytes=rng.choice([300, 600, 1 << 20]))

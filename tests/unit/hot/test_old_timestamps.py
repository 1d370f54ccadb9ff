"""Tests of logs of earlier versions, which have batches with false timestamps in their headers, or beyond 64 bits: they
are cleaned, read and searched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.hot.cleaning import clean, facts, put, read_all
from tests.unit.hot.fixtures import NOW, FixedClock, config, disk, open_log
from tests.unit.hot.test_batch_timestamps import made, overflowing
from tiered.hot.disk_log import DiskLog
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
def test_log_with_a_timestamp_beyond_64_bits_is_cleaned(codec: Codec) -> None:
    async def scenario(log: DiskLog, clock: FixedClock) -> None:
        put(log, "k", "old")
        put_old(log, overflowing(codec))
        for number in range(6):
            put(log, "k", f"new{number}")
        await log.flush()
        await clean(log)
        kept = facts(read_all(log))
        assert kept[-1] == (8, "k", "new5") and (0, "k", "old") not in kept and (1, "k", "v") not in kept

    run_log(scenario, **SMALL)


def test_unset_timestamps_keep_the_lag_of_compaction() -> None:
    async def scenario(log: DiskLog, clock: FixedClock) -> None:
        for _ in range(8):
            put_old(log, made([NOW], newest=-1), NOW)
        await log.flush()
        await clean(log)
        assert len(facts(read_all(log))) == 8
        assert log.find_cleanable(8, NOW + HOUR + 1).first_uncleanable == log.closed_segments()[-1].next_offset

    run_log(scenario, **SMALL, min_compaction_lag_ms=HOUR)

"""Tests of a log that is read repeatedly at the same offset."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.scenario import run_alone, run_by
from tests.seeds import first_seeds
from tests.unit.hot.fixtures import NOW, append, batch, config, disk, offsets, open_log, read_all
from tiered.hot import index
from tiered.hot.index import INTERVAL_MAX, OFFSET_ENTRY
from tiered.hot.segment_files import SegmentFiles


@run_by(run_alone)
async def test_repeated_read_after_a_cut_returns_the_new_records() -> None:
    log = await open_log(disk())
    for number in range(10):
        append(log, batch(number, at=NOW))
    assert offsets(read_all(log, 5)) == [5, 6, 7, 8, 9]
    found = log.read(5, 1 << 20, end_offset=10)
    assert found is not None and found == log.read(5, found.length, end_offset=10)
    smaller = log.read(5, found.length - 1, end_offset=10)
    assert smaller is not None and smaller.length < found.length
    log.truncate_to(5)
    append(log, batch(5, 5, at=NOW))
    other = log.read(5, 1 << 20, end_offset=10)
    assert other is not None and other != found
    assert offsets(other.file.pread(other.start, other.length)) == [5, 6, 7, 8, 9]


def test_read_walks_few_headers_with_any_index_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    walked = 0
    walk = SegmentFiles.walk_positions

    def count(*arguments: Any) -> Iterator[Any]:
        nonlocal walked
        for each in walk(*arguments):
            walked += 1
            yield each

    monkeypatch.setattr(SegmentFiles, "walk_positions", count)

    async def scenario() -> None:
        nonlocal walked
        log = await open_log(disk(), config(segment_bytes=1 << 30, index_interval_bytes=2**31 - 1))
        size = len(batch(0, at=NOW))
        for number in range(3_000):
            append(log, batch(number, at=NOW))
        for offset, max_bytes in ((2_995, 100), (10, 2_900 * size)):
            walked = 0
            found = log.read(offset, max_bytes, end_offset=3_000)
            assert found is not None and 0 < walked <= 2 * (INTERVAL_MAX // size + 3)

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", first_seeds(2, of=6))
def test_look_ups_stay_short_whatever_happened_to_the_log(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes that starts, kills, power cuts, truncations and rolls leave behind have no wider gaps than a new one."""
    interval, small, rng = 1_000, len(batch(0, at=NOW)), random.Random(seed)
    monkeypatch.setattr(index, "INTERVAL_MAX", interval)
    most = interval // small + 2
    walked = 0
    walk = SegmentFiles.walk_positions

    def count(*arguments: Any) -> Iterator[Any]:
        nonlocal walked
        for each in walk(*arguments):
            walked += 1
            yield each

    async def scenario() -> None:
        nonlocal walked
        used, settings = disk(seed), config(segment_bytes=20_000, index_interval_bytes=2**31 - 1)
        log = await open_log(used, settings)
        for _ in range(80):
            match rng.choice(("append", "append", "append", "roll", "truncate", "stop", "kill", "power cut")):
                case "append":
                    for _ in range(rng.randrange(60)):
                        append(log, batch(log.end_offset, at=NOW, size=rng.choice((60, 60, 60, 3_000))))
                    await log.flush(*rng.choice(((), (log.end_offset,))))
                case "roll":
                    log.roll()
                case "truncate":
                    log.truncate_to(rng.randint(max(0, log.end_offset - 100), log.end_offset))
                case "stop":
                    await log.close_clean()
                    log = await open_log(used, settings, clean=True)
                case "kill":
                    used = used.after_kill()
                    log = await open_log(used, settings)
                case "power cut":
                    used = used.after_power_cut()
                    log = await open_log(used, settings, same_boot=False, recovery_point=log.flushed_offset)
            # First, because a power cut may take an index, and the first use makes it anew from the log.
            for segment in log.segments.closed():
                data = log.segments.data(segment.base_offset, from_offset=rng.randrange(segment.next_offset))
                assert_dense(data.offset_index, data.log.file.pread(data.log.start, data.log.length), most)
            with monkeypatch.context() as counting:
                counting.setattr(SegmentFiles, "walk_positions", count)
                for _ in range(5 if log.end_offset else 0):
                    walked = 0
                    log.read(rng.randrange(log.end_offset), rng.choice((0, 100, 9_000)), end_offset=log.end_offset)
                    assert walked <= 3 * most

    asyncio.run(scenario())


def assert_dense(offset_index: bytes, data: bytes, most: int) -> None:
    """Asserts that at most `most` batches lie between two entries."""
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    found = [0, *(position for _, position in OFFSET_ENTRY.iter_unpack(offset_index)), len(data)]
    assert max(sum(low <= each < high for each in starts) for low, high in pairwise(found)) <= most

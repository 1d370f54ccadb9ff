"""Tests of a log that is read repeatedly at the same offset."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.hot.fixtures import NOW, append, batch, config, disk, offsets, open_log, read_all
from tiered.hot.index import INTERVAL_MAX
from tiered.hot.segment_files import SegmentFiles


def test_repeated_read_after_a_cut_returns_the_new_records() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


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

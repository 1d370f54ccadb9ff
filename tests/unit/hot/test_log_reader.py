"""Tests of a log that is read repeatedly at the same offset."""

from __future__ import annotations

import asyncio

from tests.unit.hot.fixtures import NOW, append, batch, disk, offsets, open_log, read_all


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

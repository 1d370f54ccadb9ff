"""Tests of look-ups by time: they open few batches even if headers lie, and return no record before one that is late
enough."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import NOW, append, batch, config, disk, open_log
from tiered.hot import segment_index, time_lookup
from tiered.hot.disk_log import DiskLog
from tiered.hot.time_lookup import WASTED_BATCHES_MAX, TimeLookups, offset_for_timestamp
from tiered.records.batch import encode_batch, first_at_or_after
from tiered.records.model import CRC_AT, CRC_FROM, HEADER_BYTES, Codec
from tiered.records.native import crc32c

LATE = NOW + 1_000_000


def run_scenario(scenario: Callable[[DiskLog], Awaitable[None]]) -> None:
    async def main() -> None:
        on: SimDisk = disk()
        await scenario(await open_log(on, config(segment_bytes=1 << 20)))

    asyncio.run(main())


def false_claim(data: bytes, max_timestamp: int = LATE) -> bytearray:
    """Returns the batch with a header that claims a later record than the batch has."""
    made = bytearray(data)
    struct.pack_into(">q", made, 35, max_timestamp)
    struct.pack_into(">I", made, CRC_AT, crc32c(made[CRC_FROM:]))
    return made


def compressed_batch(offset: int, *, at: int | None = None, size: int = 10) -> bytes:
    return encode_batch(
        [(NOW + offset if at is None else at, b"k", bytes(size), ())], base_offset=offset, codec=Codec.ZSTD
    )


def count_opened(
    log: DiskLog, timestamp: int, lookups: TimeLookups
) -> Awaitable[tuple[tuple[int, int, int] | None, int]]:
    """Returns the result of the look-up, and how many batches it opened."""

    async def look_up() -> tuple[tuple[int, int, int] | None, int]:
        with patch.object(time_lookup, "first_at_or_after", wraps=first_at_or_after) as spy:
            return await offset_for_timestamp(log, timestamp, lookups), spy.call_count

    return look_up()


def test_true_header_gives_the_exact_record_and_opens_one_batch() -> None:
    async def scenario(log: DiskLog) -> None:
        for offset in range(20):
            append(log, bytearray(compressed_batch(offset)))
        lookups = TimeLookups()
        for offset in range(20):
            assert await count_opened(log, NOW + offset, lookups) == ((offset, NOW + offset, 0), 1)
        assert await count_opened(log, NOW + 20, lookups) == (None, 0)

    run_scenario(scenario)


def test_lookup_stops_opening_batches_after_a_few_false_headers() -> None:
    """The next batch is the result. No record before it is late enough. A request pays for its false headers once."""

    async def scenario(log: DiskLog) -> None:
        for offset in range(50):
            append(log, false_claim(compressed_batch(offset)))
        lookups = TimeLookups()
        assert await count_opened(log, LATE - 5, lookups) == ((WASTED_BATCHES_MAX, LATE, 0), WASTED_BATCHES_MAX)
        assert await count_opened(log, LATE - 5, lookups) == ((0, LATE, 0), 0)
        log.advance_start(30)
        assert await count_opened(log, LATE - 5, lookups) == ((30, LATE, 0), 0)

    run_scenario(scenario)


def test_record_behind_one_false_header_is_found_exactly() -> None:
    async def scenario(log: DiskLog) -> None:
        append(log, false_claim(compressed_batch(0)))
        for offset in range(1, 30):
            append(log, bytearray(compressed_batch(offset)))
        append(log, bytearray(compressed_batch(30, at=LATE)))
        assert await count_opened(log, LATE - 5, TimeLookups()) == ((30, LATE, 0), 2)

    run_scenario(scenario)


def test_lookup_walks_a_bounded_number_of_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_index, "HEADERS_MAX", 40)

    async def scenario(log: DiskLog) -> None:
        append(log, false_claim(compressed_batch(0)))
        for offset in range(1, 100):
            append(log, batch(offset, at=NOW))
        found, count = await count_opened(log, LATE - 5, TimeLookups())
        assert found is not None and found[0] == 39 and count == 1

    run_scenario(scenario)


def test_batch_that_cannot_be_opened_is_the_result() -> None:
    async def scenario(log: DiskLog) -> None:
        junk = bytearray(compressed_batch(0, size=100))
        junk[HEADER_BYTES:] = bytes(len(junk) - HEADER_BYTES)
        append(log, false_claim(bytes(junk)))
        assert await count_opened(log, LATE, TimeLookups()) == ((0, LATE, 0), 1)

    run_scenario(scenario)


def test_records_of_a_batch_below_the_log_start_are_not_found() -> None:
    async def scenario(log: DiskLog) -> None:
        append(log, bytearray(encode_batch([(NOW + n, None, b"v", ()) for n in range(10)], codec=Codec.LZ4)))
        log.advance_start(4)
        assert await count_opened(log, NOW + 2, TimeLookups()) == ((4, NOW + 4, 0), 1)

    run_scenario(scenario)


def test_large_batch_is_opened_in_a_thread() -> None:
    seen: list[str] = []

    def note(data: bytes, *args: int) -> tuple[int, int] | None:
        seen.append(threading.current_thread().name)
        return None

    async def scenario(log: DiskLog) -> None:
        append(log, bytearray(compressed_batch(0, size=3_000)))
        noise = bytes(n * n * n % 251 for n in range(60_000))
        append(log, bytearray(encode_batch([(NOW + 1, None, noise, ())], base_offset=1, codec=Codec.SNAPPY)))
        with patch.object(time_lookup, "first_at_or_after", note):
            await offset_for_timestamp(log, NOW, TimeLookups())
        assert seen == ["MainThread", "tiered-time-lookup"]

    run_scenario(scenario)

"""Tests of look-ups by time: they open few batches even if headers lie, and return no record before one that is late
enough."""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from unittest.mock import patch

import pytest

from tests.scenario import run_by
from tests.sim.harness.disk import SimDisk, SimFile
from tests.unit.hot.fixtures import NOW, append, batch, config, disk, offset_for_timestamp, open_log
from tiered.errors import Code, Refused
from tiered.fair_slots import FairSlots
from tiered.hot import segment_files, segment_index, time_lookup
from tiered.hot.disk_log import DiskLog
from tiered.hot.time_lookup import WASTED_BATCHES_MAX, TimeLookups, search_log
from tiered.records.batch import encode_batch, first_at_or_after
from tiered.records.model import CRC_AT, CRC_FROM, HEADER_BYTES, BatchHeader, Codec
from tiered.records.native import crc32c
from tiered.records.pieces import Piece, open_pieces

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


@run_by(run_scenario)
async def test_true_header_gives_the_exact_record_and_opens_one_batch(log: DiskLog) -> None:
    for offset in range(20):
        append(log, bytearray(compressed_batch(offset)))
    lookups = TimeLookups()
    for offset in range(20):
        assert await count_opened(log, NOW + offset, lookups) == ((offset, NOW + offset, 0), 1)
    assert await count_opened(log, NOW + 20, lookups) == (None, 0)


@run_by(run_scenario)
async def test_lookup_stops_opening_batches_after_a_few_false_headers(log: DiskLog) -> None:
    """The next batch is the result. No record before it is late enough. A request pays for its false headers once."""
    for offset in range(50):
        append(log, false_claim(compressed_batch(offset)))
    lookups = TimeLookups()
    assert await count_opened(log, LATE - 5, lookups) == ((WASTED_BATCHES_MAX, LATE, 0), WASTED_BATCHES_MAX)
    assert await count_opened(log, LATE - 5, lookups) == ((0, LATE, 0), 0)
    log.advance_start(30)
    assert await count_opened(log, LATE - 5, lookups) == ((30, LATE, 0), 0)


@run_by(run_scenario)
async def test_record_behind_one_false_header_is_found_exactly(log: DiskLog) -> None:
    append(log, false_claim(compressed_batch(0)))
    for offset in range(1, 30):
        append(log, bytearray(compressed_batch(offset)))
    append(log, bytearray(compressed_batch(30, at=LATE)))
    assert await count_opened(log, LATE - 5, TimeLookups()) == ((30, LATE, 0), 2)


def test_lookup_walks_a_bounded_number_of_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_index, "HEADERS_MAX", 30)
    monkeypatch.setattr(segment_index, "INDEXED_HEADERS", 10)

    async def scenario(log: DiskLog) -> None:
        append(log, false_claim(compressed_batch(0)))
        for offset in range(1, 100):
            append(log, batch(offset, at=NOW))
        found, count = await count_opened(log, LATE - 5, TimeLookups())
        assert found is not None and found[0] == 39 and count == 1
        lookups = TimeLookups()
        at = [await count_opened(log, LATE - 5 - n, lookups) for n in range(4)]
        assert [found and found[0] for found, _ in at] == [39, 9, 9, 9], "the lookups of a request share the headers"

    run_scenario(scenario)


@run_by(run_scenario)
async def test_batch_that_cannot_be_opened_is_the_result(log: DiskLog) -> None:
    junk = bytearray(compressed_batch(0, size=100))
    junk[HEADER_BYTES:] = bytes(len(junk) - HEADER_BYTES)
    append(log, false_claim(bytes(junk)))
    assert await count_opened(log, LATE, TimeLookups()) == ((0, LATE, 0), 1)


@run_by(run_scenario)
async def test_records_of_a_batch_below_the_log_start_are_not_found(log: DiskLog) -> None:
    append(log, bytearray(encode_batch([(NOW + n, None, b"v", ()) for n in range(10)], codec=Codec.LZ4)))
    log.advance_start(4)
    assert await count_opened(log, NOW + 2, TimeLookups()) == ((4, NOW + 4, 0), 1)


@run_by(run_scenario)
async def test_large_batch_is_opened_in_a_thread(log: DiskLog) -> None:
    seen: list[str] = []

    def note(data: bytes, *args: int, **limits: int) -> tuple[int, int] | None:
        seen.append(threading.current_thread().name)
        return None

    append(log, bytearray(compressed_batch(0, size=3_000)))
    noise = bytes(n * n * n % 251 for n in range(60_000))
    append(log, bytearray(encode_batch([(NOW + 1, None, noise, ())], base_offset=1, codec=Codec.SNAPPY)))
    with patch.object(time_lookup, "first_at_or_after", note):
        await offset_for_timestamp(log, NOW, TimeLookups())
    assert seen == ["MainThread", "tiered-time-lookup"]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@run_by(run_scenario)
async def test_small_batch_that_becomes_large_is_opened_in_a_thread(log: DiskLog, *, codec: Codec) -> None:
    """A kilobyte of zstd may become tens of megabytes, and would stop the event loop for as long as that takes."""
    seen: list[str] = []

    def note(data: bytes, *args: int, **limits: int) -> tuple[int, int] | None:
        seen.append(threading.current_thread().name)
        return first_at_or_after(data, *args, **limits)

    line = bytes(15_000)
    append(log, bytearray(encode_batch([(NOW + number, None, line, ()) for number in range(100)], codec=codec)))
    with patch.object(time_lookup, "first_at_or_after", note):
        assert await offset_for_timestamp(log, NOW + 99, TimeLookups()) == (99, NOW + 99, 0)
    assert seen[-1] == "tiered-time-lookup"


@pytest.mark.parametrize("append_time", [False, True])
@run_by(run_scenario)
async def test_newest_record_of_a_large_batch_takes_one_opening(log: DiskLog, *, append_time: bool) -> None:
    """It takes one, however many timestamps are tried."""
    opened: list[int] = []

    def note(data: bytes, at: int, head: BatchHeader, *, max_bytes: int) -> Iterator[Piece]:
        opened.append(max_bytes)
        return open_pieces(data, at, head, max_bytes=max_bytes)

    records = [(NOW + number, None, bytes(15_000), ()) for number in range(100)]
    data = bytearray(encode_batch(records, codec=Codec.LZ4, log_append_time=append_time))
    log.append_as_follower(data, now_ms=NOW)
    candidate = log.segments.find_batch_by_time(NOW, 0, TimeLookups().headers)
    assert candidate is not None
    with patch.object(time_lookup, "open_pieces", note):
        found = [
            await TimeLookups().find_newest_in_batch(candidate, before, start)
            for before, start in ((NOW + 50, 0), (NOW + 200, 0), (NOW, 0), (NOW + 50, 50), (NOW + 50, 49))
        ]
    if append_time:
        assert (found, opened) == ([-1, NOW + 99, -1, -1, -1], [])
    else:
        assert found == [NOW + 49, NOW + 99, -1, -1, NOW + 49]
        assert len(opened) == len(found)


@run_by(run_scenario)
async def test_waiting_lookup_keeps_no_batch_in_memory_and_addresses_take_turns(log: DiskLog) -> None:
    noise = random.Random(1).randbytes(3_000)
    went_on, served = threading.Event(), []
    reads: list[int] = []

    def note(data: bytes, *args: int, **limits: int) -> tuple[int, int] | None:
        assert went_on.wait(30)
        served.append(int.from_bytes(data[:8], "big"))
        return 0, NOW

    pread = SimFile.pread

    def count(file: SimFile, offset: int, length: int) -> bytes:
        if length > 3_000 and length != segment_files.WINDOW_BYTES:
            reads.append(length)
        return pread(file, offset, length)

    for offset in range(2):
        append(log, bytearray(encode_batch([(NOW + offset, None, noise, ())], codec=Codec.ZSTD)))
    with patch.object(time_lookup, "first_at_or_after", note), patch.object(SimFile, "pread", count):
        crowd = [asyncio.create_task(offset_for_timestamp(log, NOW, TimeLookups("a"))) for _ in range(20)]
        await asyncio.sleep(0)
        honest = asyncio.create_task(offset_for_timestamp(log, NOW + 1, TimeLookups("b")))
        await asyncio.sleep(0)
        assert len(reads) <= 1, "one batch at a time is in memory"
        went_on.set()
        await asyncio.gather(honest, *crowd)
    assert len(reads) == 21 and served.index(1) <= 2


def test_excess_lookup_is_refused_with_a_code_that_clients_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_lookup, "_slots", FairSlots(0, 0))

    async def scenario(log: DiskLog) -> None:
        append(log, bytearray(compressed_batch(0, size=300_000)))
        monkeypatch.setattr(time_lookup, "INLINE_COMPRESSED_BYTES", 10)
        with pytest.raises(Refused) as caught:
            await offset_for_timestamp(log, NOW, TimeLookups("a"))
        assert caught.value.code is Code.REQUEST_TIMED_OUT and caught.value.code.retriable

    run_scenario(scenario)


@run_by(run_scenario)
async def test_records_that_are_dropped_during_a_look_up_are_not_passed_over(log: DiskLog) -> None:
    noise = random.Random(1).randbytes(2_000)
    append(log, bytearray(encode_batch([(NOW + late, None, noise, ()) for late in (90, 1)], codec=Codec.ZSTD)))
    for late in (2, 60):
        append(log, bytearray(compressed_batch(late)))
    log.roll()
    append(log, bytearray(compressed_batch(70)))
    log.advance_start(1)
    async with time_lookup._slots.take("other"):
        look_up = asyncio.create_task(search_log(log, NOW + 50, 0, TimeLookups("a")))
        await asyncio.sleep(0)
        assert await log.drop_local_below(4) == 1
    assert await look_up == (None, 2)


@run_by(run_scenario)
async def test_record_that_is_deleted_during_a_look_up_is_not_found(log: DiskLog) -> None:
    noise = random.Random(1).randbytes(2_000)
    append(log, bytearray(encode_batch([(NOW + late, None, noise, ()) for late in (60, 70)], codec=Codec.ZSTD)))
    async with time_lookup._slots.take("other"):
        look_up = asyncio.create_task(search_log(log, NOW + 50, 0, TimeLookups("a")))
        await asyncio.sleep(0)
        log.advance_start(1)
    assert (await look_up).found == (1, NOW + 70, 0)

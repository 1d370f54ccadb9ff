"""Look-ups by time open few batches, whatever the headers claim, and no record before the answer is late enough."""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from tests.sim.harness.disk import SimDisk, SimFile
from tests.unit.hot.fixtures import NOW, append, batch, config, disk, open_log
from tiered.errors import Code, Refused
from tiered.fair_slots import FairSlots
from tiered.hot import segment_files, segment_index, time_lookup
from tiered.hot.disk_log import DiskLog
from tiered.hot.time_lookup import WASTED_BATCHES_MAX, TimeLookups, offset_for_timestamp
from tiered.records.batch import encode_batch, first_at_or_after
from tiered.records.model import CRC_AT, CRC_FROM, HEADER_BYTES, Codec
from tiered.records.native import crc32c

LATE = NOW + 1_000_000


def scenario(told: Callable[[DiskLog], Awaitable[None]]) -> None:
    async def main() -> None:
        on: SimDisk = disk()
        await told(await open_log(on, config(segment_bytes=1 << 20)))

    asyncio.run(main())


def false_claim(data: bytes, max_timestamp: int = LATE) -> bytearray:
    """The batch with a header that claims a later record than it holds."""
    made = bytearray(data)
    struct.pack_into(">q", made, 35, max_timestamp)
    struct.pack_into(">I", made, CRC_AT, crc32c(made[CRC_FROM:]))
    return made


def packed(offset: int, *, at: int | None = None, size: int = 10) -> bytes:
    return encode_batch(
        [(NOW + offset if at is None else at, b"k", bytes(size), ())], base_offset=offset, codec=Codec.ZSTD
    )


def opened(log: DiskLog, timestamp: int, lookups: TimeLookups) -> Awaitable[tuple[tuple[int, int, int] | None, int]]:
    """The answer, and how many batches were opened for it."""

    async def ask() -> tuple[tuple[int, int, int] | None, int]:
        with patch.object(time_lookup, "first_at_or_after", wraps=first_at_or_after) as spy:
            return await offset_for_timestamp(log, timestamp, lookups), spy.call_count

    return ask()


def test_true_claims_are_answered_exactly_and_cost_one_batch_each() -> None:
    async def told(log: DiskLog) -> None:
        for offset in range(20):
            append(log, bytearray(packed(offset)))
        lookups = TimeLookups()
        for offset in range(20):
            assert await opened(log, NOW + offset, lookups) == ((offset, NOW + offset, 0), 1)
        assert await opened(log, NOW + 20, lookups) == (None, 0)

    scenario(told)


def test_after_a_few_false_claims_the_next_one_is_the_answer_unopened() -> None:
    """No record before it is late enough, and a request pays for its false claims once."""

    async def told(log: DiskLog) -> None:
        for offset in range(50):
            append(log, false_claim(packed(offset)))
        lookups = TimeLookups()
        assert await opened(log, LATE - 5, lookups) == ((WASTED_BATCHES_MAX, LATE, 0), WASTED_BATCHES_MAX)
        assert await opened(log, LATE - 5, lookups) == ((0, LATE, 0), 0)
        log.advance_start(30)
        assert await opened(log, LATE - 5, lookups) == ((30, LATE, 0), 0)

    scenario(told)


def test_behind_one_false_claim_the_record_is_found_exactly() -> None:
    async def told(log: DiskLog) -> None:
        append(log, false_claim(packed(0)))
        for offset in range(1, 30):
            append(log, bytearray(packed(offset)))
        append(log, bytearray(packed(30, at=LATE)))
        assert await opened(log, LATE - 5, TimeLookups()) == ((30, LATE, 0), 2)

    scenario(told)


def test_headers_that_claim_nothing_are_walked_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_index, "HEADERS_MAX", 30)
    monkeypatch.setattr(segment_index, "INDEXED_HEADERS", 10)

    async def told(log: DiskLog) -> None:
        append(log, false_claim(packed(0)))
        for offset in range(1, 100):
            append(log, batch(offset, at=NOW))
        found, count = await opened(log, LATE - 5, TimeLookups())
        assert found is not None and found[0] == 39 and count == 1
        lookups = TimeLookups()
        at = [await opened(log, LATE - 5 - n, lookups) for n in range(4)]
        assert [found and found[0] for found, _ in at] == [39, 9, 9, 9], "the look-ups of a request share the headers"

    scenario(told)


def test_batch_that_cannot_be_opened_is_the_result() -> None:
    async def told(log: DiskLog) -> None:
        junk = bytearray(packed(0, size=100))
        junk[HEADER_BYTES:] = bytes(len(junk) - HEADER_BYTES)
        append(log, false_claim(bytes(junk)))
        assert await opened(log, LATE, TimeLookups()) == ((0, LATE, 0), 1)

    scenario(told)


def test_within_a_batch_the_log_start_counts() -> None:
    async def told(log: DiskLog) -> None:
        append(log, bytearray(encode_batch([(NOW + n, None, b"v", ()) for n in range(10)], codec=Codec.LZ4)))
        log.advance_start(4)
        assert await opened(log, NOW + 2, TimeLookups()) == ((4, NOW + 4, 0), 1)

    scenario(told)


def test_a_large_batch_is_opened_by_a_thread() -> None:
    seen: list[str] = []

    def note(data: bytes, *args: int) -> tuple[int, int] | None:
        seen.append(threading.current_thread().name)
        return None

    async def told(log: DiskLog) -> None:
        append(log, bytearray(packed(0, size=3_000)))
        noise = bytes(n * n * n % 251 for n in range(60_000))
        append(log, bytearray(encode_batch([(NOW + 1, None, noise, ())], base_offset=1, codec=Codec.SNAPPY)))
        with patch.object(time_lookup, "first_at_or_after", note):
            await offset_for_timestamp(log, NOW, TimeLookups())
        assert seen == ["MainThread", "tiered-time-lookup"]

    scenario(told)


def test_look_ups_that_wait_keep_no_batch_in_memory_and_addresses_take_turns() -> None:
    noise = random.Random(1).randbytes(3_000)
    went_on, served = threading.Event(), []
    reads: list[int] = []

    def note(data: bytes, *args: int) -> tuple[int, int] | None:
        assert went_on.wait(30)
        served.append(int.from_bytes(data[:8], "big"))
        return 0, NOW

    pread = SimFile.pread

    def count(file: SimFile, offset: int, length: int) -> bytes:
        if length > 3_000 and length != segment_files.WINDOW_BYTES:
            reads.append(length)
        return pread(file, offset, length)

    async def told(log: DiskLog) -> None:
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

    scenario(told)


def test_a_look_up_too_many_is_refused_with_a_code_that_clients_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_lookup, "_slots", FairSlots(0, 0))

    async def told(log: DiskLog) -> None:
        append(log, bytearray(packed(0, size=300_000)))
        monkeypatch.setattr(time_lookup, "INLINE_COMPRESSED_BYTES", 10)
        with pytest.raises(Refused) as caught:
            await offset_for_timestamp(log, NOW, TimeLookups("a"))
        assert caught.value.code is Code.REQUEST_TIMED_OUT and caught.value.code.retriable

    scenario(told)

"""Fixtures of the hot log's tests: a log on a simulated disk, and batches of named producers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tests.sim.harness.disk import SimDisk
from tiered.config.settings import TopicConfig
from tiered.hot.disk_log import DiskLog, LogAppendInfo
from tiered.hot.log_recovery import LogRecovery
from tiered.hot.time_lookup import TimeLookups, search_log
from tiered.metrics import Metrics
from tiered.ports import Disk
from tiered.producers.limits import ProducerLimits
from tiered.records.batch import decode_records, encode_batch
from tiered.records.model import Codec

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
DIRECTORY = "log/t-0"
NOW = 1_700_000_000_000


class FixedClock:
    """A clock that moves only when a test sets it."""

    def __init__(self, wall: int = NOW) -> None:
        self.wall = wall

    def mono_ns(self) -> int:
        return self.wall * 1_000_000

    def cpu_ns(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return self.wall

    async def sleep(self, seconds: float) -> None:
        self.wall += int(seconds * 1000)


def run_scenario(scenario: Callable[[SimDisk], Coroutine[Any, Any, None]]) -> None:
    """Runs a scenario on a new simulated disk."""
    asyncio.run(scenario(disk()))


def config(**changes: object) -> TopicConfig:
    """Returns topic settings with small segments and an index entry every other batch."""
    settings = {"segment_bytes": 1500, "index_interval_bytes": 200, **changes}
    return TopicConfig(**settings)  # type: ignore[arg-type]


def batch(
    first: int, count: int = 1, *, size: int = 60, producer: int = -1, sequence: int = -1, epoch: int = 0, at: int = NOW
) -> bytearray:
    """Returns a produced batch of `count` records whose values contain the numbers `first`, `first + 1`, ..."""
    made = [(at + number, b"k", b"%d" % number + b"." * size, ()) for number in range(first, first + count)]
    return bytearray(
        encode_batch(
            made,
            codec=Codec.NONE,
            producer_id=producer,
            producer_epoch=epoch if producer >= 0 else -1,
            base_sequence=sequence,
        )
    )


async def open_log(
    disk: Disk,
    settings: TopicConfig | None = None,
    *,
    same_boot: bool = True,
    clean: bool = False,
    recovery_point: int = 0,
    start_offset: int = 0,
    cut: bool = False,
    clock: FixedClock | None = None,
    limits: ProducerLimits | None = None,
) -> DiskLog:
    return await DiskLog.open(
        disk,
        clock or FixedClock(),
        DIRECTORY,
        settings or config(),
        LogRecovery(
            same_boot=same_boot,
            clean=clean,
            recovery_point=recovery_point,
            start_offset=start_offset,
            truncation_interrupted=cut,
        ),
        metrics=Metrics(),
        topic_id=TOPIC_ID,
        name="t-0",
        producer_limits=limits,
    )


def append(log: DiskLog, data: bytearray, epoch: int = 0) -> LogAppendInfo:
    return log.append(data, leader_epoch=epoch, now_ms=NOW)


def read_all(log: DiskLog, start: int | None = None, max_bytes: int = 400) -> bytes:
    """Returns all bytes from `start` on, read batch by batch as a consumer does."""
    offset = log.local_start_offset if start is None else start
    out = b""
    while (found := log.read(offset, max_bytes, end_offset=log.end_offset)) is not None:
        data = found.file.pread(found.start, found.length)
        assert len(data) == found.length
        last = offsets(data)[-1]
        assert last >= offset
        offset, out = last + 1, out + data
    return out


def offsets(data: bytes) -> Sequence[int]:
    """Returns the offsets of all records in whole batches."""
    found: list[int] = []
    at = 0
    while at < len(data):
        found += [record.offset for record in decode_records(data, at)]
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


def max_timestamp(log: DiskLog) -> int:
    """Returns the greatest timestamp in any batch header, or -1 if there is none."""
    return max(view.max_timestamp for view in (*log.segments.closed(), log.segments.active))


def disk(seed: int = 0) -> SimDisk:
    return SimDisk(random.Random(seed))


async def offset_for_timestamp(log: DiskLog, timestamp: int, lookups: TimeLookups) -> tuple[int, int, int] | None:
    """Returns (offset, timestamp, leader epoch) of the first record of a local log that is late enough."""
    return (await search_log(log, timestamp, 0, lookups)).found

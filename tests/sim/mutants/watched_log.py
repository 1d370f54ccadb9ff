"""One log on a simulated disk, of which every batch is known, and whose cleans are judged (I26)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from tests.sim.cluster.clean_watch import CleanWatch, JudgedLog
from tests.sim.cluster.compacted_logs import CompactedLog, held_batches_of, read_compacted_log
from tests.sim.cluster.expiry import LogBatch
from tests.sim.cluster.observer import BrokenRules, Finding, patched
from tests.sim.harness.disk import SimDisk
from tests.unit.hot.cleaning import put, resources
from tests.unit.hot.fixtures import DIRECTORY, NOW, FixedClock, append, config, disk, open_log
from tiered.config.settings import TopicConfig
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_writer import LogWriter
from tiered.producers.verification import UnverifiedProducer
from tiered.records.batch import encode_batch
from tiered.records.marker import TransactionMarker, encode_marker

KEYS = 5
RETENTION_MS = 60_000
LATER_MS = 10 * RETENTION_MS


class WatchedLog:
    """The log, and what was found. `committed_end` is the true high watermark, -1 for the log end."""

    def __init__(self, log: DiskLog, on: SimDisk) -> None:
        self.log = log
        self.disk = on
        self.findings: list[Finding] = []
        self.committed_end = -1
        self.compacted = CompactedLog("t-0", lambda rule, what: self.findings.append(Finding(rule, what)))
        self.batches: list[LogBatch] = []
        self._sequences: dict[int, int] = {}

    def put(self, key: str, value: str | None, *, producer: int = -1) -> int:
        """Appends one record. Returns its offset."""
        return self._note(put(self.log, key, value, producer=producer))

    def put_some(self, count: int) -> None:
        """Appends records with few keys."""
        for number in range(count):
            self.put(f"k{number % KEYS}", f"v{number}")

    def write(self, producer: int, key: str, value: str) -> int:
        """Appends one record of a transaction."""
        producers, sequence = self.log.producers, self._sequences.get(producer, 0)
        guard = producers.guards.begin(UnverifiedProducer(producer, 0, sequence), False)
        data = encode_batch(
            [(NOW, key.encode(), value.encode(), ())], producer_id=producer, producer_epoch=0, base_sequence=sequence,
            transactional=True,
        )  # fmt: skip
        offset = self.log.append(bytearray(data), leader_epoch=0, now_ms=NOW, guard=guard).base_offset
        producers.guards.end(guard)
        self._sequences[producer] = sequence + 1
        return self._note(offset)

    def end(self, producer: int, *, commit: bool) -> int:
        """Appends the marker of a transaction."""
        marker = encode_marker(TransactionMarker(producer, 0, commit, 0), NOW)
        return self._note(self.log.append(marker, leader_epoch=0, now_ms=NOW, from_coordinator=True).base_offset)

    def _note(self, offset: int) -> int:
        """Notes the newest batch."""
        _, held = read_compacted_log(self.disk, DIRECTORY)
        end = self.batches[-1].last + 1 if self.batches else 0
        self.batches += self.compacted.take(end, held[-1])
        return offset

    async def close_segment(self) -> None:
        """Closes the active segment, and makes all records durable and committed."""
        self.log.roll()
        await self.log.flush()
        self.log.producers.txns.on_high_watermark(self.log.end_offset)

    async def clean(self, *, at_ms: int = NOW, map_bytes: int = 1 << 16) -> None:
        """Cleans once."""
        clock = self.log._clock
        assert isinstance(clock, FixedClock)
        clock.wall = at_ms
        end = self.log.end_offset if self.committed_end < 0 else self.committed_end
        await self.log.compaction.clean(
            self.log.compaction.find_cleanable(self.log.start_offset, end, at_ms), resources(map_bytes=map_bytes)
        )

    def check_disk(self, on: SimDisk, what: str) -> None:
        """Checks what a start would find on a disk: nothing but what cleans removed is missing."""
        start, held = read_compacted_log(on, DIRECTORY)
        found, hole = self.compacted.restore(start, held)
        names = on.list(DIRECTORY)
        if any(name.endswith((".swap", ".cleaned")) for name in names):
            hole = f"left are {names}"
        if hole or found != self.batches:
            self.findings.append(Finding("I26", f"{what}: {hole or len(found)}"))

    def judged(self, writer: LogWriter) -> JudgedLog:
        end = self.log.end_offset if self.committed_end < 0 else self.committed_end
        return JudgedLog(self.compacted, self.batches, end)


def compacted_config(**changes: object) -> TopicConfig:
    """Returns the settings of a compacted topic with small segments."""
    return config(
        **{
            "cleanup_policy": ("compact",),
            "segment_bytes": 1024,
            "delete_retention_ms": RETENTION_MS,
            "remote_storage_enable": False,
            **changes,
        }
    )


def run_watched(scenario: Callable[[WatchedLog], Awaitable[None]], **changes: object) -> None:
    """Runs a scenario of one log. Raises what it breaks."""

    async def run() -> None:
        on = disk()
        watched = WatchedLog(await open_log(on, compacted_config(**changes), clock=FixedClock()), on)
        with ExitStack() as stack:
            for owner, name, make in CleanWatch(watched.judged).hooks:
                stack.enter_context(patched(owner, name, make))
            await scenario(watched)
        if watched.findings:
            raise BrokenRules(watched.findings)

    asyncio.run(run())


__all__ = ["LATER_MS", "NOW", "RETENTION_MS", "WatchedLog", "append", "held_batches_of", "run_watched"]

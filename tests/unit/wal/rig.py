"""Rig of write-ahead chains in virtual time: a bucket, brokers with a chain each, and logs in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from tests.sim.harness.clock import SimClock, SimRng
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.store import SimBucket
from tiered.errors import Refused, Unavailable
from tiered.ids import PartitionId, TopicId
from tiered.metrics import Metrics
from tiered.object_store.faulty import FaultRule, Faults
from tiered.wal.chain_writer import ChainedLog, ChainWriter
from tiered.wal.history import Place
from tiered.wal.layout import ChainId
from tiered.wal.takeover import ChainTakeover, FencedChain
from tiered.wal.window import WindowSettings

T = TypeVar("T")

ONE, TWO, THREE = (PartitionId(TopicId("AAAAAAAAQACAAAAAAAAAAQ"), p) for p in range(3))
SETTINGS = WindowSettings(250_000_000, 1_000)


class MemoryLog:
    """A log whose batches are one record of some bytes each."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.read_error: Unavailable | Refused | None = None

    @property
    def end_offset(self) -> int:
        return len(self.batches)

    @property
    def cold_end_offset(self) -> int:
        return 0

    @property
    def high_watermark(self) -> int:
        return self.end_offset

    def read_batches(self, offset: int, max_bytes: int) -> tuple[bytes, int]:
        if self.read_error is not None:
            raise self.read_error
        taken = self.batches[offset]
        end = offset + 1
        while end < len(self.batches) and len(taken) + len(self.batches[end]) <= max_bytes:
            taken += self.batches[end]
            end += 1
        return taken, end


class Broker:
    """A process with its chain. `stored` and `fenced` are what its leaderships were told."""

    def __init__(self, rig: Rig, node_id: int, incarnation: str, settings: WindowSettings = SETTINGS) -> None:
        self.rig = rig
        self.faults = Faults()
        self.store = rig.bucket.store(self.faults, rig.clock)
        self.logs: dict[PartitionId, MemoryLog] = {}
        self.stored: dict[PartitionId, int] = {}
        self.fenced: list[PartitionId] = []
        self.owners: dict[PartitionId, ChainedLog] = {}
        rng = SimRng(rig.seed + len(rig.tasks))
        self.chain = ChainId(node_id, incarnation)
        self.writer = ChainWriter(
            self.store, rig.clock, rng, Metrics(),
            chain=self.chain, cluster_id=lambda: "cluster", settings=settings,
        )  # fmt: skip
        self.takeover = ChainTakeover(self.store, rig.clock, rng, lambda: "cluster")
        rig.spawn("chain writer", self.writer.run())

    def lead(self, partition: PartitionId, leader_epoch: int, stored_end: int = 0) -> MemoryLog:
        """Begins a leadership with a copy of the log that was there. An earlier one is told in vain."""
        log, before = MemoryLog(), self.logs.get(partition)
        log.batches += before.batches if before is not None else []
        self.logs[partition], self.stored[partition] = log, stored_end

        def on_stored(end: int) -> None:
            if self.logs[partition] is log:
                self.stored[partition] = end

        def on_fenced() -> None:
            if self.logs[partition] is log:
                self.fenced.append(partition)

        self.owners[partition] = self.writer.add(
            partition, leader_epoch, log, stored_end, on_stored=on_stored, on_fenced=on_fenced
        )
        return log

    def append(self, partition: PartitionId, *batches: bytes) -> None:
        self.logs[partition].batches += batches
        self.owners[partition].on_append(sum(map(len, batches)))

    async def wait_stored(self, partition: PartitionId, end: int) -> None:
        while self.stored[partition] < end:
            await self.rig.clock.sleep(0.001)

    def fail(self, rule: FaultRule) -> None:
        self.faults.rules.append(rule)

    async def take_over(self, chain: ChainId, leader_epoch: int, *partitions: PartitionId) -> FencedChain:
        return await self.takeover.fence(chain, dict.fromkeys(partitions, leader_epoch))

    async def read(self, places: list[Place]) -> bytes:
        return b"".join([data async for _, data in self.takeover.read(places)])


class Rig:
    """Loop, bucket and brokers of one test."""

    def __init__(self, seed: int = 1) -> None:
        self.seed = seed
        self.loop = SimLoop(seed)
        self.clock = SimClock(self.loop)
        self.bucket = SimBucket(self.loop)
        self.tasks: list[Any] = []

    def spawn(self, name: str, job: Awaitable[None]) -> None:
        async def whole() -> None:
            await job

        self.tasks.append(self.loop.create_task(whole(), name=name))

    def broker(self, node_id: int = 1, incarnation: str = "i", settings: WindowSettings = SETTINGS) -> Broker:
        return Broker(self, node_id, incarnation, settings)

    def run(self, scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a scenario in virtual time, and fails with the first task that failed."""

        async def whole() -> T:
            made = await scenario()
            for task in self.tasks:
                if task.done():
                    task.result()
                task.cancel()
            return made

        return self.loop.run(whole())

    def slots(self) -> list[str]:
        """Returns the last two digits of the slots in the bucket, in order of keys."""
        return [key[-2:] for key in sorted(self.bucket.objects) if key.startswith("wal/")]

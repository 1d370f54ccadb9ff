"""Brokers that share a bucket in virtual time, each with a log of one partition that it leads or follows."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.sim.clock import SimClock, SimRng
from tests.sim.disk import SimDisk
from tests.sim.loop import SimLoop
from tests.sim.store import SimBucket
from tests.unit.hot.fixtures import batch
from tiered.cold.cache import ChunkCache
from tiered.cold.collector import Collector
from tiered.cold.faulty import Faults
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.reader import ColdReader
from tiered.cold.uploader import Uploader
from tiered.config import TopicConfig
from tiered.hot.disk_log import DiskLog
from tiered.ids import TopicId, TopicPartition
from tiered.metrics import Metrics
from tiered.ports import FileSlice
from tiered.replication.leading import Begun, Past, begin
from tiered.replication.partition import Partition
from tiered.replication.replica import Replica
from tiered.replication.storage import ColdTier, DiskState

T = TypeVar("T")

AT = TopicPartition("t", 0)
TOPIC_ID = TopicId("AAAAAAAAQACAAAAAAAAAAQ")
INCARNATIONS = {1: 11, 2: 22, 3: 33}


class Broker:
    """One broker's disk, its way to the bucket, and its log of the partition."""

    def __init__(self, rig: Rig, node_id: int, config: TopicConfig) -> None:
        self.node_id = node_id
        self.clock = rig.clock
        self.faults = Faults(reply_seconds=0.05)
        self.rng = SimRng(f"{rig.loop.seed}/{node_id}")
        self.metrics = Metrics()
        self.disk = SimDisk(self.rng.stream("disk"))
        self.died: list[str] = []
        self.state = DiskState(rig.clock, self.metrics, self.died.append)
        store = rig.bucket.store(self.faults, rig.clock)
        manifests = ManifestStore(store, rig.clock, self.rng, self.metrics)
        uploader = Uploader(store, manifests, rig.clock, self.rng, self.metrics)
        self.cold = ColdTier(
            manifests,
            ColdReader(store, manifests, ChunkCache(self.metrics), self.metrics, rig.clock),
            uploader,
            Collector(store, manifests, uploader.busy, rig.clock, self.metrics, grace_ms=1000),
        )
        self.config = config
        self.logs: dict[TopicPartition, DiskLog] = {}
        self.closed: list[Replica] = []
        self.joinable: list[Replica] = []

    async def log(self, at: TopicPartition = AT) -> DiskLog:
        """Its log, opened once."""
        if at not in self.logs:
            self.logs[at] = await DiskLog.open(
                self.disk, self.clock, f"log/{at}", self.config,
                same_boot=True, clean=False, metrics=self.metrics, topic_id=TOPIC_ID, name=str(at),
            )  # fmt: skip
        return self.logs[at]

    async def lead(
        self, epoch: int, isr: list[int], replicas: list[int] | None = None, *, at: TopicPartition = AT,
        high_watermark: int = 0, past: Past = Past.NONE,
    ) -> Replica:  # fmt: skip
        hot, pid = await self.log(at), Replica.id_of(at, TOPIC_ID)
        begun = Begun(None, None) if past is Past.NONE else await begin(hot, self.cold, pid, at.topic, epoch, past)
        partition = Partition(
            self.node_id, epoch, isr, replicas=replicas or isr, epoch_start=hot.end_offset, partition_epoch=epoch,
            high_watermark=high_watermark, began_ns=self.clock.mono_ns(),
        )  # fmt: skip
        return Replica(
            at, TOPIC_ID, hot, partition, cold=self.cold, begun=begun, clock=self.clock, disk=self.state,
            segment_closed=self.closed.append, joinable=self.joinable.append,
        )  # fmt: skip


class Rig:
    """The world of one test."""

    def __init__(self, seed: int = 1, config: TopicConfig | None = None) -> None:
        self.loop = SimLoop(seed)
        self.clock = SimClock(self.loop)
        self.bucket = SimBucket(self.loop)
        settings = config or TopicConfig(segment_bytes=2000, index_interval_bytes=200)
        self.brokers = {node: Broker(self, node, settings) for node in INCARNATIONS}

    def run(self, story: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Plays the story in virtual time."""
        return self.loop.run(story())


def produced(replica: Replica, first: int, count: int = 1, *, acks: int = 1) -> int:
    """Appends one batch of `count` records; the log's end."""
    return replica.append_now(batch(first, count), acks).last_offset + 1


def content(data: bytes | FileSlice) -> bytes:
    return data if isinstance(data, bytes) else data.file.pread(data.start, data.length)


def whole(log: DiskLog, start: int | None = None) -> bytes:
    """All bytes of a log."""
    out, offset = b"", log.local_start_offset if start is None else start
    while (found := log.read(offset, 1, end_offset=log.end_offset)) is not None:
        one = content(found)
        offset = int.from_bytes(one[:8], "big") + int.from_bytes(one[23:27], "big") + 1
        out += one
    return out

"""Rig of a partition's cold tier in virtual time: a bucket, brokers that share it, and a local log of real segment
files."""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.sim.harness.clock import SimClock, SimRng
from tests.sim.harness.disk import SimDisk
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.store import SimBucket
from tiered.cold.cache import ChunkCache
from tiered.cold.cleaner import ColdCleaner
from tiered.cold.collector import Collector
from tiered.cold.disk_cache import DiskCache
from tiered.cold.layout import SectionRef, segment_key
from tiered.cold.manifest import Manifest, SegmentEntry
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.reader import WINDOW_BYTES, ColdReader
from tiered.cold.uploader import Uploader
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.ids import PartitionId, TopicId
from tiered.metrics import Metrics
from tiered.object_store.faulty import FaultRule, Faults
from tiered.ports import FileSlice
from tiered.records.batch import encode_batch
from tiered.records.model import WalkedBatch
from tiered.records.native import walk

T = TypeVar("T")

MIB = 1 << 20

TOPIC = "flights"
PID = PartitionId(TopicId("AAAAAAAAQACAAAAAAAAAAQ"), 3)


@dataclass(frozen=True)
class Segment:
    """A closed local segment."""

    base_offset: int
    next_offset: int
    log: FileSlice


@dataclass(frozen=True)
class Files:
    """The small files of a segment."""

    offset_index: bytes
    time_index: bytes
    txn_index: bytes
    producer_snapshot: bytes | None


@dataclass
class LocalLog:
    """Closed segments on a simulated disk, with an index entry for every second batch."""

    disk: SimDisk
    lineage: list[tuple[int, int]] = field(default_factory=lambda: [(1, 0)])
    files: list[Segment] = field(default_factory=list)
    txn_indexes: dict[int, bytes] = field(default_factory=dict)
    """Transaction indexes by the base offset of their segment."""

    def write(self, batches: Sequence[bytes], next_offset: int) -> Segment:
        """Adds a closed segment of these encoded batches."""
        base = walk(batches[0]).batches[0].base_offset
        self.disk.make_dirs("log")
        file = self.disk.open(f"log/{base:020d}.log", create=True)
        size = file.append(batches)
        segment = Segment(base, next_offset, FileSlice(file, 0, size))
        self.files.append(segment)
        return segment

    def fill(self, base: int, batches: int, *, records: int = 10, size: int = 100, epoch: int = 1) -> Segment:
        """Adds a closed segment of `batches` batches; the record at offset o has timestamp 1000 * o."""
        data = [batch(base + i * records, records, size, epoch) for i in range(batches)]
        return self.write(data, base + batches * records)

    @property
    def epochs(self) -> LeaderEpochs:
        return LeaderEpochs(self.lineage)

    @property
    def segments(self) -> LocalLog:
        return self

    def closed(self, above: int = 0, limit: int | None = None) -> list[Segment]:
        return [each for each in self.files if each.next_offset > above][:limit]

    def data(self, base_offset: int, *, from_offset: int | None = None) -> Files:
        segment = next(s for s in self.files if s.base_offset == base_offset)
        start = base_offset if from_offset is None else from_offset
        found = [b for b in walk(self.content(segment)).batches if b.last_offset >= start]
        indexed = found[1::2]
        cut = found[0].position if found else 0
        return Files(
            b"".join(struct.pack(">ii", b.last_offset - start, b.position - cut) for b in indexed),
            _time_index(found, start),
            self.txn_indexes.get(base_offset, b""),
            b"producers of " + str(segment.next_offset).encode(),
        )

    def content(self, segment: Segment) -> bytes:
        return segment.log.file.pread(segment.log.start, segment.log.length)

    @property
    def all_bytes(self) -> bytes:
        return b"".join(self.content(segment) for segment in self.files)


def batch(base: int, records: int = 10, size: int = 100, epoch: int = 1) -> bytes:
    """Returns a batch of distinct records; the record at offset o has timestamp 1000 * o."""
    rows = [(1000 * (base + i), b"k%d" % i, (b"%d." % (base + i)) * (size // 4), ()) for i in range(records)]
    return encode_batch(rows, base_offset=base, leader_epoch=epoch)


def _time_index(found: Sequence[WalkedBatch], start: int) -> bytes:
    """Returns, for every second batch, the highest timestamp so far and its position, if the timestamp has grown."""
    rows: list[tuple[int, int]] = []
    highest, at = -1, start
    for i, one in enumerate(found):
        if one.max_timestamp > highest:
            highest, at = one.max_timestamp, one.last_offset
        if i % 2 and highest > (rows[-1][0] if rows else -1):
            rows.append((highest, at - start))
    return b"".join(struct.pack(">qi", *row) for row in rows)


class Broker:
    """The cold tier of one process, with its own connection to the shared bucket."""

    def __init__(
        self, rig: Rig, name: str, *, fan: int = 64, window_bytes: int = WINDOW_BYTES, disk: SimDisk | None = None
    ) -> None:
        self.faults = Faults(reply_seconds=0.5)
        self.cleaner: ColdCleaner | None = None
        self.clock = rig.clock
        self._seed = f"{rig.loop.seed}/{name}"
        rng = SimRng(self._seed)
        self.store = rig.bucket.store(self.faults, rig.clock)
        self.metrics = Metrics()
        self.manifests = ManifestStore(self.store, rig.clock, rng, self.metrics, fan=fan)
        self.uploader = Uploader(self.store, self.manifests, rig.clock, rng, self.metrics)
        self.collector = Collector(
            self.store, self.manifests, self._keys_in_flight, rig.clock, self.metrics, grace_ms=1000
        )
        self.disk_cache = DiskCache(disk, rig.clock, self.metrics, 1 << 30) if disk is not None else None
        on_invalid = self.disk_cache.invalidate if self.disk_cache is not None else None
        self.cache = ChunkCache(self.metrics, on_invalid=on_invalid)
        self.reader = ColdReader(
            self.store,
            self.manifests,
            self.cache,
            self.metrics,
            rig.clock,
            window_bytes=window_bytes,
            disk_cache=self.disk_cache,
        )

    def _keys_in_flight(self, partition_id: PartitionId) -> frozenset[str]:
        of_cleaner = self.cleaner.keys_in_flight(partition_id) if self.cleaner is not None else frozenset[str]()
        return self.uploader.keys_in_flight(partition_id) | of_cleaner

    def make_cleaner(self, *, object_bytes: int = 1 << 20) -> ColdCleaner:
        """Gives the broker a cleaner, whose objects in flight the collector knows."""
        self.cleaner = ColdCleaner(
            self.store, self.manifests, self.reader, self.collector, SimRng(f"{self._seed}/cleaner"), self.metrics,
            object_bytes=object_bytes,
        )  # fmt: skip
        return self.cleaner

    def fail(self, *faults: FaultRule) -> None:
        """Replaces all faults by these."""
        self.faults.rules[:] = faults

    async def take_over(self, epoch: int) -> Manifest:
        return await self.manifests.take_over(PID, TOPIC, epoch)

    async def upload_all(self, source: LocalLog, epoch: int, *, stable: int = 1 << 60) -> Manifest:
        """Uploads every closed segment below `stable`."""
        manifest = await self.take_over(epoch)
        while (written := await self.uploader.upload_next(source, manifest, epoch, stable)) is not None:
            manifest = written
        return manifest

    async def read_all(self, start: int = 0) -> bytes:
        """Returns all cold bytes from `start` on."""
        return b"".join([bytes(piece.data) async for piece in self.reader.iterate(PID, start)])


class Rig:
    """Loop, bucket, local log and brokers of one test."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = SimLoop(seed)
        self.clock = SimClock(self.loop)
        self.bucket = SimBucket(self.loop)
        self.log = LocalLog(SimDisk(SimRng(seed).stream("disk")))

    def broker(
        self, name: str = "a", *, fan: int = 64, window_bytes: int = WINDOW_BYTES, disk: SimDisk | None = None
    ) -> Broker:
        """Returns a new process. One with a disk keeps chunks there."""
        return Broker(self, name, fan=fan, window_bytes=window_bytes, disk=disk)

    def run(self, scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a scenario in virtual time."""
        return self.loop.run(scenario())

    async def keys(self, suffix: str = "") -> list[str]:
        """Returns the keys of the objects in the bucket."""
        return [item.key for item in await self.bucket.memory.list("data/") if item.key.endswith(suffix)]


def entry(base: int, next_offset: int, *, epoch: int = 1, size: int = 100, newest: int | None = None) -> SegmentEntry:
    """Returns the manifest entry of a segment of `size` bytes whose newest record is from `newest` (default: its last
    offset)."""
    return SegmentEntry(
        key=segment_key(PID, base, epoch, f"{base:032x}"),
        base_offset=base,
        next_offset=next_offset,
        leader_epoch=epoch,
        lineage=((epoch, base),),
        base_timestamp=base,
        max_timestamp=next_offset - 1 if newest is None else newest,
        record_count=next_offset - base,
        log_bytes=size,
        log_crc=7,
        object_bytes=size + 60,
        sections=(SectionRef(1, size, 8, 9),),
        uploaded_ms=5000,
    )


def manifest(*entries: SegmentEntry, epoch: int = 1) -> Manifest:
    """Returns a manifest of these entries under `epoch`."""
    made = Manifest(TOPIC, PID.topic_id, PID.partition, epoch)
    for one in entries:
        made = made.add(one)
    return made


def small(rig: Rig) -> None:
    """Fills the log with four segments of four batches of ten records: offsets 0 to 159."""
    for i in range(4):
        rig.log.fill(40 * i, 4)


def large(rig: Rig, segments: int = 2, batches: int = 40) -> None:
    """Fills the log with segments of 1 MiB batches of one record each."""
    for i in range(segments):
        rig.log.write([batch(batches * i + j, 1, MIB - 100) for j in range(batches)], batches * (i + 1))


async def cold(rig: Rig, name: str = "reader") -> tuple[Broker, Manifest]:
    """Uploads everything. Returns a broker with an empty cache, and the manifest."""
    manifest = await rig.broker("writer").upload_all(rig.log, 1)
    return rig.broker(name), manifest

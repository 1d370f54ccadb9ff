"""Fills a bucket as brokers do, without one: topics in the metadata log, segments and manifests of the cold tier."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from tiered.cold.cache import ChunkCache
from tiered.cold.cleaner import ColdCleaner
from tiered.cold.collector import Collector
from tiered.cold.layout import SectionKind, SegmentFacts, build_trailer, segment_key
from tiered.cold.manifest import Manifest, SegmentEntry, Submanifests
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.reader import ColdReader
from tiered.config.settings import TopicConfig
from tiered.hot.checkpoints import encode_lineage
from tiered.hot.log_cleaning import CleanerResources
from tiered.ids import PartitionId, TopicId
from tiered.metadata.changes import TopicCreated, TopicDeleted
from tiered.metadata.log_writer import MetadataLog
from tiered.metrics import Metrics
from tiered.object_store.url import open_store
from tiered.ports import ObjectStore
from tiered.producers.aborted_txns import AbortedTxn
from tiered.producers.states import ProducerStates
from tiered.records.batch import encode_batch, stamp
from tiered.records.marker import TransactionMarker, encode_marker
from tiered.records.model import Codec, ProducerRecord, WalkedBatch
from tiered.records.native import crc32c, walk
from tiered.system.clock import SystemClock, SystemRng

T = TypeVar("T")
EPOCH = 1
LINEAGE = ((EPOCH, 0),)
BASE_MS = 1_700_000_000_000


class Segment(NamedTuple):
    """Whole batches, the first at `base_offset`; the next segment begins at `next_offset`."""

    base_offset: int
    next_offset: int
    log: bytes
    txn_index: bytes = b""
    producers: bytes = b""


class TransactionalLog:
    """Batches of transactions, as a leader appends them, with the indexes and snapshots of their segments."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.producers = ProducerStates()
        self._sequences: dict[int, int] = {}
        self._base_offset = 0
        self._batches: list[bytes] = []
        self._aborted: list[AbortedTxn] = []

    def write(self, producer_id: int, count: int, *, transactional: bool = True) -> list[int]:
        """Appends one batch of `count` records, `value OFFSET` each. Returns their offsets."""
        base, sequence = self.end_offset, self._sequences.get(producer_id, 0)
        records = [(BASE_MS + at, b"k", f"value {at}".encode(), ()) for at in range(base, base + count)]
        self._sequences[producer_id] = sequence + count
        made = encode_batch(
            records,
            base_offset=base,
            leader_epoch=EPOCH,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )
        self._append(made)
        self.producers.apply(self._walk(made), 0)
        return list(range(base, base + count))

    def end(self, producer_id: int, *, commit: bool) -> int:
        """Appends the marker that ends the producer's transaction. Returns its offset."""
        marker = self.end_offset
        stamped = encode_marker(TransactionMarker(producer_id, 0, commit, 0), BASE_MS + marker)
        stamp(stamped, 0, marker, EPOCH)
        made = bytes(stamped)
        self._append(made)
        aborted = self.producers.end_transaction(self._walk(made), made)
        if aborted is not None:
            self._aborted.append(aborted)
        return marker

    def roll(self) -> Segment:
        """Returns what was appended since the last call as a closed segment."""
        index = b"".join(each.encode() for each in self._aborted)
        closed = Segment(
            self._base_offset, self.end_offset, b"".join(self._batches), index, self.producers.encode_snapshot()
        )
        self._base_offset, self._batches, self._aborted = self.end_offset, [], []
        return closed

    def _append(self, batch: bytes) -> None:
        self._batches.append(batch)
        self.end_offset = self._walk(batch).last_offset + 1

    @staticmethod
    def _walk(batch: bytes) -> WalkedBatch:
        return walk(batch).batches[0]


def topic_id(number: int) -> TopicId:
    """A valid topic id that is different for each number."""
    return TopicId(f"{number:021d}A")


def create_topic(url: str, name: str, identity: TopicId, partitions: int) -> None:
    """Adds the topic to the metadata; the first one creates the cluster."""
    assignments = tuple((0,) for _ in range(partitions))
    _commit(url, TopicCreated(name, identity, assignments, {}, BASE_MS))


def delete_topic(url: str, identity: TopicId) -> None:
    """Frees the topic's name."""
    _commit(url, TopicDeleted(identity, BASE_MS))


def upload(url: str, name: str, partition_id: PartitionId, segments: Sequence[Segment]) -> None:
    """Uploads objects, then the manifest that names them."""

    async def run() -> None:
        store = open_store(url, SystemClock(), SystemRng())
        manifests = ManifestStore(store, SystemClock(), SystemRng(), Metrics())
        await manifests.take_over(partition_id, name, EPOCH)
        for segment in segments:
            entry = await _upload(store, partition_id, segment)
            await manifests.change(partition_id, name, EPOCH, lambda manifest, _, entry=entry: manifest.add(entry))  # type: ignore[misc]
        await store.close()

    asyncio.run(run())


def expire(url: str, name: str, partition_id: PartitionId, offset: int) -> None:
    """Moves the log start of the partition to `offset`, as retention does; older objects are deleted."""

    def advance(manifest: Manifest, opened: Submanifests) -> Manifest:
        return manifest.advance_start(offset, opened)

    async def run() -> None:
        store = open_store(url, SystemClock(), SystemRng())
        manifests = ManifestStore(store, SystemClock(), SystemRng(), Metrics())
        before = await manifests.load(partition_id)
        after = await manifests.change(partition_id, name, EPOCH, advance)
        assert before is not None
        await store.delete([e.key for e in before.entries if e not in after.entries])
        await store.close()

    asyncio.run(run())


def clean(url: str, name: str, partition_id: PartitionId) -> Manifest:
    """Cleans all segments of a compacted partition, as its leader does; replaced objects are deleted at once."""

    async def run_inline(call: Callable[[], T]) -> T:
        return call()

    async def admit(_: int) -> None:
        return None

    async def run() -> Manifest:
        clock, store = SystemClock(), open_store(url, SystemClock(), SystemRng())
        manifests = ManifestStore(store, clock, SystemRng(), Metrics())
        reader = ColdReader(store, manifests, ChunkCache(Metrics()), Metrics(), clock)
        collector = Collector(store, manifests, lambda _: frozenset(), clock, Metrics(), grace_ms=0)
        cleaner = ColdCleaner(store, manifests, reader, collector, SystemRng(), Metrics())
        manifest = await manifests.take_over(partition_id, name, EPOCH)
        resources = CleanerResources(run_inline, admit, 1 << 20, 1 << 19, 0.9, b"seed")
        config = TopicConfig(cleanup_policy=("compact",))
        result = await cleaner.clean(manifest, EPOCH, config, clock.wall_ms(), resources)
        assert result.is_whole
        await collector.delete_expired()
        reader.close()
        await store.close()
        return result.manifest

    return asyncio.run(run())


def segments(
    rows: Sequence[ProducerRecord],
    *,
    base_offset: int = 0,
    rows_per_batch: int = 100,
    batches_per_segment: int = 10,
    codec: Codec = Codec.ZSTD,
) -> Iterator[Segment]:
    """Returns these rows in batches and segments, from `base_offset` on."""
    step = rows_per_batch * batches_per_segment
    for first in range(0, len(rows), step):
        share = rows[first : first + step]
        log = b"".join(
            encode_batch(
                share[at : at + rows_per_batch], base_offset=base_offset + first + at, leader_epoch=EPOCH, codec=codec
            )
            for at in range(0, len(share), rows_per_batch)
        )
        yield Segment(base_offset + first, base_offset + first + len(share), log)


async def _upload(store: ObjectStore, partition_id: PartitionId, segment: Segment) -> SegmentEntry:
    batches = walk(segment.log).batches
    facts = SegmentFacts(
        segment.base_offset,
        segment.next_offset,
        batches[0].base_timestamp,
        max(batch.max_timestamp for batch in batches),
        sum(batch.count for batch in batches),
        len(segment.log),
        crc32c(segment.log),
    )
    offset_index = b"".join(struct.pack(">ii", b.base_offset - segment.base_offset, b.position) for b in batches)
    named = [b for b in batches if b.max_timestamp >= 0]
    time_index = b"".join(struct.pack(">qi", b.max_timestamp, b.last_offset - segment.base_offset) for b in named)
    sections = {
        SectionKind.OFFSET_INDEX: offset_index,
        SectionKind.TIME_INDEX: time_index,
        SectionKind.TXN_INDEX: segment.txn_index,
        SectionKind.PRODUCERS: segment.producers,
        SectionKind.LINEAGE: encode_lineage(LINEAGE),
    }
    tail, refs = build_trailer(partition_id, EPOCH, facts, sections)
    unique = f"{SystemRng().stream('fill').getrandbits(128):032x}"
    key = segment_key(partition_id, segment.base_offset, EPOCH, unique)
    await store.upload(key, [segment.log, tail])
    return SegmentEntry(
        key=key,
        base_offset=facts.base_offset,
        next_offset=facts.next_offset,
        leader_epoch=EPOCH,
        lineage=LINEAGE,
        base_timestamp=facts.base_timestamp,
        max_timestamp=facts.max_timestamp,
        record_count=facts.record_count,
        log_bytes=facts.log_bytes,
        log_crc=facts.crc,
        object_bytes=len(segment.log) + len(tail),
        sections=refs,
        uploaded_ms=BASE_MS,
    )


def _commit(url: str, change: TopicCreated | TopicDeleted) -> None:
    async def run() -> None:
        store = open_store(url, SystemClock(), SystemRng())
        log = MetadataLog(store, SystemClock(), SystemRng(), Metrics())
        await log.load_or_create_format()
        await log.take_over(await log.load(), 0, "test")
        await log.append([change])
        await store.close()

    asyncio.run(run())

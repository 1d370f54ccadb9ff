"""The clean of the cold part of a compacted topic: new objects first, then one change of the manifest, then garbage.

Keeps I26. The first pass puts the last offset of each key of the dirty part into a bounded map. The second pass reads
all segments up to the end of the map, oldest first, and writes runs of them again without what is superseded. The
manifest takes runs in that order. Therefore an older record of a key is never there without the tombstone that deleted
it. A clean that ends early has changed nothing, or some of the oldest runs; the next one begins again where the last
whole one ended.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from tiered.cold.cleaned_object import CleanedObject, CleanedRun, split_batches
from tiered.cold.collector import Collector
from tiered.cold.layout import SectionKind, segment_key, submanifest_key
from tiered.cold.manifest import Manifest, SegmentEntry, Submanifests
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.reader import ColdReader
from tiered.cold.verified_put import put_verified
from tiered.compaction.batch_filter import CleanRules, LastRecord, clean_batches, put_batches
from tiered.compaction.cleanable_range import (
    CleanableRange,
    CompactionConfig,
    LogEnds,
    SegmentFacts,
    find_cleanable,
    group_segments,
)
from tiered.compaction.transactions import CleanedTransactions
from tiered.errors import Fenced
from tiered.hot.aborted_txns import MAX_OFFSET, AbortedTxn, decode_aborted_txns
from tiered.hot.checkpoints import encode_lineage
from tiered.hot.producer_state import ProducerStates
from tiered.ids import PartitionId
from tiered.metrics import Metrics
from tiered.ports import Clock, ObjectStore, Rng
from tiered.records.key_offset_map import SEED_BYTES, KeyOffsetMap
from tiered.records.model import HEADER_BYTES, WalkedBatch
from tiered.records.native import walk
from tiered.records.pure_compact import empty_batch

log = logging.getLogger(__name__)

OBJECT_BYTES = 64 << 20
"""Limit on the log part of a cleaned object, which is in memory as a whole until it is put."""
CHANGE_BYTES = 512 << 20
"""Limit on the bytes of new objects that one manifest change names, and that are garbage if it fails."""
STEP_BYTES = 512 << 10
"""Bytes that one turn of the event loop cleans."""

Pace = Callable[[int], Awaitable[None]]
"""Waits until so many more bytes may be read or written. It also lets other tasks run."""


class CleanConfig(CompactionConfig, Protocol):
    """The topic settings of a clean."""

    @property
    def delete_retention_ms(self) -> int: ...
    @property
    def index_interval_bytes(self) -> int: ...


@dataclass
class CleanResult:
    """The figures of one clean, as far as it came, and the manifest after it.

    `is_whole` is false if the log start or another leader moved segments of it: then the next clean begins again.
    """

    manifest: Manifest
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    is_whole: bool = False


class _Replacement(NamedTuple):
    """A run of segments, and the entries of the objects that take its place."""

    replaced: Sequence[SegmentEntry]
    successors: Sequence[SegmentEntry]


@dataclass
class _Clean:
    """The state of one clean."""

    epoch: int
    config: CleanConfig
    now_ms: int
    pace: Pace
    result: CleanResult
    transactions: CleanedTransactions[AbortedTxn] = field(default_factory=CleanedTransactions)
    pending: list[_Replacement] = field(default_factory=list)
    pending_bytes: int = 0

    @property
    def manifest(self) -> Manifest:
        return self.result.manifest


class ColdCleaner:
    """Cleans for all partitions of one broker. One call at a time per partition."""

    def __init__(
        self,
        store: ObjectStore,
        manifests: ManifestStore,
        reader: ColdReader,
        collector: Collector,
        clock: Clock,
        rng: Rng,
        metrics: Metrics,
        *,
        object_bytes: int = OBJECT_BYTES,
    ) -> None:
        self._store = store
        self._manifests = manifests
        self._reader = reader
        self._collector = collector
        self._clock = clock
        self._random = rng.stream("cold cleaner")
        self._object_bytes = object_bytes
        self._keys_in_flight: dict[PartitionId, set[str]] = {}
        self._bytes = metrics.counter(
            "tiered_cold_clean_bytes_total",
            "Bytes of compacted topics that cleans read and wrote in the bucket",
            ("op",),
        )
        self._cleans = metrics.counter(
            "tiered_cold_cleans_total", "Cleans of compacted partitions in the bucket, by outcome", ("outcome",)
        )
        for outcome in ("whole", "cut", "failed"):
            self._cleans.inc(0, outcome)  # a rate over time needs the sample before the first one

    def keys_in_flight(self, partition_id: PartitionId) -> frozenset[str]:
        """Returns the keys of objects that are put, or that an undecided manifest change names: they are no garbage."""
        return frozenset(self._keys_in_flight.get(partition_id, ()))

    def forget(self, partition_id: PartitionId) -> None:
        """Drops the state of a partition that is led elsewhere: its next leader decides what was undecided."""
        self._keys_in_flight.pop(partition_id, None)

    async def find_cleanable(self, manifest: Manifest, config: CompactionConfig, now_ms: int) -> CleanableRange:
        """Returns what a clean may read. Raises `Unavailable` and `Corrupt` from sub-manifests."""
        return _find_cleanable(
            [each async for each in self._manifests.list_segments(manifest)], manifest, config, now_ms
        )

    async def clean(
        self, manifest: Manifest, epoch: int, config: CleanConfig, now_ms: int, memory_bytes: int, pace: Pace
    ) -> CleanResult:
        """Cleans the segments of `manifest`, which must have been taken over under `epoch`.

        Raises `Fenced` (step down), `Unavailable` and `Corrupt`. A later clean does again what is not in the manifest.
        """
        if manifest.leader_epoch != epoch:
            raise Fenced(f"{manifest.partition_id}: the manifest is under epoch {manifest.leader_epoch}, not {epoch}")
        if self.keys_in_flight(manifest.partition_id):
            manifest = await self.settle(manifest, epoch)
        clean = _Clean(epoch, config, now_ms, pace, CleanResult(manifest))
        try:
            await self._clean(clean, memory_bytes)
        except BaseException:
            # Objects that no change names are orphans. Keys of an undecided change stay in flight until `settle`.
            self._manifests.mark_orphans(manifest.partition_id)
            self._cleans.inc(1, "failed")
            raise
        finally:
            self._bytes.inc(clean.result.bytes_read, "read")
            self._bytes.inc(clean.result.bytes_written, "write")
        self._cleans.inc(1, "whole" if clean.result.is_whole else "cut")
        return clean.result

    async def settle(self, manifest: Manifest, epoch: int) -> Manifest:
        """Returns the manifest once an earlier change with unknown outcome is decided."""
        written = await self._manifests.take_over(manifest.partition_id, manifest.topic, epoch)
        self._keys_in_flight.pop(manifest.partition_id, None)
        self._manifests.mark_orphans(manifest.partition_id)
        return written

    async def _clean(self, clean: _Clean, memory_bytes: int) -> None:
        manifest = clean.manifest
        entries = [each async for each in self._manifests.list_segments(manifest)]
        cleanable = _find_cleanable(entries, manifest, clean.config, clean.now_ms)
        if not cleanable.dirty_bytes:
            clean.result.is_whole = True
            return
        seed = self._random.getrandbits(8 * SEED_BYTES).to_bytes(SEED_BYTES, "big")
        key_map = KeyOffsetMap(memory_bytes, seed)
        try:
            clean_to = await self._map_keys(clean, entries, cleanable, key_map)
            covered = [each for each in entries if each.base_offset < clean_to]
            clean.transactions = CleanedTransactions(await self._list_aborted(covered, 0))
            rules = await self._make_rules(clean, entries[-1])
            for run in self._group(clean, covered, clean_to):
                await self._clean_run(clean, run, key_map, rules)
                if clean.pending_bytes >= CHANGE_BYTES and not await self._replace(clean):
                    return
            clean.result.is_whole = await self._replace(clean, clean_to)
        finally:
            key_map.close()

    async def _map_keys(
        self, clean: _Clean, entries: Sequence[SegmentEntry], cleanable: CleanableRange, key_map: KeyOffsetMap
    ) -> int:
        """Puts the keys of the dirty part into the map. Returns the offset up to which the map goes: the end of the
        dirty part, of its last segment that fits, or of the first records that fit."""
        begin, end = cleanable.first_dirty, cleanable.first_uncleanable
        dirty = [each for each in entries if each.next_offset > begin and each.next_offset <= end]
        transactions = CleanedTransactions(await self._list_aborted(dirty, begin))
        async with aclosing(self._read(clean, max(begin, clean.manifest.log_start_offset), end)) as pieces:
            async for data, _ in pieces:
                _, is_full = put_batches(key_map, data, transactions, from_offset=begin)
                if is_full:
                    whole = [each.next_offset for each in dirty if each.next_offset <= key_map.latest_offset + 1]
                    return whole[-1] if whole else key_map.latest_offset + 1
        return end

    async def _make_rules(self, clean: _Clean, newest: SegmentEntry) -> CleanRules:
        """Returns the rules of the clean. The producers are those of the cold end: a log may restart there."""
        producers = (await self._reader.read_sections(newest)).producers
        states = ProducerStates.from_snapshot(producers, newest.next_offset, where=newest.key) if producers else None
        last = {
            each.producer_id: LastRecord(each.batches[-1].last_offset if each.batches else -1, each.epoch)
            for each in (states.list_producers() if states is not None else ())
        }
        return CleanRules.of(clean.now_ms, clean.config.delete_retention_ms, -1, last)

    def _group(self, clean: _Clean, covered: Sequence[SegmentEntry], clean_to: int) -> list[list[SegmentEntry]]:
        by_offset = {each.base_offset: each for each in covered}
        segment_bytes = min(clean.config.segment_bytes, self._object_bytes)
        groups = group_segments(
            [_facts(each) for each in covered], clean_to, segment_bytes, clean.config.segment_index_bytes
        )
        return [[by_offset[each.base_offset] for each in group] for group in groups]

    async def _clean_run(
        self, clean: _Clean, replaced: Sequence[SegmentEntry], key_map: KeyOffsetMap, rules: CleanRules
    ) -> None:
        """Puts the objects of a run of segments, unless its only segment stays as it is."""
        run = CleanedRun(replaced, await self._reader.read_sections(replaced[-1]))
        rules = replace(rules, upper_bound=run.next_offset)
        made, successors = CleanedObject(run.base_offset, clean.config.index_interval_bytes), list[SegmentEntry]()
        last_header = b""
        async with aclosing(self._read(clean, run.base_offset, run.next_offset)) as pieces:
            async for data, batches in pieces:
                at = batches[-1].position - batches[0].position
                last_header = bytes(data[at : at + HEADER_BYTES])
                cleaned = clean_batches(key_map, data, clean.transactions, rules)
                clean.result.records_read += cleaned.records_read
                clean.result.records_kept += cleaned.records_kept
                for part, batches in split_batches(cleaned.data, self._object_bytes):
                    if made.data and len(made.data) + len(part) > self._object_bytes:
                        successors.append(await self._put(clean, run, made, batches[0].base_offset))
                        made = CleanedObject(batches[0].base_offset, clean.config.index_interval_bytes)
                    made.add(part, batches)
        if not successors and run.is_unchanged(made.data):
            return
        if not made.data:  # offsets above the last batch have no record, so no batch ends at the end of the run
            empty = empty_batch(last_header, 0)
            made.add(empty, walk(empty).batches)
        successors.append(await self._put(clean, run, made, run.next_offset))
        clean.pending.append(_Replacement(replaced, successors))
        clean.pending_bytes += sum(each.object_bytes for each in successors)

    async def _put(self, clean: _Clean, run: CleanedRun, made: CleanedObject, next_offset: int) -> SegmentEntry:
        partition_id = clean.manifest.partition_id
        kept = clean.transactions.kept
        aborted = [each for each in kept if made.base_offset <= each.last_offset < next_offset]
        key = segment_key(partition_id, made.base_offset, clean.epoch, self._new_unique())
        lineage = encode_lineage(tuple(row for row in run.sections.lineage if row[1] < next_offset))
        entry, trailer = made.finish(partition_id, clean.epoch, key, run, next_offset, aborted, lineage, clean.now_ms)
        self._keys_in_flight.setdefault(partition_id, set()).add(key)
        await clean.pace(entry.object_bytes)
        clean.result.bytes_written += await put_verified(self._store, key, made.data, trailer)
        return entry

    async def _replace(self, clean: _Clean, clean_to: int = -1) -> bool:
        """Names the objects of the pending runs in the manifest, and where the clean ended if it is whole.

        Returns False if the manifest does not name all the segments any more: then the objects are garbage.
        """
        before = clean.manifest
        partition_id, pending, clean.pending, clean.pending_bytes = before.partition_id, clean.pending, [], 0
        is_made = False

        def replace_runs(current: Manifest, submanifests: Submanifests) -> Manifest:
            nonlocal before, is_made
            before, made = current, current
            for each in pending:
                new = made.replace_segments(
                    each.replaced, each.successors, submanifests,
                    lambda base: submanifest_key(partition_id, base, clean.epoch, self._new_unique()),
                )  # fmt: skip
                if new is made:
                    is_made = False
                    return current
                made = new
            is_made = True
            return replace(made, clean_to=clean_to, cleaned_ms=clean.now_ms) if clean_to >= 0 else made

        written = await self._manifests.change(partition_id, before.topic, clean.epoch, replace_runs)
        self._keys_in_flight.pop(partition_id, None)
        clean.result.manifest = written
        if not is_made:
            self._manifests.mark_orphans(partition_id)
            return False
        runs = [(each.replaced[0].base_offset, each.replaced[-1].next_offset) for each in pending]
        await self._collector.delete_replaced(before, runs)
        for each in pending:
            log.info(
                "segments are cleaned partition=%s base=%d next=%d segments=%d bytes=%d from=%d",
                written.tp, each.replaced[0].base_offset, each.replaced[-1].next_offset, len(each.replaced),
                sum(one.log_bytes for one in each.successors), sum(one.log_bytes for one in each.replaced),
            )  # fmt: skip
        return True

    async def _list_aborted(self, entries: Sequence[SegmentEntry], start: int) -> list[AbortedTxn]:
        """Returns the aborted transactions of these segments that end at or above `start`, each once."""
        found: dict[AbortedTxn, None] = {}
        for entry in entries:
            if any(ref.kind == SectionKind.TXN_INDEX for ref in entry.sections):
                index = (await self._reader.read_sections(entry)).txn_index
                found.update(dict.fromkeys(decode_aborted_txns(index, begin=0, end=MAX_OFFSET, where=entry.key)))
        return [each for each in found if each.last_offset >= start]

    async def _read(self, clean: _Clean, start: int, end: int) -> AsyncGenerator[tuple[memoryview, list[WalkedBatch]]]:
        """Yields whole batches of a part of the log, a step at a time."""
        manifest = clean.manifest
        pieces = self._reader.iterate(manifest.partition_id, start, end, manifest=manifest, keeps_manifest=True)
        async with aclosing(pieces):
            async for piece in pieces:
                for data, batches in split_batches(piece.data, STEP_BYTES):
                    await clean.pace(len(data))
                    clean.result.bytes_read += len(data)
                    yield data, batches

    def _new_unique(self) -> str:
        return f"{self._random.getrandbits(128):032x}"


def _find_cleanable(
    entries: Sequence[SegmentEntry], manifest: Manifest, config: CompactionConfig, now_ms: int
) -> CleanableRange:
    end = manifest.cold_end_offset
    ends = LogEnds(manifest.log_start_offset, manifest.clean_to, end, end, end)
    return find_cleanable([_facts(each) for each in entries], ends, config, now_ms)


def _facts(entry: SegmentEntry) -> SegmentFacts:
    created_ms = entry.base_timestamp if 0 <= entry.base_timestamp < entry.uploaded_ms else entry.uploaded_ms
    index_bytes = max((ref.length for ref in entry.sections if ref.kind <= SectionKind.TIME_INDEX), default=0)
    return SegmentFacts(
        entry.base_offset, entry.next_offset, entry.log_bytes, entry.max_timestamp, created_ms, index_bytes
    )

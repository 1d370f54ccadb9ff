"""The clean of the cold part of a compacted topic: new objects first, then one change of the manifest, then garbage.

Keeps I26 and I32.

A clean puts the last offset of each key of the dirty part into a bounded map. Then it reads all
segments up to the end of the map, oldest first, and writes runs of them again without what is superseded. The manifest
takes runs in that order. Therefore an older record of a key is never there without the tombstone that deleted it. A
clean that ends early has changed nothing, or some of the oldest runs; the next one begins again where the last whole
one ended.

Uploads, expiry and sweeps of the partition go on meanwhile. Objects that a clean has put are no garbage until it ends.
If a change of the manifest stays undecided, they are none until `settle`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from tiered.cold.cleaned_object import CleanedObject, CleanedRun, split_batches
from tiered.cold.collector import Collector
from tiered.cold.layout import SectionKind, SegmentSections, segment_key, submanifest_key
from tiered.cold.manifest import Manifest, SegmentEntry, Submanifests
from tiered.cold.manifest_store import ManifestStore, ObjectMissing
from tiered.cold.reader import ColdReader
from tiered.cold.verified_put import put_verified
from tiered.compaction.batch_filter import (
    NO_HORIZON_PASSED,
    CleanedBatches,
    CleanRules,
    LastRecord,
    clean_batches,
    forget_horizons,
    put_batches,
)
from tiered.compaction.cleanable_range import (
    CleanableRange,
    CleanableSegment,
    CompactionConfig,
    LogEnds,
    find_cleanable,
    group_segments,
)
from tiered.compaction.transactions import CleanedTransactions, merge_indexes
from tiered.errors import Corrupt, Fenced, Refused, Unavailable
from tiered.hot.checkpoints import encode_lineage
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.hot.log_cleaning import CleanerResources
from tiered.ids import PartitionId
from tiered.metrics import Metrics
from tiered.ports import FileSlice, ObjectStore, Rng
from tiered.producers.aborted_txns import MAX_OFFSET, AbortedTxn, decode_aborted_txns
from tiered.producers.limits import ProducerLimits
from tiered.producers.states import ProducerStates
from tiered.records.key_offset_map import KeyOffsetMap
from tiered.records.model import HEADER_BYTES, WalkedBatch
from tiered.records.native import walk
from tiered.records.pure_compact import empty_batch

log = logging.getLogger(__name__)

OBJECT_BYTES = 64 << 20
"""Limit on the log part of a cleaned object, which is in memory as a whole until it is put."""
CHANGE_BYTES = 512 << 20
"""Limit on the bytes of new objects that one manifest change names, and that are garbage if it fails."""
INLINE_BYTES = 64 << 10
"""Size of a step that runs on the event loop. A thread runs a larger one."""

T = TypeVar("T")


class LocalLog(Protocol):
    """The log on the leader's disk. It has the newest cold batches too, as they were uploaded: to read them there costs
    no request."""

    @property
    def local_start_offset(self) -> int: ...
    def read(self, offset: int, max_bytes: int, *, end_offset: int) -> FileSlice | None: ...


class CleanConfig(CompactionConfig, Protocol):
    """The topic settings of a clean."""

    @property
    def delete_retention_ms(self) -> int: ...
    @property
    def index_interval_bytes(self) -> int: ...


@dataclass
class ColdCleanResult:
    """The figures of one clean, as far as it came, and the manifest after it.

    It took `bytes_before` of log to `bytes_after`. `bytes_read` and `bytes_written` are what it cost in the bucket, and
    `bytes_local` those that it read on the disk instead. `is_whole` is false if the log start or another leader moved
    segments of it: then the next clean begins again. `is_map_full`: the map had no room for more keys, and a next clean
    goes on. `unopened` is the first batch that stays as it is because it cannot be opened within the bounds, "" for
    none.
    """

    manifest: Manifest
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_local: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_read: int = 0
    records_kept: int = 0
    is_map_full: bool = False
    is_whole: bool = False
    unopened: str = ""

    @property
    def clean_to(self) -> int:
        """Returns the offset below which all is clean."""
        return self.manifest.clean_to


class _Step(NamedTuple):
    """Whole batches that were checked, from the object or file `where`."""

    data: memoryview
    batches: list[WalkedBatch]
    where: str

    @property
    def next_offset(self) -> int:
        return self.batches[-1].last_offset + 1


class _Replacement(NamedTuple):
    """A run of segments, and the entries of the objects that take its place."""

    replaced: Sequence[SegmentEntry]
    successors: Sequence[SegmentEntry]


@dataclass
class _Clean:
    """The state of one clean. `keys` are those of the objects that it has put and no manifest names yet.

    From `raw_from` on the bucket has what was uploaded, so the `local` log may have the same batches.
    """

    epoch: int
    config: CleanConfig
    now_ms: int
    resources: CleanerResources
    result: ColdCleanResult
    keys: set[str]
    local: LocalLog | None
    on_change: Callable[[Manifest], None]
    disk_start: int
    """The disk of the leader serves records from here on, as they were produced. The bucket drops no tombstone there,
    and sets no delete horizon: a reader that has the older value from the disk may go on in the bucket."""
    raw_from: int = MAX_OFFSET
    first_dirty: int = 0
    """The `clean_to` of the manifest when the clean began."""
    newest: tuple[str, SegmentSections] | None = None
    """The key and the sections of the newest segment, whose producers the rules need. Its run needs them again."""
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    transactions: CleanedTransactions[AbortedTxn] = field(default_factory=CleanedTransactions)
    pending: list[_Replacement] = field(default_factory=list)
    pending_bytes: int = 0
    is_change_open: bool = False
    """True while the outcome of a manifest change is unknown."""

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
        rng: Rng,
        metrics: Metrics,
        *,
        object_bytes: int = OBJECT_BYTES,
    ) -> None:
        self._store = store
        self._manifests = manifests
        self._reader = reader
        self._collector = collector
        self._random = rng.stream("cold cleaner")
        self._object_bytes = object_bytes
        self._keys_in_flight: dict[PartitionId, set[str]] = {}
        self._running: dict[PartitionId, set[str]] = {}
        """The keys of each clean that runs. After a change of the leader the one before it may still run too."""
        self._bytes = metrics.counter(
            "tiered_cold_clean_bytes_total",
            "Bytes of compacted topics that cleans read and wrote in the bucket, and read on the disk instead",
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
        """Returns what a clean may read. Reads no sub-manifest of the clean part.

        Raises `Unavailable` and `Corrupt` from the others.
        """
        first_dirty = max(manifest.clean_to, manifest.log_start_offset)
        dirty = [_facts(each) async for each in self._manifests.list_segments(manifest, first_dirty)]
        clean_bytes = manifest.cold_bytes - sum(each.size for each in dirty)
        if clean_bytes > 0:
            begin, end = manifest.log_start_offset, dirty[0].base_offset if dirty else first_dirty
            dirty.insert(0, CleanableSegment(begin, end, clean_bytes, -1, -1))
        return _find_cleanable(dirty, manifest, config, now_ms)

    async def clean(
        self,
        manifest: Manifest,
        epoch: int,
        config: CleanConfig,
        now_ms: int,
        resources: CleanerResources,
        local: LocalLog | None = None,
        *,
        on_change: Callable[[Manifest], None] = lambda _: None,
    ) -> ColdCleanResult:
        """Cleans the segments of `manifest`, which must have been taken over under `epoch`. Reads batches of the dirty
        part from the `local` log if it has them. `on_change` gets the manifest after each change of it: what an older
        one names is deleted while the clean goes on.

        Raises `Fenced` (step down), `Unavailable` and `Corrupt`. A later clean does again what is not in the manifest.
        """
        partition_id = manifest.partition_id
        if manifest.leader_epoch != epoch:
            raise Fenced(f"{partition_id}: the manifest is under epoch {manifest.leader_epoch}, not {epoch}")
        manifest = await self.settle(manifest, epoch)
        keys = self._keys_in_flight[partition_id] = set()
        disk_start = local.local_start_offset if local is not None else MAX_OFFSET
        clean = _Clean(
            epoch, config, now_ms, resources, ColdCleanResult(manifest), keys, local, on_change, disk_start,
        )  # fmt: skip
        self._running[partition_id] = keys
        outcome = "failed"
        try:
            await self._clean_while_named(clean)
            outcome = "whole" if clean.result.is_whole else "cut"
        finally:
            if self._running.get(partition_id) is keys:
                del self._running[partition_id]
            if self._keys_in_flight.get(partition_id) is keys:  # else the partition is led elsewhere
                if keys:
                    self._manifests.mark_orphans(partition_id)
                if not clean.is_change_open:
                    self._keys_in_flight.pop(partition_id)  # no change will name these objects
            self._bytes.inc(clean.result.bytes_read, "read")
            self._bytes.inc(clean.result.bytes_written, "write")
            self._bytes.inc(clean.result.bytes_local, "local")
            self._cleans.inc(1, outcome)
        return clean.result

    async def settle(self, manifest: Manifest, epoch: int) -> Manifest:
        """Returns the manifest once an earlier change with unknown outcome is decided. Objects that the manifest does
        not name then are garbage.

        Does nothing while a clean runs, or if no change is undecided. Raises `Fenced` and `Unavailable`.
        """
        partition_id = manifest.partition_id
        keys = self._keys_in_flight.get(partition_id)
        if keys is None or self._running.get(partition_id) is keys:
            return manifest
        written = await self._manifests.take_over(partition_id, manifest.topic, epoch)
        if self._keys_in_flight.get(partition_id) is keys:
            self._keys_in_flight.pop(partition_id)
        return written

    async def _clean_while_named(self, clean: _Clean) -> None:
        """Ends the clean early if an object is gone that the manifest does not name any more: it has expired."""
        try:
            await self._clean(clean)
        except ObjectMissing as error:
            manifest = clean.manifest
            try:
                await self._reader.find_newer_manifest(manifest.partition_id, manifest.log_start_offset, error)
            except Refused:  # the log start has moved
                return

    async def _clean(self, clean: _Clean) -> None:
        manifest = clean.manifest
        entries = [each async for each in self._manifests.list_segments(manifest)]
        cleanable = _find_cleanable([_facts(each) for each in entries], manifest, clean.config, clean.now_ms)
        if not cleanable.dirty_bytes:
            clean.result.is_whole = True
            return
        clean.first_dirty = max(manifest.clean_to, 0)
        clean.raw_from = _find_raw_part(entries, clean.first_dirty)
        clean.epochs = LeaderEpochs(row for each in entries for row in each.lineage)
        await self._apply_keys(clean, entries, cleanable)

    async def _apply_keys(self, clean: _Clean, entries: Sequence[SegmentEntry], cleanable: CleanableRange) -> None:
        """Applies the keys of the dirty part to all segments, as far as the map has room for them."""
        resources = clean.resources
        memory = resources.size_map(cleanable.dirty_bytes, cleanable.first_uncleanable - cleanable.first_dirty)
        key_map = KeyOffsetMap(memory, resources.seed, resources.load_factor)
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
            clean.result.unopened = clean.result.unopened or key_map.unopened
            key_map.close()

    async def _map_keys(
        self, clean: _Clean, entries: Sequence[SegmentEntry], cleanable: CleanableRange, key_map: KeyOffsetMap
    ) -> int:
        """Puts the keys of the dirty part into the map. Returns the offset up to which the map goes: the end of the
        dirty part, of its last segment that fits, or of the first records that fit."""
        begin, end = cleanable.first_dirty, cleanable.first_uncleanable
        dirty = [each for each in entries if each.next_offset > begin and each.next_offset <= end]
        transactions = CleanedTransactions(await self._list_aborted(dirty, begin))
        async with aclosing(self._read(clean, begin, end)) as steps:
            async for step in steps:
                put = partial(put_batches, key_map, step.data, transactions, from_offset=begin)
                _, clean.result.is_map_full = await _run_step(clean, step, put)
                if clean.result.is_map_full:
                    whole = [each.next_offset for each in dirty if each.next_offset <= key_map.latest_offset + 1]
                    return whole[-1] if whole else key_map.latest_offset + 1
        return end

    async def _make_rules(self, clean: _Clean, newest: SegmentEntry) -> CleanRules:
        """Returns the rules of the clean. The producers are those of the cold end: a log may restart there."""
        sections = await self._reader.read_sections(newest)
        producers, clean.newest = sections.producers, (newest.key, sections)
        limits = ProducerLimits(sys.maxsize, sys.maxsize)  # the leader had its own, which may be any
        states = ProducerStates()
        if producers:
            states = ProducerStates.from_snapshot(producers, newest.next_offset, limits, where=newest.key)
        last = {
            each.producer_id: LastRecord(each.batches[-1].last_offset if each.batches else -1, each.epoch)
            for each in states.list_producers()
        }
        return CleanRules.of(clean.now_ms, clean.config.delete_retention_ms, -1, last)

    def _group(self, clean: _Clean, covered: Sequence[SegmentEntry], clean_to: int) -> list[list[SegmentEntry]]:
        by_offset = {each.base_offset: each for each in covered}
        segment_bytes = min(clean.config.segment_size, self._object_bytes)
        groups = group_segments(
            [_facts(each) for each in covered], clean_to, segment_bytes, clean.config.segment_index_bytes
        )
        return [[by_offset[each.base_offset] for each in group] for group in groups]

    async def _clean_run(
        self,
        clean: _Clean,
        replaced: Sequence[SegmentEntry],
        key_map: KeyOffsetMap,
        rules: CleanRules,
    ) -> None:
        """Puts the objects of a run of segments, unless its only segment stays as it is. A run stays as it is if the
        log start has passed its last batch."""
        if replaced[-1].next_offset <= clean.manifest.log_start_offset:
            return
        if clean.newest is not None and clean.newest[0] == replaced[-1].key:
            sections = clean.newest[1]
        else:
            sections = await self._reader.read_sections(replaced[-1])
        run = CleanedRun(replaced, sections)
        rules = replace(rules, upper_bound=run.next_offset)
        bytes_before = sum(each.log_bytes for each in replaced)
        made, successors = self._begin_object(clean, run.base_offset), list[SegmentEntry]()
        last_header = b""
        async with aclosing(self._read(clean, run.base_offset, run.next_offset)) as steps:
            async for step in steps:
                at = step.batches[-1].position - step.batches[0].position
                last_header = bytes(step.data[at : at + HEADER_BYTES])
                work = partial(_clean_step, step, key_map, clean, rules)
                cleaned = await _run_step(clean, step, work)
                clean.result.records_read += cleaned.records_read
                clean.result.records_kept += cleaned.records_kept
                stayed = walk(cleaned.data, check_crc=False).batches
                for part, batches in split_batches(cleaned.data, stayed, self._object_bytes):
                    if made.data and len(made.data) + len(part) > self._object_bytes:
                        successors.append(await self._put(clean, run, made, batches[0].base_offset))
                        made = self._begin_object(clean, batches[0].base_offset)
                    made.add(part, batches)
        if not last_header:
            return
        clean.result.bytes_before += bytes_before
        if not successors and await _run(clean, len(made.data), partial(run.is_unchanged, made.data)):
            clean.result.bytes_after += bytes_before
            return
        if not made.data:  # offsets above the last batch have no record, so no batch ends at the end of the run
            empty = empty_batch(last_header, 0)
            made.add(empty, walk(empty).batches)
        successors.append(await self._put(clean, run, made, run.next_offset))
        clean.result.bytes_after += sum(each.log_bytes for each in successors)
        clean.pending.append(_Replacement(replaced, successors))
        clean.pending_bytes += sum(each.object_bytes for each in successors)

    def _begin_object(self, clean: _Clean, base_offset: int) -> CleanedObject:
        return CleanedObject(base_offset, clean.config.index_interval_bytes)

    async def _put(self, clean: _Clean, run: CleanedRun, made: CleanedObject, next_offset: int) -> SegmentEntry:
        partition_id = clean.manifest.partition_id
        kept = clean.transactions.kept
        aborted = [each for each in kept if made.base_offset <= each.last_offset < next_offset]
        key = segment_key(partition_id, made.base_offset, clean.epoch, self._new_unique())
        lineage = encode_lineage(tuple(row for row in run.sections.lineage if row[1] < next_offset))
        finish = partial(made.finish, partition_id, clean.epoch, key, run, next_offset, aborted, lineage, clean.now_ms)
        entry, trailer = await _run(clean, len(made.data), finish)
        clean.keys.add(key)
        await clean.resources.admit(entry.object_bytes)
        clean.result.bytes_written += await put_verified(self._store, key, made.data, trailer)
        return entry

    async def _replace(self, clean: _Clean, clean_to: int = -1) -> bool:
        """Names the objects of the pending runs in the manifest, and where the clean ended if it is whole.

        Returns False if the manifest names other segments now: then it names none of the objects, and they are garbage.
        Returns False too if the log start has moved into a run: that run and all later ones stay as they are.
        """
        before, result = clean.manifest, clean.result
        partition_id, pending, clean.pending, clean.pending_bytes = before.partition_id, clean.pending, [], 0
        made_runs: list[_Replacement] = []
        is_named = True

        def replace_runs(current: Manifest, submanifests: Submanifests) -> Manifest:
            nonlocal before, is_named
            before, made, is_named = current, current, True
            made_runs.clear()
            for each in pending:
                new = made.replace_segments(
                    each.replaced, each.successors, submanifests,
                    lambda base: submanifest_key(partition_id, base, clean.epoch, self._new_unique()),
                )  # fmt: skip
                if new is not made:
                    made_runs.append(each)
                elif current.log_start_offset <= each.replaced[0].base_offset:
                    made_runs.clear()
                    is_named = False
                    return current
                elif current.log_start_offset < each.replaced[-1].next_offset:
                    is_named = False  # its records stay, and so must those after them that supersede them
                    return made
                made = new
            if clean_to < 0:
                return made
            return replace(
                made, clean_to=clean_to, cleaned_ms=clean.now_ms, clean_bytes_before=result.bytes_before,
                clean_bytes_after=result.bytes_after,
            )  # fmt: skip

        clean.is_change_open = True
        try:
            written = await self._manifests.change(
                partition_id, before.topic, clean.epoch, replace_runs, from_written=True
            )
        except Fenced:
            clean.is_change_open = False
            raise
        clean.is_change_open = False
        result.manifest = written
        clean.on_change(written)
        for each in made_runs:
            clean.keys.difference_update(one.key for one in each.successors)
        runs = [(each.replaced[0].base_offset, each.replaced[-1].next_offset) for each in made_runs]
        await self._collector.delete_replaced(before, runs)
        for each in made_runs:
            log.info(
                "segments are cleaned partition=%s base=%d next=%d segments=%d bytes=%d from=%d",
                written.tp, each.replaced[0].base_offset, each.replaced[-1].next_offset, len(each.replaced),
                sum(one.log_bytes for one in each.successors), sum(one.log_bytes for one in each.replaced),
            )  # fmt: skip
        return is_named

    async def _list_aborted(self, entries: Sequence[SegmentEntry], start: int) -> list[AbortedTxn]:
        """Returns the aborted transactions of these segments that end at or above `start`, each once."""
        indexes: list[tuple[int, list[AbortedTxn]]] = []
        for entry in entries:
            if any(ref.kind == SectionKind.TXN_INDEX for ref in entry.sections):
                index = (await self._reader.read_sections(entry)).txn_index
                aborted = decode_aborted_txns(index, begin=0, end=MAX_OFFSET, where=entry.key)
                indexes.append((entry.next_offset, aborted))
        return [each for each in merge_indexes(indexes) if each.last_offset >= start]

    async def _read(self, clean: _Clean, start: int, end: int) -> AsyncGenerator[_Step]:
        """Yields whole batches of a part of the log above its start, a step at a time."""
        at = max(start, clean.manifest.log_start_offset)
        while at < end:
            local_from = max(clean.raw_from, clean.local.local_start_offset) if clean.local is not None else end
            if at < local_from:
                pieces = self._read_bucket(clean, at, min(end, local_from))
                async with aclosing(pieces):
                    async for step in pieces:
                        yield step
                        at = step.next_offset
                at = max(at, min(end, local_from))
            elif (local_step := await _read_local(clean, at, end)) is None:
                clean.local = None
            else:
                await clean.resources.admit(len(local_step.data))
                clean.result.bytes_local += len(local_step.data)
                yield local_step
                at = local_step.next_offset

    async def _read_bucket(self, clean: _Clean, start: int, end: int) -> AsyncGenerator[_Step]:
        manifest = clean.manifest
        pieces = self._reader.iterate(
            manifest.partition_id, start, end, manifest=manifest, keeps_manifest=True, with_few_gets=True
        )
        async with aclosing(pieces):
            async for piece in pieces:
                for data, batches in split_batches(piece.data, piece.batches, clean.resources.read_bytes):
                    await clean.resources.admit(len(data))
                    clean.result.bytes_read += len(data)
                    yield _Step(data, batches, piece.entry.key)

    def _new_unique(self) -> str:
        return f"{self._random.getrandbits(128):032x}"


def _find_raw_part(entries: Sequence[SegmentEntry], clean_to: int) -> int:
    """Returns the offset from which on no segment was cleaned, and each offset has a record."""
    raw_from = entries[-1].next_offset
    for entry in reversed(entries):
        if entry.is_cleaned or not entry.is_dense or entry.base_offset < clean_to:
            break
        raw_from = entry.base_offset
    return raw_from


async def _read_local(clean: _Clean, offset: int, end: int) -> _Step | None:
    """Returns the next batches on the disk, or None if the disk does not have all of them as they were uploaded."""
    assert clean.local is not None
    try:
        found = clean.local.read(offset, clean.resources.read_bytes, end_offset=end)
        if found is None:
            return None
        return await _run(clean, found.length, partial(_read_slice, found, offset, clean.epochs))
    except (Corrupt, Refused, Unavailable):  # local retention or the disk took them, and the bucket has them
        return None


def _read_slice(found: FileSlice, offset: int, epochs: LeaderEpochs) -> _Step | None:
    """Returns the batches of a slice, or None unless each offset from `offset` on has a record, of the epoch that the
    bucket has there. No CRC covers base offset and epoch of a batch."""
    data = found.file.pread(found.start, found.length)
    batches = walk(data).batches
    if not batches or not batches[0].base_offset <= offset <= batches[0].last_offset:
        return None
    next_offset = batches[0].base_offset
    for batch in batches:
        is_dense = batch.base_offset == next_offset and batch.count == batch.last_offset - batch.base_offset + 1
        if not is_dense or batch.leader_epoch != epochs.epoch_at(batch.base_offset):
            return None
        next_offset = batch.last_offset + 1
    return _Step(memoryview(data), batches, found.file.name)


def _clean_step(step: _Step, key_map: KeyOffsetMap, clean: _Clean, rules: CleanRules) -> CleanedBatches:
    """Returns what stays of a step. Delete horizons count from the clean that applies the keys here, and from where the
    disk of the leader begins no horizon passes."""
    data = forget_horizons(step.data, step.batches, clean.first_dirty)
    on_disk = next((each for each in step.batches if each.last_offset >= clean.disk_start), None)
    if on_disk is None:
        return clean_batches(key_map, data, clean.transactions, rules)
    at = on_disk.position - step.batches[0].position
    below = clean_batches(key_map, memoryview(data)[:at], clean.transactions, rules)
    rules = replace(rules, now_ms=NO_HORIZON_PASSED)
    above = clean_batches(key_map, memoryview(data)[at:], clean.transactions, rules)
    return CleanedBatches(
        below.data + above.data, below.end + above.end, below.batches + above.batches,
        below.records_read + above.records_read, below.records_kept + above.records_kept,
    )  # fmt: skip


async def _run_step(clean: _Clean, step: _Step, work: Callable[[], T]) -> T:
    """Runs the work on the batches of a step. Names the place of a batch that cannot be read."""
    try:
        return await _run(clean, len(step.data), work)
    except Corrupt as error:
        why = f"{error.why}, in the batches from offset {step.batches[0].base_offset} on"
        raise Corrupt(why, where=step.where) from error


async def _run(clean: _Clean, size: int, work: Callable[[], T]) -> T:
    """Runs the work on `size` bytes: in a thread, unless they are few."""
    return work() if size <= INLINE_BYTES else await clean.resources.run(work)


def _find_cleanable(
    segments: Sequence[CleanableSegment], manifest: Manifest, config: CompactionConfig, now_ms: int
) -> CleanableRange:
    end = manifest.cold_end_offset
    ends = LogEnds(manifest.log_start_offset, manifest.clean_to, end, end, end)
    return find_cleanable(segments, ends, config, now_ms)


def _facts(entry: SegmentEntry) -> CleanableSegment:
    created_ms = entry.base_timestamp if 0 <= entry.base_timestamp < entry.uploaded_ms else entry.uploaded_ms
    index_bytes = max((ref.length for ref in entry.sections if ref.kind <= SectionKind.TIME_INDEX), default=0)
    return CleanableSegment(
        entry.base_offset, entry.next_offset, entry.log_bytes, entry.newest_ms, created_ms, index_bytes,
        entry.uploaded_ms,
    )  # fmt: skip

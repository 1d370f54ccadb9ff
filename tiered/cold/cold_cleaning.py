"""One clean of the cold part of one partition: keys into a map, new objects of runs of segments, manifest changes.

Keeps I26. The order of writes is objects, then the manifest, then the deletion of what it does not name any more.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import NamedTuple, Protocol

from tiered.cold.clean_source import CleanSource, CleanStep, LocalLog, T, find_raw_part, run_sized
from tiered.cold.cleaned_object import CleanedObject, CleanedRun, split_batches
from tiered.cold.collector import Collector
from tiered.cold.layout import SectionKind, SegmentSections, segment_key, submanifest_key
from tiered.cold.manifest import Manifest, SegmentEntry, Submanifests
from tiered.cold.manifest_store import ManifestStore
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
from tiered.errors import Corrupt, Fenced
from tiered.hot.checkpoints import encode_lineage
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.hot.log_cleaning import CleanerResources
from tiered.ports import ObjectStore
from tiered.producers.aborted_txns import MAX_OFFSET, AbortedTxn, decode_aborted_txns
from tiered.producers.limits import ProducerLimits
from tiered.producers.states import ProducerStates
from tiered.records.key_offset_map import KeyOffsetMap
from tiered.records.model import HEADER_BYTES
from tiered.records.native import walk
from tiered.records.pure_compact import empty_batch

log = logging.getLogger(__name__)

CHANGE_BYTES = 512 << 20
"""Limit on the bytes of new objects that one manifest change names, and that are garbage if it fails."""


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


class _Replacement(NamedTuple):
    """A run of segments, and the entries of the objects that take its place."""

    replaced: Sequence[SegmentEntry]
    successors: Sequence[SegmentEntry]


class CleanBucket(NamedTuple):
    """The parts of the bucket that a clean works with. Objects have at most `object_bytes` of log."""

    store: ObjectStore
    manifests: ManifestStore
    reader: ColdReader
    collector: Collector
    random: Random
    object_bytes: int

    def draw_unique(self) -> str:
        """Returns the part of a key that no other object has."""
        return f"{self.random.getrandbits(128):032x}"


class ColdCleaning:
    """The state of one clean. `keys` are those of the objects that it has put and no manifest names yet."""

    def __init__(
        self,
        bucket: CleanBucket,
        manifest: Manifest,
        epoch: int,
        config: CleanConfig,
        now_ms: int,
        resources: CleanerResources,
        local: LocalLog | None,
        on_change: Callable[[Manifest], None],
    ) -> None:
        self._bucket = bucket
        self._epoch = epoch
        self._config = config
        self._now_ms = now_ms
        self._resources = resources
        self._on_change = on_change
        self.result = ColdCleanResult(manifest)
        self.keys: set[str] = set()
        self.is_change_open = False
        """True while the outcome of a manifest change is unknown."""
        self._disk_start = local.local_start_offset if local is not None else MAX_OFFSET
        """The disk of the leader serves records from here on, as they were produced. The bucket drops no tombstone
        there, and sets no delete horizon: a reader that has the older value from the disk may go on in the bucket."""
        self._source = CleanSource(bucket.reader, resources, local, MAX_OFFSET, LeaderEpochs())
        self._first_dirty = 0
        """The `clean_to` of the manifest when the clean began."""
        self._newest: tuple[str, SegmentSections] | None = None
        """The key and the sections of the newest segment, whose producers the rules need. Its run needs them again."""
        self._transactions: CleanedTransactions[AbortedTxn] = CleanedTransactions()
        self._pending: list[_Replacement] = []
        self._pending_bytes = 0

    @property
    def manifest(self) -> Manifest:
        """The manifest after the last change."""
        return self.result.manifest

    async def run(self) -> None:
        """Cleans what is due. Raises `Fenced`, `Unavailable`, `Corrupt`, and `ObjectMissing` if a segment expired."""
        try:
            await self._clean()
        finally:
            self.result.bytes_read, self.result.bytes_local = self._source.bytes_read, self._source.bytes_local

    async def _clean(self) -> None:
        manifest = self.manifest
        entries = [each async for each in self._bucket.manifests.list_segments(manifest)]
        cleanable = find_cleanable_part([segment_facts(each) for each in entries], manifest, self._config, self._now_ms)
        if not cleanable.dirty_bytes:
            self.result.is_whole = True
            return
        self._first_dirty = max(manifest.clean_to, 0)
        self._source.raw_from = find_raw_part(entries, self._first_dirty)
        self._source.epochs = LeaderEpochs(row for each in entries for row in each.lineage)
        await self._apply_keys(entries, cleanable)

    async def _apply_keys(self, entries: Sequence[SegmentEntry], cleanable: CleanableRange) -> None:
        """Applies the keys of the dirty part to all segments, as far as the map has room for them."""
        resources = self._resources
        memory = resources.size_map(cleanable.dirty_bytes, cleanable.first_uncleanable - cleanable.first_dirty)
        key_map = KeyOffsetMap(memory, resources.seed, resources.load_factor)
        try:
            clean_to = await self._map_keys(entries, cleanable, key_map)
            covered = [each for each in entries if each.base_offset < clean_to]
            self._transactions = CleanedTransactions(await self._list_aborted(covered, 0))
            rules = await self._make_rules(entries[-1])
            for run in self._group(covered, clean_to):
                await self._clean_run(run, key_map, rules)
                if self._pending_bytes >= CHANGE_BYTES and not await self._replace():
                    return
            self.result.is_whole = await self._replace(clean_to)
        finally:
            self.result.unopened = self.result.unopened or key_map.unopened
            key_map.close()

    async def _map_keys(self, entries: Sequence[SegmentEntry], cleanable: CleanableRange, key_map: KeyOffsetMap) -> int:
        """Puts the keys of the dirty part into the map. Returns the offset up to which the map goes: the end of the
        dirty part, of its last segment that fits, or of the first records that fit."""
        begin, end = cleanable.first_dirty, cleanable.first_uncleanable
        dirty = [each for each in entries if each.next_offset > begin and each.next_offset <= end]
        transactions = CleanedTransactions(await self._list_aborted(dirty, begin))
        async with aclosing(self._source.read(self.manifest, begin, end)) as steps:
            async for step in steps:
                put = partial(put_batches, key_map, step.data, transactions, from_offset=begin)
                _, self.result.is_map_full = await self._run_step(step, put)
                if self.result.is_map_full:
                    whole = [each.next_offset for each in dirty if each.next_offset <= key_map.latest_offset + 1]
                    return whole[-1] if whole else key_map.latest_offset + 1
        return end

    async def _make_rules(self, newest: SegmentEntry) -> CleanRules:
        """Returns the rules of the clean. The producers are those of the cold end: a log may restart there."""
        sections = await self._bucket.reader.read_sections(newest)
        producers, self._newest = sections.producers, (newest.key, sections)
        limits = ProducerLimits(sys.maxsize, sys.maxsize)  # the leader had its own, which may be any
        states = ProducerStates()
        if producers:
            states = ProducerStates.from_snapshot(producers, newest.next_offset, limits, where=newest.key)
        last = {
            each.producer_id: LastRecord(each.batches[-1].last_offset if each.batches else -1, each.epoch)
            for each in states.list_producers()
        }
        return CleanRules.of(self._now_ms, self._config.delete_retention_ms, -1, last)

    def _group(self, covered: Sequence[SegmentEntry], clean_to: int) -> list[list[SegmentEntry]]:
        by_offset = {each.base_offset: each for each in covered}
        segment_bytes = min(self._config.segment_size, self._bucket.object_bytes)
        groups = group_segments(
            [segment_facts(each) for each in covered], clean_to, segment_bytes, self._config.segment_index_bytes
        )
        return [[by_offset[each.base_offset] for each in group] for group in groups]

    async def _clean_run(
        self,
        replaced: Sequence[SegmentEntry],
        key_map: KeyOffsetMap,
        rules: CleanRules,
    ) -> None:
        """Puts the objects of a run of segments, unless its only segment stays as it is. A run stays as it is if the
        log start has passed its last batch."""
        if replaced[-1].next_offset <= self.manifest.log_start_offset:
            return
        if self._newest is not None and self._newest[0] == replaced[-1].key:
            sections = self._newest[1]
        else:
            sections = await self._bucket.reader.read_sections(replaced[-1])
        run = CleanedRun(replaced, sections)
        rules = replace(rules, upper_bound=run.next_offset)
        bytes_before = sum(each.log_bytes for each in replaced)
        made, successors = self._begin_object(run.base_offset), list[SegmentEntry]()
        last_header = b""
        async with aclosing(self._source.read(self.manifest, run.base_offset, run.next_offset)) as steps:
            async for step in steps:
                at = step.batches[-1].position - step.batches[0].position
                last_header = bytes(step.data[at : at + HEADER_BYTES])
                work = partial(self._clean_step, step, key_map, rules)
                cleaned = await self._run_step(step, work)
                self.result.records_read += cleaned.records_read
                self.result.records_kept += cleaned.records_kept
                stayed = walk(cleaned.data, check_crc=False).batches
                for part, batches in split_batches(cleaned.data, stayed, self._bucket.object_bytes):
                    if made.data and len(made.data) + len(part) > self._bucket.object_bytes:
                        successors.append(await self._put(run, made, batches[0].base_offset))
                        made = self._begin_object(batches[0].base_offset)
                    made.add(part, batches)
        if not last_header:
            return
        self.result.bytes_before += bytes_before
        if not successors and await run_sized(self._resources, len(made.data), partial(run.is_unchanged, made.data)):
            self.result.bytes_after += bytes_before
            return
        if not made.data:  # offsets above the last batch have no record, so no batch ends at the end of the run
            empty = empty_batch(last_header, 0)
            made.add(empty, walk(empty).batches)
        successors.append(await self._put(run, made, run.next_offset))
        self.result.bytes_after += sum(each.log_bytes for each in successors)
        self._pending.append(_Replacement(replaced, successors))
        self._pending_bytes += sum(each.object_bytes for each in successors)

    def _begin_object(self, base_offset: int) -> CleanedObject:
        return CleanedObject(base_offset, self._config.index_interval_bytes)

    async def _put(self, run: CleanedRun, made: CleanedObject, next_offset: int) -> SegmentEntry:
        partition_id = self.manifest.partition_id
        kept = self._transactions.kept
        aborted = [each for each in kept if made.base_offset <= each.last_offset < next_offset]
        key = segment_key(partition_id, made.base_offset, self._epoch, self._bucket.draw_unique())
        lineage = encode_lineage(tuple(row for row in run.sections.lineage if row[1] < next_offset))
        finish = partial(made.finish, partition_id, self._epoch, key, run, next_offset, aborted, lineage, self._now_ms)
        entry, trailer = await run_sized(self._resources, len(made.data), finish)
        self.keys.add(key)
        await self._resources.admit(entry.object_bytes)
        self.result.bytes_written += await put_verified(self._bucket.store, key, made.data, trailer)
        return entry

    async def _replace(self, clean_to: int = -1) -> bool:
        """Names the objects of the pending runs in the manifest, and where the clean ended if it is whole.

        Returns False if the manifest names other segments now: then it names none of the objects, and they are garbage.
        Returns False too if the log start has moved into a run: that run and all later ones stay as they are.
        `replace_runs` may be called again with a newer manifest, so it starts over each time.
        """
        before, result = self.manifest, self.result
        partition_id, pending, self._pending, self._pending_bytes = before.partition_id, self._pending, [], 0
        made_runs: list[_Replacement] = []
        are_all_replaced = True

        def replace_runs(current: Manifest, submanifests: Submanifests) -> Manifest:
            nonlocal before, are_all_replaced
            before, made, are_all_replaced = current, current, True
            made_runs.clear()
            for each in pending:
                new = made.replace_segments(
                    each.replaced, each.successors, submanifests,
                    lambda base: submanifest_key(partition_id, base, self._epoch, self._bucket.draw_unique()),
                )  # fmt: skip
                if new is not made:
                    made_runs.append(each)
                elif current.log_start_offset <= each.replaced[0].base_offset:  # the manifest names other segments
                    made_runs.clear()
                    are_all_replaced = False
                    return current
                elif current.log_start_offset < each.replaced[-1].next_offset:
                    are_all_replaced = False  # its records stay, and so must those after them that supersede them
                    return made
                made = new  # the same manifest if all of the run has expired
            if clean_to < 0:
                return made
            return replace(
                made, clean_to=clean_to, cleaned_ms=self._now_ms, clean_bytes_before=result.bytes_before,
                clean_bytes_after=result.bytes_after,
            )  # fmt: skip

        self.is_change_open = True
        try:
            written = await self._bucket.manifests.change(
                partition_id, before.topic, self._epoch, replace_runs, from_written=True
            )
        except Fenced:
            self.is_change_open = False
            raise
        self.is_change_open = False
        result.manifest = written
        self._on_change(written)
        for each in made_runs:
            self.keys.difference_update(one.key for one in each.successors)
        runs = [(each.replaced[0].base_offset, each.replaced[-1].next_offset) for each in made_runs]
        await self._bucket.collector.delete_replaced(before, runs)
        for each in made_runs:
            log.info(
                "segments are cleaned partition=%s base=%d next=%d segments=%d bytes=%d from=%d",
                written.tp, each.replaced[0].base_offset, each.replaced[-1].next_offset, len(each.replaced),
                sum(one.log_bytes for one in each.successors), sum(one.log_bytes for one in each.replaced),
            )  # fmt: skip
        return are_all_replaced

    async def _list_aborted(self, entries: Sequence[SegmentEntry], start: int) -> list[AbortedTxn]:
        """Returns the aborted transactions of these segments that end at or above `start`, each once."""
        indexes: list[tuple[int, list[AbortedTxn]]] = []
        for entry in entries:
            if any(ref.kind == SectionKind.TXN_INDEX for ref in entry.sections):
                index = (await self._bucket.reader.read_sections(entry)).txn_index
                aborted = decode_aborted_txns(index, begin=0, end=MAX_OFFSET, where=entry.key)
                indexes.append((entry.next_offset, aborted))
        return [each for each in merge_indexes(indexes) if each.last_offset >= start]

    def _clean_step(self, step: CleanStep, key_map: KeyOffsetMap, rules: CleanRules) -> CleanedBatches:
        """Returns what stays of a step. Delete horizons count from the clean that applies the keys here. From where the
        disk of the leader begins, no horizon passes."""
        data = forget_horizons(step.data, step.batches, self._first_dirty)
        on_disk = next((each for each in step.batches if each.last_offset >= self._disk_start), None)
        if on_disk is None:
            return clean_batches(key_map, data, self._transactions, rules)
        at = on_disk.position - step.batches[0].position
        below = clean_batches(key_map, memoryview(data)[:at], self._transactions, rules)
        rules = replace(rules, now_ms=NO_HORIZON_PASSED)
        above = clean_batches(key_map, memoryview(data)[at:], self._transactions, rules)
        return CleanedBatches(
            below.data + above.data, below.end + above.end, below.batches + above.batches,
            below.records_read + above.records_read, below.records_kept + above.records_kept,
        )  # fmt: skip

    async def _run_step(self, step: CleanStep, work: Callable[[], T]) -> T:
        """Runs the work on the batches of a step. Names the place of a batch that cannot be read."""
        try:
            return await run_sized(self._resources, len(step.data), work)
        except Corrupt as error:
            why = f"{error.why}, in the batches from offset {step.batches[0].base_offset} on"
            raise Corrupt(why, where=step.where) from error


def find_cleanable_part(
    segments: Sequence[CleanableSegment], manifest: Manifest, config: CompactionConfig, now_ms: int
) -> CleanableRange:
    """Returns what a clean of these segments may read."""
    end = manifest.cold_end_offset
    ends = LogEnds(manifest.log_start_offset, manifest.clean_to, end, end, end)
    return find_cleanable(segments, ends, config, now_ms)


def segment_facts(entry: SegmentEntry) -> CleanableSegment:
    """Returns what the choice of a clean needs of a segment."""
    created_ms = entry.base_timestamp if 0 <= entry.base_timestamp < entry.uploaded_ms else entry.uploaded_ms
    index_bytes = max((ref.length for ref in entry.sections if ref.kind <= SectionKind.TIME_INDEX), default=0)
    return CleanableSegment(
        entry.base_offset, entry.next_offset, entry.log_bytes, entry.newest_ms, created_ms, index_bytes,
        entry.uploaded_ms,
    )  # fmt: skip

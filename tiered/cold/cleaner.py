"""The clean of the cold part of a compacted topic: new objects first, then a change of the manifest, then garbage.

Keeps I26 and I32. A large clean changes the manifest once for each 512 MiB of new objects.

A clean puts the last offset of each key of the dirty part into a bounded map. Then it reads all
segments up to the end of the map, oldest first, and writes runs of them again without what is superseded. The manifest
takes runs in that order. Therefore an older record of a key is never there without the tombstone that deleted it. A
clean that ends early has changed nothing, or some of the oldest runs; the next one begins again where the last whole
one ended.

Uploads, expiry and sweeps of the partition go on meanwhile. Objects that a clean has put are not garbage until it ends.
Objects that an undecided change of the manifest names are not garbage until `settle` decides it.
"""

from __future__ import annotations

from collections.abc import Callable

from tiered.cold.clean_source import LocalLog
from tiered.cold.cold_cleaning import (
    CleanBucket,
    CleanConfig,
    ColdCleaning,
    ColdCleanResult,
    find_cleanable_part,
    segment_facts,
)
from tiered.cold.collector import Collector
from tiered.cold.manifest import Manifest
from tiered.cold.manifest_store import ManifestStore, ObjectMissing
from tiered.cold.reader import ColdReader
from tiered.compaction.cleanable_range import CleanableRange, CleanableSegment, CompactionConfig
from tiered.errors import Fenced, Refused
from tiered.hot.log_cleaning import CleanerResources
from tiered.ids import PartitionId
from tiered.metrics import Metrics
from tiered.ports import ObjectStore, Rng

OBJECT_BYTES = 64 << 20
"""Limit on the log part of a cleaned object, which is in memory as a whole until it is put."""


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
        self._manifests = manifests
        self._reader = reader
        random = rng.stream("cold cleaner")
        self._bucket = CleanBucket(store, manifests, reader, collector, random, object_bytes)
        self._keys_in_flight: dict[PartitionId, set[str]] = {}
        self._running: dict[PartitionId, set[str]] = {}
        """The keys of the newest clean that runs for each partition. After a change of the leader the earlier leader's
        clean may still run, and its entry is replaced."""
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
        dirty = [segment_facts(each) async for each in self._manifests.list_segments(manifest, first_dirty)]
        clean_bytes = manifest.cold_bytes - sum(each.size for each in dirty)
        if clean_bytes > 0:
            begin, end = manifest.log_start_offset, dirty[0].base_offset if dirty else first_dirty
            dirty.insert(0, CleanableSegment(begin, end, clean_bytes, -1, -1))
        return find_cleanable_part(dirty, manifest, config, now_ms)

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
        clean = ColdCleaning(self._bucket, manifest, epoch, config, now_ms, resources, local, on_change)
        keys = self._keys_in_flight[partition_id] = clean.keys
        self._running[partition_id] = keys
        outcome = "failed"
        try:
            await self._run_until_expired(clean)
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

    async def _run_until_expired(self, clean: ColdCleaning) -> None:
        """Ends the clean early if an object that it reads is gone and the manifest no longer names it: the log start
        has passed it. Raises `ObjectMissing` if the manifest still names it."""
        try:
            await clean.run()
        except ObjectMissing as error:
            manifest = clean.manifest
            try:
                await self._reader.find_newer_manifest(manifest.partition_id, manifest.log_start_offset, error)
            except Refused:  # the log start has moved
                return

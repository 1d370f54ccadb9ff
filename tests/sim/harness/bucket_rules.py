"""Rules of the bucket that hold at every moment, checked on each write that takes effect, and on each delete.

I20 an object never changes, and is of a kind that docs/internals/formats.md has; I21 cold data has no hole and no
overlap and never shrinks; I22/I23 a manifest names only existing objects, and no named object is deleted; I24 a
metadata slot is written once; I25 controller epochs never go back; M3 the boundary only grows and names existing
snapshots. Beyond them: an offset that a manifest names stays in the same object for as long as it is named (I20).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence

from tests.sim.harness.store import SimBucket
from tiered.cold.layout import manifest_key
from tiered.cold.manifest import Manifest, ManifestNode, SegmentEntry
from tiered.cold.manifest_codec import decode, decode_submanifest
from tiered.coordination.snapshot_stores import GROUP_SNAPSHOTS, SHARE_SNAPSHOTS, TRANSACTION_SNAPSHOTS
from tiered.errors import Corrupt
from tiered.ids import PartitionId, TopicId
from tiered.metadata.changes import TopicDeleted
from tiered.metadata.layout import (
    BOUNDARY_KEY,
    FORMAT_KEY,
    LOG_PREFIX,
    SNAPSHOT_PREFIX,
    Boundary,
    decode_boundary,
    decode_entry,
)
from tiered.object_store.probe import FOLDER as PROBE_FOLDER
from tiered.wal.layout import ChainId, Window
from tiered.wal.layout import decode as decode_wal_object
from tiered.wal.layout import parse_key as parse_wal_key

WRITTEN_ONCE = (
    FORMAT_KEY, SNAPSHOT_PREFIX, GROUP_SNAPSHOTS.prefix, TRANSACTION_SNAPSHOTS.prefix, SHARE_SNAPSHOTS.prefix,
)  # fmt: skip
"""Beginnings of the keys of all other objects: none is replaced by other bytes. A late put of a snapshot may come after
its deletion."""


class BucketRules:
    """Checks every write to one bucket as it takes effect, against the objects at that moment."""

    def __init__(self, bucket: SimBucket) -> None:
        self._bucket = bucket
        self._seen = 0
        self._crc: dict[str, int] = {}
        self._segment_objects: dict[tuple[PartitionId, int], tuple[int, str]] = {}
        """(partition, base offset) -> (next offset, object) of every segment that a manifest ever named."""
        self._cold_bounds: dict[PartitionId, tuple[int, int]] = {}
        """Log start and cold end of the last manifest."""
        self._epochs: dict[int, int] = {}
        self._boundary = Boundary()
        self._deleted: set[TopicId] = set()
        self._unreferenced: list[str] | None = None
        """Objects that no manifest names; None if the bucket has changed since they were listed."""
        self.counts = dict.fromkeys(("snapshots", "collected_slots", "spills", "void_slots", "windows", "fences"), 0)
        bucket.memory.on_write = self._check
        bucket.memory.on_delete = self._check_delete

    def _check(self) -> None:
        self._unreferenced = None
        written = self._bucket.written
        for key, body in written[self._seen :]:
            try:
                self._check_object(key, body)
            except Corrupt as error:  # raised further, it would only be one more error that a writer can live with
                rule = "I24" if key.startswith("meta/") else "I21"
                raise AssertionError(f"{rule}: {key} is written and cannot be read: {error}") from None
        self._seen = len(written)

    def _check_object(self, key: str, body: bytes) -> None:
        if key.endswith("/manifest"):
            self._check_manifest(decode(body, key))
        elif key.startswith("data/"):
            self.counts["spills"] += key.endswith(".sub")
            self._check_immutable(key, body)
        elif key == BOUNDARY_KEY:
            self._check_boundary(decode_boundary(body))
        elif key.startswith(LOG_PREFIX):
            self._check_slot(key, body)
        elif key.startswith(WRITTEN_ONCE):
            self._check_immutable(key, body)
        elif (place := parse_wal_key(key)) is not None:
            found = decode_wal_object(body, *place, "", len(body))
            self.counts["windows" if isinstance(found, Window) else "fences"] += 1
            self._check_immutable(key, body)
        else:
            assert key.startswith(f"{PROBE_FOLDER}/"), f"I20: {key} is of no kind that docs/internals/formats.md has"

    def _check_delete(self, keys: Sequence[str]) -> None:
        """I23: no named object is deleted. M3: no slot above the boundary is deleted."""
        self._unreferenced = None
        named: dict[PartitionId, set[str]] = {}
        for key in keys:
            if key.startswith(LOG_PREFIX):
                slot = int(key.rpartition("/")[2])
                assert slot <= self._boundary.collected, f"M3: slot {slot} goes, the boundary is {self._boundary}"
            assert key not in [each.key for each in self._boundary.snapshots], f"I23: {key} goes, the boundary names it"
            place = parse_wal_key(key)
            if key.startswith(WRITTEN_ONCE) or place is not None:
                self._crc.pop(key, None)  # a late put may bring it back with other bytes
            if place is not None and key in self._bucket.objects:
                body = self._bucket.objects[key].data
                found = decode_wal_object(body, *place, "", len(body))
                if isinstance(found, Window):  # the owner may delete fences too: it puts nothing into their slots
                    self._check_window_delete(key, place[0], found)
            if key.startswith("data/"):
                topic, partition = key.split("/")[1:3]
                partition_id = PartitionId(TopicId(topic), int(partition))
                if partition_id.topic_id not in self._deleted:
                    alive = named.get(partition_id)
                    if alive is None:
                        alive = named[partition_id] = self.named_keys(partition_id)
                    assert key not in alive, f"I23: {key} goes, {partition_id} names it"

    def _check_window_delete(self, key: str, chain: ChainId, window: Window) -> None:
        """Checks that nobody needs a window that is deleted."""

    def named_keys(self, partition_id: PartitionId) -> set[str]:
        """Returns the key of a partition's manifest, if it has one, and all keys that it names and still needs."""
        key = manifest_key(partition_id)
        stored = self._bucket.objects.get(key)
        if stored is None:
            return set()
        manifest = decode(stored.data, key)
        return {key, *(node.key for node in self._live_nodes(manifest.nodes, manifest.log_start_offset))}

    def manifests(self) -> Iterator[Manifest]:
        """Returns every present manifest."""
        for key, stored in sorted(self._bucket.objects.items()):
            if key.endswith("/manifest"):
                yield decode(stored.data, key)

    def segments(self, manifest: Manifest) -> Iterator[SegmentEntry]:
        """Returns the live segments of a manifest and its sub-manifests, oldest first."""
        for node in self._live_nodes(manifest.nodes, manifest.log_start_offset):
            if isinstance(node, SegmentEntry):
                yield node

    def unreferenced(self) -> list[str]:
        """Returns data objects that no manifest names."""
        if self._unreferenced is None:
            named = {key for manifest in self.manifests() for key in self.named_keys(manifest.partition_id)}
            self._unreferenced = sorted(
                key for key in self._bucket.objects if key.startswith("data/") and key not in named
            )
        return self._unreferenced

    def _check_immutable(self, key: str, body: bytes) -> None:
        crc = zlib.crc32(body)
        assert self._crc.setdefault(key, crc) == crc, f"I20: {key} was written twice with different bytes"

    def _check_manifest(self, manifest: Manifest) -> None:
        """Checks a manifest against its predecessor; its decoder checks the manifest itself."""
        if manifest.topic_id in self._deleted:
            return
        reach = manifest.log_start_offset, manifest.cold_end_offset
        start, end = self._cold_bounds.setdefault(manifest.partition_id, reach)
        assert reach[0] >= start and reach[1] >= end, (
            f"I21: {manifest.partition_id} shrinks from {start, end} to {reach}"
        )
        self._cold_bounds[manifest.partition_id] = reach
        if self._may_replace(manifest.partition_id):
            return
        for entry in manifest.entries:
            assert entry.key in self._bucket.objects, (
                f"I23: {manifest.partition_id} names {entry.key}, which is not there"
            )
            home = self._segment_objects.setdefault(
                (manifest.partition_id, entry.base_offset), (entry.next_offset, entry.key)
            )
            assert home == (entry.next_offset, entry.key), f"I20: {entry} moved, it was {home}"

    def _may_replace(self, partition_id: PartitionId) -> bool:
        """True if a clean may replace objects of the partition."""
        return False

    def _check_boundary(self, boundary: Boundary) -> None:
        old, self._boundary = self._boundary, boundary
        assert boundary.collected >= old.collected and boundary.sequence > old.sequence, f"M3: {old}, then {boundary}"
        for snapshot in boundary.snapshots:
            assert snapshot.key in self._bucket.objects, f"I23: {snapshot.key} is named and not there"
        self.counts["snapshots"] += 1
        self.counts["collected_slots"] = boundary.collected + 1

    def topics(self) -> set[TopicId]:
        """Returns the ids of all topics that have an object."""
        return {TopicId(key.split("/")[1]) for key in self._bucket.objects if key.startswith("data/")}

    def _check_slot(self, key: str, body: bytes) -> None:
        slot = int(key.rpartition("/")[2])
        if slot <= self._boundary.collected:  # a late put found the place free again: rule M3 makes it void
            self.counts["void_slots"] += 1
            return
        entry = decode_entry(body, slot)
        self._check_immutable(key, body)
        self._deleted |= {change.topic_id for change in entry.changes if isinstance(change, TopicDeleted)}
        self._epochs[slot] = entry.epoch
        lower = [epoch for at, epoch in self._epochs.items() if at < slot]
        assert entry.epoch >= max(lower, default=0), f"I25: slot {slot} has epoch {entry.epoch} after {max(lower)}"

    def _live_nodes(self, nodes: Iterable[ManifestNode], start: int) -> Iterator[ManifestNode]:
        """Returns segments and sub-manifests with records at or above `start`; objects of the others may be gone."""
        for node in nodes:
            if node.next_offset > start:
                yield node
                if not isinstance(node, SegmentEntry):
                    yield from self._live_nodes(
                        decode_submanifest(self._bucket.objects[node.key].data, node.key), start
                    )

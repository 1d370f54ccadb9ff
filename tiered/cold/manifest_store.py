"""Manifests in the bucket: read by anybody, changed by compare-and-swap under a leader epoch.

Rule M1: after any outcome but a clean success the manifest is read back. Own nonce: done. Still the old one: the same
bytes again. Another: lost, decide anew on what is there. A change that stays undecided (deadline, cancellation) may
land later; until a later write has settled it, this store answers no change with "nothing to do".
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from tiered.cold.layout import manifest_key, parse_key, partition_prefix, submanifest_key
from tiered.cold.manifest import (
    FAN,
    Manifest,
    ManifestNode,
    SegmentEntry,
    SubmanifestNeeded,
    SubmanifestRef,
    Submanifests,
    check_change,
    find_node,
    find_node_by_time,
    matches_ref,
)
from tiered.cold.manifest_codec import decode, decode_submanifest, encode, encode_submanifest
from tiered.errors import Corrupt, Fenced, Unavailable
from tiered.ids import PartitionId
from tiered.metrics import Metrics
from tiered.ports import Clock, NotFound, ObjectStore, Ok, Rng

T = TypeVar("T")

log = logging.getLogger(__name__)

ManifestChange = Callable[[Manifest, Submanifests], Manifest]
"""From the manifest as it is to the manifest wanted, with the contents of the sub-manifests opened so far. May raise
NeedsOpen. Called again whenever somebody else changed the manifest first: it must be happy with its own effect."""

DEADLINE_S = 30.0
BACKOFF_S = 0.05
BACKOFF_MAX_S = 2.0
OPENED_MAX = 256


class ManifestStore:
    """All manifests of one bucket. `deadline_s` bounds one change, its retries included."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        rng: Rng,
        metrics: Metrics,
        *,
        fan: int = FAN,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._store = store
        self._clock = clock
        self._random = rng.stream("manifest")
        self._fan = fan
        self._deadline_s = deadline_s
        self._locks: dict[PartitionId, asyncio.Lock] = {}
        self._undecided: set[PartitionId] = set()
        self._keys_in_flight: dict[PartitionId, set[str]] = {}
        self._may_have_orphans: set[PartitionId] = set()
        self._submanifests: OrderedDict[str, tuple[ManifestNode, ...]] = OrderedDict()
        self._changes = metrics.counter("tiered_manifest_changes_total", "Manifest changes by outcome", ("outcome",))

    # -- reading ------------------------------------------------------------------------------------------------------

    async def load(self, partition_id: PartitionId) -> Manifest | None:
        """The manifest as it is now; None when nothing of the partition was ever cold. Unavailable, Corrupt."""
        manifest, _ = await self._get(partition_id)
        return manifest

    async def _get(self, partition_id: PartitionId) -> tuple[Manifest | None, str]:
        key = manifest_key(partition_id)
        read = await self._read(key, decode)
        if read is None:
            return None, ""
        manifest, version = read
        if manifest.partition_id != partition_id:
            raise Corrupt(f"manifest of {manifest.partition_id} under another's key", where=key)
        return manifest, version

    async def _read(self, key: str, decoder: Callable[[bytes, str], T]) -> tuple[T, str] | None:
        """The decoded object and its version; what does not prove itself is read once more."""
        got = await self._store.get(key)
        if isinstance(got, NotFound):
            return None
        try:
            return decoder(got.data, key), got.version
        except Corrupt:
            got = await self._store.get(key)
        return None if isinstance(got, NotFound) else (decoder(got.data, key), got.version)

    async def read_submanifest(self, ref: SubmanifestRef) -> tuple[ManifestNode, ...]:
        """What a sub-manifest names, what is dead included. Immutable, so a bounded number is kept."""
        nodes = self._submanifests.get(ref.key)
        if nodes is None:
            read = await self._read(ref.key, decode_submanifest)
            if read is None:
                raise Corrupt("sub-manifest is missing", where=ref.key)
            nodes, _ = read
            if not matches_ref(ref, nodes):
                raise Corrupt("sub-manifest is not the one that the manifest means", where=ref.key)
            self._cache_submanifest(ref.key, nodes)
        self._submanifests.move_to_end(ref.key)
        return nodes

    def _cache_submanifest(self, key: str, nodes: tuple[ManifestNode, ...]) -> None:
        self._submanifests[key] = nodes
        while len(self._submanifests) > OPENED_MAX:
            self._submanifests.popitem(last=False)

    async def find_segment(self, manifest: Manifest, offset: int) -> SegmentEntry | None:
        """The live segment that holds `offset`."""
        node = manifest.find_node(offset)
        while isinstance(node, SubmanifestRef):
            node = find_node(await self.read_submanifest(node), offset)
        return node

    async def find_segment_by_time(self, manifest: Manifest, timestamp: int) -> SegmentEntry | None:
        """The first live segment with a record at or after `timestamp` (milliseconds)."""
        node = manifest.find_node_by_time(timestamp)
        while isinstance(node, SubmanifestRef):
            children = await self.read_submanifest(node)
            alive = [child for child in children if child.next_offset > manifest.log_start_offset]
            node = find_node_by_time(alive, timestamp)
        return node

    async def list_segments(self, manifest: Manifest, start: int = 0) -> AsyncIterator[SegmentEntry]:
        """All live segments that end above `start`, oldest first."""
        async for node in self._walk_nodes(manifest.nodes, max(start, manifest.log_start_offset)):
            if isinstance(node, SegmentEntry):
                yield node

    async def list_newest_first(self, manifest: Manifest, end: int) -> AsyncIterator[SegmentEntry]:
        """All live segments that begin below `end`, newest first; sub-manifests are opened as it comes to them."""
        left = list(manifest.nodes)
        while left:
            node = left.pop()
            if node.next_offset <= manifest.log_start_offset:
                return
            if isinstance(node, SubmanifestRef):
                left += await self.read_submanifest(node)
            elif node.base_offset < end:
                yield node

    async def list_keys(self, manifest: Manifest) -> AsyncIterator[str]:
        """Keys of all objects that the manifest names and that are alive, sub-manifests included."""
        async for node in self._walk_nodes(manifest.nodes, manifest.log_start_offset):
            yield node.key

    async def _walk_nodes(self, nodes: Iterable[ManifestNode], start: int) -> AsyncIterator[ManifestNode]:
        for node in nodes:
            if node.next_offset > start:
                yield node
                if isinstance(node, SubmanifestRef):
                    async for child in self._walk_nodes(await self.read_submanifest(node), start):
                        yield child

    # -- changing -----------------------------------------------------------------------------------------------------

    async def change(self, partition_id: PartitionId, topic: str, epoch: int, fn: ManifestChange) -> Manifest:
        """Makes `fn`'s change under leader epoch `epoch` and returns the manifest that then stands in the bucket.

        The epoch is written too, so a change that leaves all else alone takes the manifest over. Fenced when a higher
        epoch has; Unavailable when the outcome is unknown or the bucket did not answer in time.
        """
        try:
            return await self._change(partition_id, topic, epoch, fn)
        except BaseException:
            self.mark_orphans(partition_id)  # it may be done all the same, and then nobody deletes what it let go
            raise

    async def _change(self, partition_id: PartitionId, topic: str, epoch: int, fn: ManifestChange) -> Manifest:
        lock = self._locks.setdefault(partition_id, asyncio.Lock())
        async with lock:
            started = self._clock.mono_ns()
            while True:
                old, version = await self._get(partition_id)
                if old is not None and old.leader_epoch > epoch:
                    self._undecided.discard(partition_id)  # what was under way finds another version
                    self._changes.inc(1, "fenced")
                    raise Fenced(f"{partition_id}: leader epoch {epoch} is behind {old.leader_epoch} of the manifest")
                if old is None and await self._has_objects(partition_id):
                    continue
                base = old or Manifest(topic, partition_id.topic_id, partition_id.partition)
                new = await self.apply_change(base.adopt_epoch(epoch), fn)
                if new == old and partition_id not in self._undecided:
                    return new
                written = await self._compare_and_swap(partition_id, base, new, version, started)
                self._undecided.discard(partition_id)
                self._keys_in_flight.pop(partition_id, None)
                self._changes.inc(1, "lost" if written is None else "made")
                if written is not None:
                    return written

    async def _has_objects(self, partition_id: PartitionId) -> bool:
        """Whether somebody wrote a manifest just now. Corrupt when objects are there and no manifest: it comes before
        the first of them, so it was lost, and in a new one they would all be garbage."""
        listed = await self._store.list(partition_prefix(partition_id))
        if not any(parse_key(item.key) for item in listed):
            return False
        if isinstance(await self._store.get(manifest_key(partition_id)), NotFound):
            raise Corrupt("manifest is missing, objects of its partition are there", where=manifest_key(partition_id))
        return True

    async def take_over(self, partition_id: PartitionId, topic: str, epoch: int) -> Manifest:
        """The manifest under leader epoch `epoch`, with every earlier write of this process decided."""
        return await self.change(partition_id, topic, epoch, lambda manifest, _: manifest)

    async def apply_change(self, manifest: Manifest, fn: ManifestChange) -> Manifest:
        """`fn` applied, with every sub-manifest opened that it asks for."""
        opened: dict[str, tuple[ManifestNode, ...]] = {}
        while True:
            try:
                return fn(manifest, opened)
            except SubmanifestNeeded as wanted:
                opened[wanted.ref.key] = await self.read_submanifest(wanted.ref)

    @property
    def has_undecided_change(self) -> bool:
        """Whether a change that nobody waits for any more may yet land."""
        return bool(self._undecided)

    def keys_in_flight(self, partition_id: PartitionId) -> frozenset[str]:
        """Sub-manifests that an undecided change may yet name: no garbage, although no manifest names them."""
        return frozenset(self._keys_in_flight.get(partition_id, ()))

    def mark_orphans(self, partition_id: PartitionId) -> None:
        """An object of the partition may be in the bucket, now or soon, that no manifest will ever name."""
        self._may_have_orphans.add(partition_id)

    def take_orphan_mark(self, partition_id: PartitionId) -> bool:
        """Returns whether that was noted since the last call: only a sweep finds such objects."""
        found = partition_id in self._may_have_orphans
        self._may_have_orphans.discard(partition_id)
        return found

    def forget(self, partition_id: PartitionId) -> None:
        """The partition is led elsewhere or deleted: lets go of what is kept for it."""
        self._may_have_orphans.discard(partition_id)
        self._locks.pop(partition_id, None)
        self._undecided.discard(partition_id)
        self._keys_in_flight.pop(partition_id, None)

    async def _compare_and_swap(
        self, partition_id: PartitionId, old: Manifest, new: Manifest, version: str, started: int
    ) -> Manifest | None:
        """Puts `new` in the place of `old`; None when another write came first."""
        new = replace(await self._pack_oldest(partition_id, new), sequence=old.sequence + 1, nonce=self._new_nonce())
        check_change(old, new)
        body = encode(new)
        self._undecided.add(partition_id)
        backoff = BACKOFF_S
        while True:
            result = await self._store.put(
                manifest_key(partition_id), body, if_absent=not version, if_match=version if version else None
            )
            if isinstance(result, Ok):
                return new
            there = await self._read_back(partition_id, backoff, started)
            if there is None and version:
                raise Fenced(f"{partition_id}: the manifest is gone, the topic was deleted")
            nonce = there.nonce if there is not None else ""
            if nonce == new.nonce:
                return new
            if nonce != old.nonce:
                return None
            log.warning("manifest change did not land, trying again partition=%s result=%r", new.tp, result)
            await self._pause(backoff, started)
            backoff = min(2 * backoff, BACKOFF_MAX_S)

    async def _read_back(self, partition_id: PartitionId, backoff: float, started: int) -> Manifest | None:
        while True:
            try:
                manifest, _ = await self._get(partition_id)
            except Unavailable:
                await self._pause(backoff, started)
                backoff = min(2 * backoff, BACKOFF_MAX_S)
            else:
                return manifest

    async def _pack_oldest(self, partition_id: PartitionId, manifest: Manifest) -> Manifest:
        """With its oldest nodes moved into sub-manifests, which are in the bucket before the manifest names them."""
        while (packed := manifest.find_pack_range(self._fan)) is not None:
            key = submanifest_key(partition_id, packed.nodes[0].base_offset, manifest.leader_epoch, self._new_nonce())
            self._keys_in_flight.setdefault(partition_id, set()).add(key)
            result = await self._store.put(key, encode_submanifest(partition_id, packed.level, packed.nodes))
            if not isinstance(result, Ok):
                raise Unavailable(f"sub-manifest {key} was not stored: {result!r}")
            self._cache_submanifest(key, packed.nodes)
            manifest = manifest.pack(packed, key)
        return manifest

    async def _pause(self, backoff: float, started: int) -> None:
        if (self._clock.mono_ns() - started) / 1e9 > self._deadline_s:
            self._changes.inc(1, "undecided")
            raise Unavailable("manifest change is undecided: the store did not answer in time")
        await self._clock.sleep(self._random.uniform(0, backoff))

    def _new_nonce(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

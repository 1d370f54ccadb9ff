"""The manifests in the bucket: read by any broker, changed by compare-and-swap under a leader epoch.

Keeps M1 and I16. A change that lost to another one is made again on the manifest of that one.

A change that stays undecided (deadline, cancellation) may be applied later. This store
always writes before a later write has settled it, even if a change has no effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
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
    UnwrittenSubmanifest,
    check_change,
    find_node,
    matches_ref,
)
from tiered.cold.manifest_codec import decode, decode_submanifest, encode, encode_submanifest
from tiered.errors import Corrupt, Fenced, Unavailable
from tiered.ids import PartitionId, TopicPartition
from tiered.metrics import Metrics
from tiered.object_store.conditional_put import PutOutcome, Stored, put_until_known
from tiered.ports import Clock, NotFound, ObjectStore, Ok, Rng, describe_failed_put

T = TypeVar("T")

log = logging.getLogger(__name__)

ManifestChange = Callable[[Manifest, Submanifests], Manifest]
"""Maps the current manifest to the wanted one, with the contents of the sub-manifests read so far.

It may raise `SubmanifestNeeded`. It is called again if another writer changed the manifest first, so it must accept a
manifest that has its own effect already.
"""

DEADLINE_S = 30.0
BACKOFF_S = 0.05
BACKOFF_MAX_S = 2.0
OPENED_MAX = 256


class ObjectMissing(Corrupt):
    """A segment or sub-manifest is not there: it is lost, or a newer manifest does not name it any more."""


class ManifestStore:
    """All manifests of one bucket. `deadline_s` bounds one change, including its retries."""

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
        self._written: dict[PartitionId, tuple[Manifest, str]] = {}
        """The newest manifest that this store wrote, with its version, until another write may have replaced it."""
        self._newest_sequences: dict[PartitionId, int] = {}
        """The highest sequence that a change found or wrote: a manifest never goes back."""
        self._keys_in_flight: dict[PartitionId, set[str]] = {}
        self._may_have_orphans: set[PartitionId] = set()
        self._submanifests: OrderedDict[str, tuple[ManifestNode, ...]] = OrderedDict()
        self._changes = metrics.counter("tiered_manifest_changes_total", "Manifest changes by outcome", ("outcome",))

    # -- reading ------------------------------------------------------------------------------------------------------

    async def load(self, partition_id: PartitionId) -> Manifest | None:
        """Returns the current manifest, or None if no record of the partition was ever cold. Raises `Unavailable` and
        `Corrupt`."""
        manifest, _ = await self._get(partition_id)
        return manifest

    async def load_versioned(self, partition_id: PartitionId) -> tuple[Manifest | None, str]:
        """Returns what `load` returns, and the manifest's version in the store, "" for none."""
        return await self._get(partition_id)

    async def _get(self, partition_id: PartitionId) -> tuple[Manifest | None, str]:
        key = manifest_key(partition_id)
        read = await self._read(key, decode)
        if read is None:
            return None, ""
        manifest, version = read
        if manifest.partition_id != partition_id:
            raise Corrupt(f"manifest of {manifest.partition_id} has the key of another partition", where=key)
        return manifest, version

    async def _read(self, key: str, decoder: Callable[[bytes, str], T]) -> tuple[T, str] | None:
        """Returns the decoded object and its version, or None if it is absent. An invalid object is read once more."""
        got = await self._store.get(key)
        if isinstance(got, NotFound):
            return None
        try:
            return decoder(got.data, key), got.version
        except Corrupt:
            got = await self._store.get(key)
        return None if isinstance(got, NotFound) else (decoder(got.data, key), got.version)

    async def read_submanifest(self, ref: SubmanifestRef) -> tuple[ManifestNode, ...]:
        """Returns the nodes of a sub-manifest, including deleted ones. It is immutable, so a bounded number is cached.

        Raises `Unavailable`, `Corrupt`, and `ObjectMissing` too if a newer manifest does not name it any more.
        """
        nodes = self._submanifests.get(ref.key)
        if nodes is None:
            read = await self._read(ref.key, decode_submanifest)
            if read is None:
                raise ObjectMissing("sub-manifest is missing", where=ref.key)
            nodes, _ = read
            if not matches_ref(ref, nodes):
                raise Corrupt("sub-manifest does not match its reference in the manifest", where=ref.key)
            self._cache_submanifest(ref.key, nodes)
        self._submanifests.move_to_end(ref.key)
        return nodes

    def _cache_submanifest(self, key: str, nodes: tuple[ManifestNode, ...]) -> None:
        self._submanifests[key] = nodes
        while len(self._submanifests) > OPENED_MAX:
            self._submanifests.popitem(last=False)

    async def find_segment(self, manifest: Manifest, offset: int) -> SegmentEntry | None:
        """Returns the live segment that holds `offset`."""
        node = manifest.find_node(offset)
        while isinstance(node, SubmanifestRef):
            node = find_node(await self.read_submanifest(node), offset)
        return node

    async def list_segments_by_time(
        self, manifest: Manifest, timestamp: int, start: int = 0
    ) -> AsyncIterator[SegmentEntry]:
        """Yields the live segments that end above `start` and name a timestamp of at least `timestamp` (milliseconds),
        oldest first. A segment whose greatest timestamp is unset is among them, unless the next one begins earlier than
        `timestamp`.

        A segment may have no such record at or above the log start: the figures count deleted records of a segment, and
        those of a node in a sub-manifest count deleted segments.
        """
        unset: SegmentEntry | None = None
        async for entry in self._list_by_time(manifest, timestamp, max(start, manifest.log_start_offset)):
            if unset is not None and not 0 <= entry.base_timestamp < timestamp:
                yield unset
            unset = entry if entry.is_time_unset and entry.max_timestamp < timestamp else None
            if entry.max_timestamp >= timestamp:
                yield entry
        if unset is not None:
            yield unset

    async def _list_by_time(self, manifest: Manifest, timestamp: int, start: int) -> AsyncIterator[SegmentEntry]:
        """Yields the segments that name a timestamp of at least `timestamp`, and those before one that may have such a
        record nevertheless. Segments of earlier versions are in order of time."""
        early: list[ManifestNode] = []
        stack = list(reversed(manifest.nodes))
        while stack:
            node = stack.pop()
            if node.next_offset <= start or _is_timeless(node):
                continue
            if node.max_timestamp < timestamp:
                if not _is_time_unset(node):
                    early.clear()
                early.append(node)
            elif isinstance(node, SubmanifestRef):
                stack += reversed(await self.read_submanifest(node))
            else:
                if not 0 <= node.base_timestamp < timestamp:
                    async for entry in self._list_early(early, timestamp, start):
                        yield entry
                early = []
                yield node
        async for entry in self._list_early(early, timestamp, start):
            yield entry

    async def _list_early(
        self, nodes: Sequence[ManifestNode], timestamp: int, start: int
    ) -> AsyncIterator[SegmentEntry]:
        """Yields the segments of `nodes` from the last one on that begins earlier than `timestamp`, by bisection."""
        low, high = 0, len(nodes)
        while high - low > 1:
            middle = (low + high) // 2
            if 0 <= (await self._first_segment(nodes[middle], start)).base_timestamp < timestamp:
                low = middle
            else:
                high = middle
        for node in nodes[low:]:
            if isinstance(node, SegmentEntry):
                yield node
                continue
            children = await self.read_submanifest(node)
            alive = [child for child in children if child.next_offset > start and not _is_timeless(child)]
            unset = list(takewhile(_is_time_unset, reversed(alive)))
            async for entry in self._list_early(alive[-len(unset) - 1 :], timestamp, start):
                yield entry

    async def _first_segment(self, node: ManifestNode, start: int) -> SegmentEntry:
        """Returns the first segment of a node that ends above `start`."""
        while isinstance(node, SubmanifestRef):
            node = next(child for child in await self.read_submanifest(node) if child.next_offset > start)
        return node

    async def list_nodes_by_time(self, manifest: Manifest, end: int, before: int) -> AsyncIterator[ManifestNode]:
        """Yields the live nodes that begin below offset `end`, oldest first: nodes that name no timestamp of `before`
        (milliseconds) or later, and in place of each other node the segments in it."""
        stack = list(reversed(manifest.nodes))
        while stack:
            node = stack.pop()
            if node.next_offset <= manifest.log_start_offset or node.base_offset >= end:
                continue
            if isinstance(node, SubmanifestRef) and node.max_timestamp >= before:
                stack += reversed(await self.read_submanifest(node))
            else:
                yield node

    async def list_segments(self, manifest: Manifest, start: int = 0) -> AsyncIterator[SegmentEntry]:
        """Yields all live segments that end above `start`, oldest first."""
        async for node in self._walk_nodes(manifest.nodes, max(start, manifest.log_start_offset)):
            if isinstance(node, SegmentEntry):
                yield node

    async def list_newest_first(self, manifest: Manifest, end: int) -> AsyncIterator[SegmentEntry]:
        """Yields all live segments that begin below `end`, newest first. Reads each sub-manifest when it gets there."""
        stack = list(manifest.nodes)
        while stack:
            node = stack.pop()
            if node.next_offset <= manifest.log_start_offset:
                return
            if isinstance(node, SubmanifestRef):
                stack += await self.read_submanifest(node)
            elif node.base_offset < end:
                yield node

    async def list_keys(self, manifest: Manifest) -> AsyncIterator[str]:
        """Yields the keys of all live objects that the manifest names, including sub-manifests."""
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

    async def change(
        self, partition_id: PartitionId, topic: str, epoch: int, fn: ManifestChange, *, from_written: bool = False
    ) -> Manifest:
        """Applies `fn` under leader epoch `epoch` and returns the manifest that is then in the bucket.

        The epoch is written too, so a change without other effect takes the manifest over. Raises `Fenced` if a higher
        epoch has taken it over. Raises `Unavailable` if the outcome is unknown or the bucket did not reply in time.

        With `from_written` the change is made on the manifest that this store wrote last, without a read of the bucket.
        The put fails if that is not the manifest in the bucket. Then the change is made again on that one.
        """
        try:
            return await self._change(partition_id, topic, epoch, fn, from_written)
        except BaseException:
            self.mark_orphans(partition_id)  # the change may be applied later, and nobody would delete what it drops
            raise

    async def _change(
        self, partition_id: PartitionId, topic: str, epoch: int, fn: ManifestChange, from_written: bool
    ) -> Manifest:
        lock = self._locks.setdefault(partition_id, asyncio.Lock())
        async with lock:
            started = self._clock.mono_ns()
            while True:
                written_before = self._written.pop(partition_id, None)
                known = written_before if from_written and partition_id not in self._undecided else None
                from_written = False
                old, version = known or await self._get(partition_id)
                if old is not None and old.leader_epoch > epoch:
                    self._undecided.discard(partition_id)  # an earlier put fails: the version in the bucket has changed
                    self._changes.inc(1, "fenced")
                    raise Fenced(f"{partition_id}: leader epoch {epoch} is below {old.leader_epoch} of the manifest")
                self._refuse_older(partition_id, old)
                if old is None and await self._has_objects(partition_id):
                    continue
                base = old or Manifest(topic, partition_id.topic_id, partition_id.partition)
                new = await self.apply_change(base.adopt_epoch(epoch), fn)
                if new == old and known is not None:
                    continue  # the manifest in the bucket may be another one
                if new == old and partition_id not in self._undecided:
                    return new
                written = await self._compare_and_swap(partition_id, base, new, version, started)
                self._undecided.discard(partition_id)
                if self._keys_in_flight.pop(partition_id, None) and written is None:
                    self.mark_orphans(partition_id)
                self._changes.inc(1, "lost" if written is None else "made")
                if written is not None:
                    self._newest_sequences[partition_id] = written.sequence
                    return written

    def _refuse_older(self, partition_id: PartitionId, found: Manifest | None) -> None:
        """Raises `Corrupt` if an earlier change knew a newer manifest. A change of the older one would do again what is
        done, and the caller, who knows better, would ask for it without end."""
        sequence, newest = found.sequence if found is not None else 0, self._newest_sequences.get(partition_id, 0)
        if sequence < newest:
            raise Corrupt(
                f"the bucket went back to an older state: the manifest has sequence {sequence}, and had {newest}: put"
                " the newer one back",
                where=manifest_key(partition_id),
            )
        if sequence:
            self._newest_sequences[partition_id] = sequence

    async def _has_objects(self, partition_id: PartitionId) -> bool:
        """True if another broker has just written a manifest.

        Raises `Corrupt` if there are objects without a manifest. The manifest is written before the first object, so it
        was lost. In a new manifest all these objects would be garbage.
        """
        listed = await self._store.list(partition_prefix(partition_id))
        if not any(parse_key(item.key) for item in listed):
            return False
        if isinstance(await self._store.get(manifest_key(partition_id)), NotFound):
            raise Corrupt("manifest is missing, but objects of its partition exist", where=manifest_key(partition_id))
        return True

    async def take_over(self, partition_id: PartitionId, topic: str, epoch: int) -> Manifest:
        """Returns the manifest under leader epoch `epoch`, with every earlier write of this process decided."""
        return await self.change(partition_id, topic, epoch, lambda manifest, _: manifest)

    async def apply_change(self, manifest: Manifest, fn: ManifestChange) -> Manifest:
        """Applies `fn`, and reads every sub-manifest that it needs."""
        submanifests: dict[str, tuple[ManifestNode, ...]] = {}
        while True:
            try:
                return fn(manifest, submanifests)
            except SubmanifestNeeded as needed:
                submanifests[needed.ref.key] = await self.read_submanifest(needed.ref)

    @property
    def has_undecided_change(self) -> bool:
        """True if a change that no caller waits for may still be applied."""
        return bool(self._undecided)

    def keys_in_flight(self, partition_id: PartitionId) -> frozenset[str]:
        """Returns the keys of sub-manifests that an undecided change may still name: they are no garbage."""
        return frozenset(self._keys_in_flight.get(partition_id, ()))

    def mark_orphans(self, partition_id: PartitionId) -> None:
        """Notes that the bucket may have an object of the partition, now or soon, that no manifest will ever name."""
        self._may_have_orphans.add(partition_id)

    def take_orphan_mark(self, partition_id: PartitionId) -> bool:
        """Returns True if `mark_orphans` was called since the last call: only a sweep finds such objects."""
        found = partition_id in self._may_have_orphans
        self._may_have_orphans.discard(partition_id)
        return found

    def forget(self, partition_id: PartitionId) -> None:
        """Drops all state of a partition that this broker no longer leads, or that was deleted."""
        self._may_have_orphans.discard(partition_id)
        self._locks.pop(partition_id, None)
        self._undecided.discard(partition_id)
        self._written.pop(partition_id, None)
        self._newest_sequences.pop(partition_id, None)
        self._keys_in_flight.pop(partition_id, None)

    async def _compare_and_swap(
        self, partition_id: PartitionId, old: Manifest, new: Manifest, version: str, started: int
    ) -> Manifest | None:
        """Replaces `old` by `new` in the bucket. Returns None if another write came first."""
        for made in new.unwritten:
            await self._put_submanifest(partition_id, made)
        packed = await self._pack_oldest(partition_id, replace(new, unwritten=()))
        new = replace(packed, sequence=old.sequence + 1, nonce=self._new_nonce())
        check_change(old, new)
        body = encode(new)
        self._undecided.add(partition_id)
        settled = await put_until_known(
            self._store, manifest_key(partition_id), body, new.nonce,
            before=Stored(old, old.nonce, version) if version else None,
            read=partial(self._read_back, partition_id), pause=partial(self._pause, new.tp, started),
        )  # fmt: skip
        if settled.outcome is PutOutcome.DELETED:
            raise Fenced(f"{partition_id}: the manifest is gone because the topic was deleted")
        if settled.outcome is not PutOutcome.LANDED:
            return None
        if settled.version:
            self._written[partition_id] = new, settled.version
        return new

    async def _read_back(self, partition_id: PartitionId) -> Stored[Manifest] | None:
        manifest, version = await self._get(partition_id)
        return None if manifest is None else Stored(manifest, manifest.nonce, version)

    async def _pack_oldest(self, partition_id: PartitionId, manifest: Manifest) -> Manifest:
        """Returns the manifest with its oldest nodes packed into sub-manifests.

        The sub-manifests are in the bucket before the manifest names them.
        """
        while (pack_range := manifest.find_pack_range(self._fan)) is not None:
            key = submanifest_key(
                partition_id, pack_range.nodes[0].base_offset, manifest.leader_epoch, self._new_nonce()
            )
            await self._put_submanifest(partition_id, UnwrittenSubmanifest(key, pack_range.level, pack_range.nodes))
            manifest = manifest.pack(pack_range, key)
        return manifest

    async def _put_submanifest(self, partition_id: PartitionId, made: UnwrittenSubmanifest) -> None:
        self._keys_in_flight.setdefault(partition_id, set()).add(made.key)
        result = await self._store.put(made.key, encode_submanifest(partition_id, made.level, made.nodes))
        if not isinstance(result, Ok):
            raise Unavailable(f"sub-manifest {made.key} was not stored: {describe_failed_put(result)}")
        self._cache_submanifest(made.key, made.nodes)

    async def _pause(self, tp: TopicPartition, started: int, failed: int, why: str) -> None:
        if (self._clock.mono_ns() - started) / 1e9 > self._deadline_s:
            self._changes.inc(1, "undecided")
            raise Unavailable("manifest change is undecided: the object store did not reply in time")
        log.warning("manifest change was not applied and is tried again partition=%s why=%s", tp, why)
        await self._clock.sleep(self._random.uniform(0, min(BACKOFF_S * 2 ** min(failed, 16), BACKOFF_MAX_S)))

    def _new_nonce(self) -> str:
        return f"{self._random.getrandbits(128):032x}"


def _is_timeless(node: ManifestNode) -> bool:
    """True if the node is a segment without timestamps."""
    return isinstance(node, SegmentEntry) and node.is_timeless


def _is_time_unset(node: ManifestNode) -> bool:
    """True if no segment of the node says how late its records are."""
    return node.is_time_unset if isinstance(node, SegmentEntry) else node.max_timestamp < 0

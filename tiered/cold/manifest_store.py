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
    NeedsOpen,
    Node,
    Opened,
    SegmentEntry,
    Spill,
    check_change,
    find_node,
    find_node_by_time,
    holds,
)
from tiered.cold.manifest_codec import decode, decode_sub, encode, encode_sub
from tiered.errors import Corrupt, Fenced, Unavailable
from tiered.ids import PartitionId
from tiered.metrics import Metrics
from tiered.ports import Clock, NotFound, ObjectStore, Ok, Rng

T = TypeVar("T")

log = logging.getLogger(__name__)

Change = Callable[[Manifest, Opened], Manifest]
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
        self._writing: dict[PartitionId, set[str]] = {}
        self._leftovers: set[PartitionId] = set()
        self._opened: OrderedDict[str, tuple[Node, ...]] = OrderedDict()
        self._changes = metrics.counter("tiered_manifest_changes_total", "Manifest changes by outcome", ("outcome",))

    # -- reading ------------------------------------------------------------------------------------------------------

    async def load(self, pid: PartitionId) -> Manifest | None:
        """The manifest as it is now; None when nothing of the partition was ever cold. Unavailable, Corrupt."""
        manifest, _ = await self._get(pid)
        return manifest

    async def _get(self, pid: PartitionId) -> tuple[Manifest | None, str]:
        key = manifest_key(pid)
        read = await self._read(key, decode)
        if read is None:
            return None, ""
        manifest, version = read
        if manifest.pid != pid:
            raise Corrupt(f"manifest of {manifest.pid} under another's key", where=key)
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

    async def open(self, spill: Spill) -> tuple[Node, ...]:
        """What a sub-manifest names, what is dead included. Immutable, so a bounded number is kept."""
        nodes = self._opened.get(spill.key)
        if nodes is None:
            read = await self._read(spill.key, decode_sub)
            if read is None:
                raise Corrupt("sub-manifest is missing", where=spill.key)
            nodes, _ = read
            if not holds(spill, nodes):
                raise Corrupt("sub-manifest is not the one that the manifest means", where=spill.key)
            self._remember(spill.key, nodes)
        self._opened.move_to_end(spill.key)
        return nodes

    def _remember(self, key: str, nodes: tuple[Node, ...]) -> None:
        self._opened[key] = nodes
        while len(self._opened) > OPENED_MAX:
            self._opened.popitem(last=False)

    async def find(self, manifest: Manifest, offset: int) -> SegmentEntry | None:
        """The live segment that holds `offset`."""
        node = manifest.find(offset)
        while isinstance(node, Spill):
            node = find_node(await self.open(node), offset)
        return node

    async def find_time(self, manifest: Manifest, timestamp: int) -> SegmentEntry | None:
        """The first live segment with a record at or after `timestamp` (milliseconds)."""
        node = manifest.find_time(timestamp)
        while isinstance(node, Spill):
            children = await self.open(node)
            alive = [child for child in children if child.next_offset > manifest.log_start_offset]
            node = find_node_by_time(alive, timestamp)
        return node

    async def entries(self, manifest: Manifest, start: int = 0) -> AsyncIterator[SegmentEntry]:
        """All live segments that end above `start`, oldest first."""
        async for node in self._below(manifest.nodes, max(start, manifest.log_start_offset)):
            if isinstance(node, SegmentEntry):
                yield node

    async def newest_first(self, manifest: Manifest, end: int) -> AsyncIterator[SegmentEntry]:
        """All live segments that begin below `end`, newest first; sub-manifests are opened as it comes to them."""
        left = list(manifest.nodes)
        while left:
            node = left.pop()
            if node.next_offset <= manifest.log_start_offset:
                return
            if isinstance(node, Spill):
                left += await self.open(node)
            elif node.base_offset < end:
                yield node

    async def named(self, manifest: Manifest) -> AsyncIterator[str]:
        """Keys of all objects that the manifest names and that are alive, sub-manifests included."""
        async for node in self._below(manifest.nodes, manifest.log_start_offset):
            yield node.key

    async def _below(self, nodes: Iterable[Node], start: int) -> AsyncIterator[Node]:
        for node in nodes:
            if node.next_offset > start:
                yield node
                if isinstance(node, Spill):
                    async for child in self._below(await self.open(node), start):
                        yield child

    # -- changing -----------------------------------------------------------------------------------------------------

    async def change(self, pid: PartitionId, topic: str, epoch: int, fn: Change) -> Manifest:
        """Makes `fn`'s change under leader epoch `epoch` and returns the manifest that then stands in the bucket.

        The epoch is written too, so a change that leaves all else alone takes the manifest over. Fenced when a higher
        epoch has; Unavailable when the outcome is unknown or the bucket did not answer in time.
        """
        try:
            return await self._change(pid, topic, epoch, fn)
        except BaseException:
            self.note_leftover(pid)  # it may be done all the same, and then nobody deletes what it let go
            raise

    async def _change(self, pid: PartitionId, topic: str, epoch: int, fn: Change) -> Manifest:
        lock = self._locks.setdefault(pid, asyncio.Lock())
        async with lock:
            started = self._clock.mono_ns()
            while True:
                old, version = await self._get(pid)
                if old is not None and old.leader_epoch > epoch:
                    self._undecided.discard(pid)  # what was under way finds another version
                    self._changes.inc(1, "fenced")
                    raise Fenced(f"{pid}: leader epoch {epoch} is behind {old.leader_epoch} of the manifest")
                if old is None and await self._has_objects(pid):
                    continue
                base = old or Manifest(topic, pid.topic_id, pid.partition)
                new = await self.stepped(base.adopt_epoch(epoch), fn)
                if new == old and pid not in self._undecided:
                    return new
                written = await self._swap(pid, base, new, version, started)
                self._undecided.discard(pid)
                self._writing.pop(pid, None)
                self._changes.inc(1, "lost" if written is None else "made")
                if written is not None:
                    return written

    async def _has_objects(self, pid: PartitionId) -> bool:
        """Whether somebody wrote a manifest just now. Corrupt when objects are there and no manifest: it comes before
        the first of them, so it was lost, and in a new one they would all be garbage."""
        listed = await self._store.list(partition_prefix(pid))
        if not any(parse_key(item.key) for item in listed):
            return False
        if isinstance(await self._store.get(manifest_key(pid)), NotFound):
            raise Corrupt("manifest is missing, objects of its partition are there", where=manifest_key(pid))
        return True

    async def take_over(self, pid: PartitionId, topic: str, epoch: int) -> Manifest:
        """The manifest under leader epoch `epoch`, with every earlier write of this process decided."""
        return await self.change(pid, topic, epoch, lambda manifest, _: manifest)

    async def stepped(self, manifest: Manifest, fn: Change) -> Manifest:
        """`fn` applied, with every sub-manifest opened that it asks for."""
        opened: dict[str, tuple[Node, ...]] = {}
        while True:
            try:
                return fn(manifest, opened)
            except NeedsOpen as wanted:
                opened[wanted.spill.key] = await self.open(wanted.spill)

    @property
    def undecided(self) -> bool:
        """Whether a change that nobody waits for any more may yet land."""
        return bool(self._undecided)

    def busy(self, pid: PartitionId) -> frozenset[str]:
        """Sub-manifests that an undecided change may yet name: no garbage, although no manifest names them."""
        return frozenset(self._writing.get(pid, ()))

    def note_leftover(self, pid: PartitionId) -> None:
        """An object of the partition may be in the bucket, now or soon, that no manifest will ever name."""
        self._leftovers.add(pid)

    def take_leftover(self, pid: PartitionId) -> bool:
        """Returns whether that was noted since the last call: only a sweep finds such objects."""
        found = pid in self._leftovers
        self._leftovers.discard(pid)
        return found

    def forget(self, pid: PartitionId) -> None:
        """The partition is led elsewhere or deleted: lets go of what is kept for it."""
        self._leftovers.discard(pid)
        self._locks.pop(pid, None)
        self._undecided.discard(pid)
        self._writing.pop(pid, None)

    async def _swap(
        self, pid: PartitionId, old: Manifest, new: Manifest, version: str, started: int
    ) -> Manifest | None:
        """Puts `new` in the place of `old`; None when another write came first."""
        new = replace(await self._packed(pid, new), sequence=old.sequence + 1, nonce=self._fresh())
        check_change(old, new)
        body = encode(new)
        self._undecided.add(pid)
        backoff = BACKOFF_S
        while True:
            result = await self._store.put(
                manifest_key(pid), body, if_absent=not version, if_match=version if version else None
            )
            if isinstance(result, Ok):
                return new
            there = await self._read_back(pid, backoff, started)
            if there is None and version:
                raise Fenced(f"{pid}: the manifest is gone, the topic was deleted")
            nonce = there.nonce if there is not None else ""
            if nonce == new.nonce:
                return new
            if nonce != old.nonce:
                return None
            log.warning("manifest change did not land, trying again partition=%s result=%r", new.at, result)
            await self._pause(backoff, started)
            backoff = min(2 * backoff, BACKOFF_MAX_S)

    async def _read_back(self, pid: PartitionId, backoff: float, started: int) -> Manifest | None:
        while True:
            try:
                manifest, _ = await self._get(pid)
            except Unavailable:
                await self._pause(backoff, started)
                backoff = min(2 * backoff, BACKOFF_MAX_S)
            else:
                return manifest

    async def _packed(self, pid: PartitionId, manifest: Manifest) -> Manifest:
        """With its oldest nodes moved into sub-manifests, which are in the bucket before the manifest names them."""
        while (packed := manifest.to_pack(self._fan)) is not None:
            key = submanifest_key(pid, packed.nodes[0].base_offset, manifest.leader_epoch, self._fresh())
            self._writing.setdefault(pid, set()).add(key)
            result = await self._store.put(key, encode_sub(pid, packed.level, packed.nodes))
            if not isinstance(result, Ok):
                raise Unavailable(f"sub-manifest {key} was not stored: {result!r}")
            self._remember(key, packed.nodes)
            manifest = manifest.pack(packed, key)
        return manifest

    async def _pause(self, backoff: float, started: int) -> None:
        if (self._clock.mono_ns() - started) / 1e9 > self._deadline_s:
            self._changes.inc(1, "undecided")
            raise Unavailable("manifest change is undecided: the store did not answer in time")
        await self._clock.sleep(self._random.uniform(0, backoff))

    def _fresh(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

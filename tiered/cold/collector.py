"""Performs expiry and garbage plans: manifest first, object last, readers spared by a grace time in between.

Safety rests on the manifest (taken over under this leader's epoch before anything goes), never on the grace time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from tiered.cold.layout import partition_prefix, topic_prefix
from tiered.cold.manifest import Manifest, Submanifests
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.planner import RetentionLimits, find_dropped_keys, find_expiry, find_garbage
from tiered.errors import Corrupt, Fenced, Unavailable
from tiered.ids import PartitionId, TopicId
from tiered.metrics import Metrics
from tiered.ports import Clock, ListedObject, ObjectStore

log = logging.getLogger(__name__)

GRACE_MS = 60_000
"""How long an object outlives its place in the manifest, for readers that hold an older manifest."""

PENDING_MAX = 100_000
DELETE_BATCH = 1000


class Collector:
    """Deletes what is no longer cold, for all partitions of one broker. `busy` names keys that are in the making."""

    def __init__(
        self,
        store: ObjectStore,
        manifests: ManifestStore,
        keys_in_flight: Callable[[PartitionId], frozenset[str]],
        clock: Clock,
        metrics: Metrics,
        *,
        grace_ms: int = GRACE_MS,
    ) -> None:
        self._store = store
        self._manifests = manifests
        self._keys_in_flight = keys_in_flight
        self._clock = clock
        self._grace_ms = grace_ms
        # Forgotten by a restart, and beyond its bound: the sweep finds those.
        self._pending: deque[tuple[int, str]] = deque(maxlen=PENDING_MAX)
        self._deleted = metrics.counter("tiered_cold_objects_deleted_total", "Objects deleted by reason", ("reason",))

    # -- expiry -------------------------------------------------------------------------------------------------------

    async def expire(
        self,
        manifest: Manifest | None,
        epoch: int,
        limits: RetentionLimits,
        *,
        local_bytes_above_cold: int,
        now_ms: int,
    ) -> Manifest | None:
        """Moves the log start up by total retention; the new manifest, or None when nothing expired.

        Expires nothing without a manifest taken over under `epoch`: then the remote size is not known. Fenced,
        Unavailable.
        """
        if manifest is None:
            return None
        plan = None

        def planned(current: Manifest, opened: Submanifests) -> Manifest:
            nonlocal plan
            plan = find_expiry(
                current,
                epoch,
                limits,
                local_bytes_above_cold=local_bytes_above_cold,
                now_ms=now_ms,
                submanifests=opened,
            )
            return current

        await self._manifests.apply_change(manifest, planned)
        if plan is None:
            return None
        log.info("log start moves partition=%s offset=%d why=%s", manifest.tp, plan.start_offset, plan.why)
        return await self.advance_start(manifest, epoch, plan.start_offset)

    async def advance_start(self, manifest: Manifest, epoch: int, offset: int) -> Manifest:
        """The log starts at `offset` (retention, DeleteRecords): in the manifest when this returns; objects below are
        deleted after the grace time, or where the bucket does not say which these are, by a sweep. Fenced, Unavailable.
        """
        before: Manifest | None = None

        def step(current: Manifest, opened: Submanifests) -> Manifest:
            nonlocal before
            before = current
            return current.advance_start(offset, opened)

        written = await self._manifests.change(manifest.partition_id, manifest.topic, epoch, step)
        assert before is not None
        try:
            self._delete_later(await self._find_dropped_keys(before, written))
        except (Unavailable, Corrupt) as error:
            self._manifests.mark_orphans(manifest.partition_id)
            log.warning("objects below the log start are left to a sweep partition=%s why=%s", manifest.tp, error)
        except asyncio.CancelledError:
            self._manifests.mark_orphans(manifest.partition_id)
            raise
        return written

    def _delete_later(self, keys: list[str]) -> None:
        due = self._clock.mono_ns() + self._grace_ms * 1_000_000
        self._pending.extend((due, key) for key in keys)

    async def _find_dropped_keys(self, before: Manifest, after: Manifest) -> list[str]:
        keys: list[str] = []

        def listed(current: Manifest, opened: Submanifests) -> Manifest:
            nonlocal keys
            keys = find_dropped_keys(current.nodes, before.log_start_offset, after.log_start_offset, opened)
            return current

        await self._manifests.apply_change(before, listed)
        return keys

    async def delete_expired(self) -> int:
        """Deletes the expired objects whose grace time is over; how many. Unavailable: call again."""
        now = self._clock.mono_ns()
        count = 0
        while self._pending and self._pending[0][0] <= now:
            batch: list[tuple[int, str]] = []
            while self._pending and self._pending[0][0] <= now and len(batch) < DELETE_BATCH:
                batch.append(self._pending.popleft())
            try:
                await self._store.delete([key for _, key in batch])
            except Unavailable:
                self._pending.extendleft(reversed(batch))
                raise
            count += len(batch)
        self._deleted.inc(count, "expired")
        return count

    # -- sweep --------------------------------------------------------------------------------------------------------

    async def sweep(self, partition_id: PartitionId, topic: str, epoch: int) -> list[str]:
        """Deletes what no manifest can name any more: orphans of lower epochs, own abandoned uploads, expired objects
        that a restart forgot. Returns the keys deleted now. Fenced, Unavailable, Corrupt.

        The order is the safety: take the manifest over, list, note what is in the making, load the manifest. An object
        listed but neither in the making nor named by that manifest never will be named. Young ones go after the grace
        time, with `delete_due`: readers may hold an older manifest.
        """
        await self._manifests.take_over(partition_id, topic, epoch)
        listed = await self._list(partition_prefix(partition_id))
        busy = self._keys_in_flight(partition_id) | self._manifests.keys_in_flight(partition_id)
        manifest = await self._manifests.load(partition_id)
        if manifest is None or manifest.leader_epoch != epoch:
            raise Fenced(f"{partition_id}: the manifest is not under epoch {epoch} any more")
        alive = {key async for key in self._manifests.list_keys(manifest)}
        found = find_garbage(listed, alive, busy, epoch)
        old_ms = self._clock.wall_ms() - self._grace_ms
        self._delete_later([item.key for item in found if item.modified_ms > old_ms])
        keys = [item.key for item in found if item.modified_ms <= old_ms]
        await self._delete(keys)
        self._deleted.inc(len(keys), "swept")
        if keys:
            log.info("swept partition=%s objects=%d", manifest.tp, len(keys))
        return keys

    async def delete_topic(self, topic_id: TopicId) -> int:
        """Deletes all objects of a deleted topic, manifests first, so that no manifest names what is gone; how many.

        A broker that has not heard of the deletion may still put objects: call again later until this returns 0.
        """
        listed = await self._list(topic_prefix(topic_id))
        manifests = [item.key for item in listed if item.key.endswith("/manifest")]
        rest = [item.key for item in listed if not item.key.endswith("/manifest")]
        await self._delete(manifests)
        await self._delete(rest)
        self._deleted.inc(len(listed), "topic")
        return len(listed)

    async def _list(self, prefix: str) -> list[ListedObject]:
        found: list[ListedObject] = []
        while True:
            page = await self._store.list(prefix, found[-1].key if found else "")
            found += page
            if not page:
                return found

    async def _delete(self, keys: list[str]) -> None:
        for at in range(0, len(keys), DELETE_BATCH):
            await self._store.delete(keys[at : at + DELETE_BATCH])
            await asyncio.sleep(0)

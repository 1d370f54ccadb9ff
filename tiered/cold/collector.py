"""Deletes expired segments and garbage from the bucket: first from the manifest, then, after a grace time, the object.

Keeps I23. Safety rests on the manifest, which is taken over under this leader's epoch before any delete. The grace time
only spares readers with an older manifest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from tiered.cold.layout import partition_prefix, topic_prefix
from tiered.cold.manifest import Manifest, Submanifests
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.planner import RetentionLimits, find_dropped_keys, find_expiry, find_garbage, find_replaced_keys
from tiered.errors import Corrupt, Fenced, Unavailable
from tiered.ids import PartitionId, TopicId
from tiered.metrics import Metrics
from tiered.ports import Clock, ListedObject, ObjectStore

log = logging.getLogger(__name__)

GRACE_MS = 60_000
"""Time that an object stays after its removal from the manifest, for readers with an older manifest."""

PENDING_MAX = 100_000
DELETE_BATCH = 1000


class Collector:
    """Deletes objects that are no longer needed, for all partitions of one broker.

    `keys_in_flight` returns the keys of unfinished uploads.
    """

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
        # Lost at a restart and beyond its limit: the sweep finds these objects.
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
        """Moves the log start up by total retention. Returns the new manifest, or None if nothing expired.

        Expires nothing without a manifest that is taken over under `epoch`: without it the size in the bucket is
        unknown. Raises `Fenced` and `Unavailable`.
        """
        if manifest is None:
            return None
        plan = None

        def plan_expiry(current: Manifest, submanifests: Submanifests) -> Manifest:
            nonlocal plan
            plan = find_expiry(
                current,
                epoch,
                limits,
                local_bytes_above_cold=local_bytes_above_cold,
                now_ms=now_ms,
                submanifests=submanifests,
            )
            return current

        await self._manifests.apply_change(manifest, plan_expiry)
        if plan is None:
            return None
        log.info("log start moves partition=%s offset=%d why=%s", manifest.tp, plan.start_offset, plan.why)
        return await self.advance_start(manifest, epoch, plan.start_offset)

    async def advance_start(self, manifest: Manifest, epoch: int, offset: int) -> Manifest:
        """Moves the log start to `offset` (retention, DeleteRecords). The manifest in the bucket has it on return.

        Objects below are deleted after the grace time. If the bucket cannot be read to find them, a sweep deletes them.
        Raises `Fenced` and `Unavailable`.
        """
        before: Manifest | None = None

        def move_start(current: Manifest, submanifests: Submanifests) -> Manifest:
            nonlocal before
            before = current
            return current.advance_start(offset, submanifests)

        written = await self._manifests.change(manifest.partition_id, manifest.topic, epoch, move_start)
        assert before is not None
        try:
            self._delete_later(await self._find_dropped_keys(before, written))
        except (Unavailable, Corrupt) as error:
            self._manifests.mark_orphans(manifest.partition_id)
            log.warning("objects below the log start wait for the next sweep partition=%s why=%s", manifest.tp, error)
        except asyncio.CancelledError:
            self._manifests.mark_orphans(manifest.partition_id)
            raise
        return written

    async def delete_replaced(self, before: Manifest, runs: Sequence[tuple[int, int]]) -> None:
        """Deletes, after the grace time, the objects of runs of segments that a change of `before` has replaced.

        If the bucket cannot be read to find them, a sweep deletes them.
        """
        keys: dict[str, None] = {}

        def list_replaced(current: Manifest, submanifests: Submanifests) -> Manifest:
            for begin, end in runs:
                keys.update(dict.fromkeys(find_replaced_keys(current.nodes, begin, end, submanifests)))
            return current

        try:
            await self._manifests.apply_change(before, list_replaced)
        except (Unavailable, Corrupt) as error:
            self._manifests.mark_orphans(before.partition_id)
            log.warning("replaced objects wait for the next sweep partition=%s why=%s", before.tp, error)
        except asyncio.CancelledError:
            self._manifests.mark_orphans(before.partition_id)
            raise
        else:
            self._delete_later([*keys])

    def _delete_later(self, keys: list[str]) -> None:
        due = self._clock.mono_ns() + self._grace_ms * 1_000_000
        self._pending.extend((due, key) for key in keys)

    async def _find_dropped_keys(self, before: Manifest, after: Manifest) -> list[str]:
        keys: list[str] = []

        def list_dropped(current: Manifest, submanifests: Submanifests) -> Manifest:
            nonlocal keys
            keys = find_dropped_keys(current.nodes, before.log_start_offset, after.log_start_offset, submanifests)
            return current

        await self._manifests.apply_change(before, list_dropped)
        return keys

    async def delete_expired(self) -> int:
        """Deletes expired objects after their grace time and returns how many. Raises `Unavailable`: then call it
        again."""
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
        """Deletes objects that no manifest can name any more, and returns their keys.

        These are orphans of lower epochs, abandoned uploads of this leader, and expired objects forgotten at a restart.
        Raises `Fenced`, `Unavailable` and `Corrupt`.

        The order makes it safe: take over the manifest, list the objects, note the keys in flight, load the manifest. A
        listed object that is neither in flight nor in that manifest will never be in a manifest. Recent ones are
        deleted by `delete_expired` after the grace time, because readers may have an older manifest.
        """
        await self._manifests.take_over(partition_id, topic, epoch)
        listed = await self._list(partition_prefix(partition_id))
        in_flight = self._keys_in_flight(partition_id) | self._manifests.keys_in_flight(partition_id)
        manifest = await self._manifests.load(partition_id)
        if manifest is None or manifest.leader_epoch != epoch:
            raise Fenced(f"{partition_id}: another leader took the manifest over from epoch {epoch}")
        live_keys = {key async for key in self._manifests.list_keys(manifest)}
        found = find_garbage(listed, live_keys, in_flight, epoch)
        old_ms = self._clock.wall_ms() - self._grace_ms
        self._delete_later([item.key for item in found if item.modified_ms > old_ms])
        keys = [item.key for item in found if item.modified_ms <= old_ms]
        await self._delete(keys)
        self._deleted.inc(len(keys), "swept")
        if keys:
            log.info("garbage deleted partition=%s objects=%d", manifest.tp, len(keys))
        return keys

    async def delete_topic(self, topic_id: TopicId) -> int:
        """Deletes all objects of a deleted topic and returns how many. Manifests go first: no manifest names a deleted
        object.

        A broker that does not know of the deletion yet may still put objects. Call it again later until it returns 0.
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
        for first in range(0, len(keys), DELETE_BATCH):
            await self._store.delete(keys[first : first + DELETE_BATCH])
            await asyncio.sleep(0)  # a store on this machine deletes without a wait

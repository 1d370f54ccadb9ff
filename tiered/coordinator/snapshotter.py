"""Writes snapshots of coordinators: first the snapshot, then the log below it is deleted, then older snapshots.

In this order each step deletes only data of which another copy exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from itertools import chain
from typing import Any

from tiered.coordinator.partition import CoordinatorPartition
from tiered.coordinator.snapshot import SnapshotName
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore
from tiered.errors import Refused, Unavailable
from tiered.shard import CoordinatorRecord

log = logging.getLogger(__name__)

AnyPartition = CoordinatorPartition[Any, Any, Any]

FINAL_SNAPSHOTS_SECONDS = 3.0
"""Time for the final snapshots of a clean stop. The log is complete without them."""
CONCURRENT_SNAPSHOTS = 4


class CoordinatorSnapshotter:
    """Writes the state of a broker's coordinators to the bucket."""

    def __init__(self, store: CoordinatorSnapshotStore) -> None:
        self._store = store
        self._final_snapshots: list[tuple[AnyPartition, int, list[CoordinatorRecord]]] = []

    async def save_changed(self, partitions: Iterable[AnyPartition]) -> None:
        """Writes a snapshot of each coordinator that changed. The next call retries one that failed."""
        for partition in partitions:
            coordinator = partition.coordinator
            if coordinator is None or coordinator.unsaved_since_ms < 0:
                continue
            since = coordinator.unsaved_since_ms
            try:
                await self.write(partition, *await coordinator.snapshot())
            except (Unavailable, Refused) as error:
                coordinator.unsaved_since_ms = since
                log.warning("snapshot failed, retrying later partition=%s why=%s", partition.replica.tp, error)

    async def write(self, partition: AnyPartition, offset: int, records: list[CoordinatorRecord]) -> None:
        """Writes a snapshot: `records` give the state of the log below `offset`.

        Raises `Unavailable` if it is not known to be in the bucket.
        """
        replica = partition.replica
        name = self._name(partition, offset)
        await self._store.write(name, records)
        partition.snapshot_names = (*partition.snapshot_names, name)
        if replica.is_stopped:
            return
        replica.deletion.advance_start(offset)  # no harm if this is undone: the snapshot covers the records below
        try:
            partition.snapshot_names = await self._store.delete_older(partition.snapshot_names, name)
        except Unavailable as error:  # the next snapshot deletes them
            log.warning("older snapshots are not deleted yet partition=%s why=%s", replica.tp, error)
        # A snapshot that cannot be read is replaced by an older one and the records behind it.
        replica.in_snapshots_to = min(each.offset for each in partition.snapshot_names)

    def _name(self, partition: AnyPartition, offset: int) -> SnapshotName:
        replica = partition.replica
        return SnapshotName(self._store.kind, replica.partition_id, replica.leader_epoch, offset)

    def prepare_final_snapshot(self, partition: AnyPartition) -> None:
        """Takes the state for the final snapshot of this partition, before its log is closed."""
        coordinator = partition.coordinator
        if coordinator is not None and coordinator.unsaved_since_ms >= 0:
            try:
                end = coordinator.flush()
                self._final_snapshots.append((partition, end, list(chain(*coordinator.shard.snapshot()))))
            except Refused as refused:
                log.warning("final snapshot is not taken partition=%s why=%s", partition.replica.tp, refused)

    async def save_final_snapshots(self) -> None:
        """Writes the final snapshots of a clean stop, so that a start with an empty disk finds the newest state."""
        semaphore = asyncio.Semaphore(CONCURRENT_SNAPSHOTS)

        async def save(partition: AnyPartition, offset: int, records: list[CoordinatorRecord]) -> None:
            async with semaphore:
                if partition.replica.is_committed(offset):
                    await self._store.write(self._name(partition, offset), records)

        try:
            async with asyncio.timeout(FINAL_SNAPSHOTS_SECONDS):
                await asyncio.gather(*(save(*each) for each in self._final_snapshots))
        except (TimeoutError, Unavailable) as error:
            log.warning("final snapshots are not all stored why=%s", error or "the object store was too slow")

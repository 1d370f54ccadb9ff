"""When images of groups are written, and what goes once one is there: image, then the log below it, then older images.

In this order each step lets go only of what is doubled by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from tiered.coordinator.runtime import CoordinatorRuntime
from tiered.coordinator.snapshot import SnapshotName
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore
from tiered.errors import Refused, Unavailable
from tiered.groups.records import CoordinatorRecord
from tiered.replication.leader_replica import LeaderReplica

log = logging.getLogger(__name__)

FINAL_SNAPSHOTS_SECONDS = 3.0
"""What a clean stop gives the last images: the log is whole without them."""
CONCURRENT_SNAPSHOTS = 4


@dataclass(eq=False, slots=True)
class CoordinatorPartition:
    """A partition that is led here. `coordinator` is None while it is loaded; `trouble` says why that takes long;
    `names` are the images in the bucket, as far as this leader knows; `deleted` are topics that went meanwhile."""

    replica: LeaderReplica
    coordinator: CoordinatorRuntime | None = None
    snapshot_names: tuple[SnapshotName, ...] = ()
    load_error: str = ""
    deleted_topics: dict[str, None] = field(default_factory=dict)


class CoordinatorSnapshotter:
    """Keeps what the coordinators of a broker know in the bucket."""

    def __init__(self, store: CoordinatorSnapshotStore) -> None:
        self._store = store
        self._final_snapshots: list[tuple[CoordinatorPartition, int, list[CoordinatorRecord]]] = []

    async def save_changed(self, partitions: Iterable[CoordinatorPartition]) -> None:
        """An image of each that changed; one that fails comes with the next call."""
        for partition in partitions:
            coordinator = partition.coordinator
            if coordinator is None or coordinator.unsaved_since_ms < 0:
                continue
            since = coordinator.unsaved_since_ms
            try:
                await self.write(partition, *await coordinator.snapshot())
            except (Unavailable, Refused) as error:
                coordinator.unsaved_since_ms = since
                log.warning("image of groups comes later partition=%s why=%s", partition.replica.tp, error)

    async def write(self, partition: CoordinatorPartition, offset: int, records: list[CoordinatorRecord]) -> None:
        """`records` are what the log says below `offset`. `Unavailable` when it is not known to be in the bucket."""
        replica = partition.replica
        name = SnapshotName(replica.partition_id, replica.leader_epoch, offset)
        await self._store.write(name, records)
        partition.snapshot_names = (*partition.snapshot_names, name)
        if replica.is_stopped:
            return
        replica.advance_start(offset)  # the image has what lies below: it may as well come back
        try:
            partition.snapshot_names = await self._store.delete_older(partition.snapshot_names, name)
        except Unavailable as error:  # they go with the next image
            log.warning("older images of groups stay for now partition=%s why=%s", replica.tp, error)

    def prepare_final_snapshot(self, partition: CoordinatorPartition) -> None:
        """What the last image of this partition is to hold, before its log is closed."""
        coordinator = partition.coordinator
        if coordinator is not None and coordinator.unsaved_since_ms >= 0:
            try:
                self._final_snapshots.append((partition, coordinator.flush(), coordinator.shard.snapshot()))
            except Refused as refused:
                log.warning("last image of groups is not made partition=%s why=%s", partition.replica.tp, refused)

    async def save_final_snapshots(self) -> None:
        """A clean stop: whoever finds another disk at the next start finds the groups as they are now."""
        semaphore = asyncio.Semaphore(CONCURRENT_SNAPSHOTS)

        async def save(partition: CoordinatorPartition, offset: int, records: list[CoordinatorRecord]) -> None:
            async with semaphore:
                if partition.replica.is_committed(offset):
                    name = SnapshotName(partition.replica.partition_id, partition.replica.leader_epoch, offset)
                    await self._store.write(name, records)

        try:
            async with asyncio.timeout(FINAL_SNAPSHOTS_SECONDS):
                await asyncio.gather(*(save(*each) for each in self._final_snapshots))
        except (TimeoutError, Unavailable) as error:
            log.warning("last images of groups are not all stored why=%s", error or "the store was too slow")

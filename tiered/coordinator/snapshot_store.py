"""Snapshots of coordinators in the bucket: reads, writes, deletes them, and makes logs agree with them (R5).

A snapshot replaces a log that is lost (I31). Therefore it counts as written only after the store confirmed it. Only
then the log below it and older snapshots are deleted. A leader deletes no snapshot of an epoch above its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

from tiered.coordinator.log_records import encode_batches
from tiered.coordinator.snapshot import (
    SnapshotKind,
    SnapshotName,
    choose_snapshot,
    decode_snapshot,
    encode_snapshot,
)
from tiered.errors import Corrupt, Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.ids import NO_EPOCH, PartitionId, TopicId, TopicPartition
from tiered.metrics import Counter
from tiered.ports import Clock, ConditionFailed, ListedObject, NotFound, ObjectStore, Ok
from tiered.replication.become_leader import LeaderStart
from tiered.replication.chain_history import ChainHistory, SaveOffsets, append_from_chains
from tiered.replication.leader_state import RestartAtColdEnd
from tiered.shard import CoordinatorRecord
from tiered.system.turns import each_of

log = logging.getLogger(__name__)

READ_ATTEMPTS = 8
"""Reads of one snapshot before it counts as corrupt. Another read heals a fault on the way, but none in the bucket."""
KEPT_SNAPSHOTS = 2
"""Snapshots of a partition that are kept: the newest, and the one before it, in case the newest is corrupt."""


class PreviousSnapshot(NamedTuple):
    """Start of a leader: the snapshot below its log, with its batches if they were read already, and all snapshots."""

    name: SnapshotName | None
    batches: list[bytes] | None
    names: tuple[SnapshotName, ...]


class SnapshotMetrics(NamedTuple):
    """Metrics of one kind of snapshots: `written` counts snapshots by outcome ("written", "failed")."""

    written: Counter
    bytes: Counter


class CoordinatorSnapshotStore:
    """The snapshots of one internal topic, for the coordinators of one broker."""

    def __init__(
        self, topic: str, kind: SnapshotKind, store: ObjectStore, clock: Clock, metrics: SnapshotMetrics
    ) -> None:
        self.topic = topic
        self.kind = kind
        self._metrics = metrics
        self._store = store
        self._clock = clock
        self._listing_lock = asyncio.Lock()
        self._listed: tuple[TopicId, dict[int, list[SnapshotName]]] | None = None
        self._bases: dict[PartitionId, PreviousSnapshot] = {}

    # -- where to start -----------------------------------------------------------------------------------------------

    def invalidate_listing(self) -> None:
        """Drops the listing of an earlier leadership. Partitions that start together share one listing."""
        self._listed = None

    async def reconcile(
        self, hot: DiskLog, partition_id: PartitionId, chains: ChainHistory | None, save_offsets: SaveOffsets
    ) -> LeaderStart:
        """Makes a log of the topic agree with its snapshots and its write-ahead chains before this broker leads it
        (R5).

        Offsets that a snapshot covers are never assigned again. The broker makes a log that restarts here durable
        before it leads, as any truncated log. Raises `Unavailable` if the bucket cannot be read, and `Corrupt` if
        records of the chains are missing or damaged.
        """
        start = await self._reconcile_snapshots(hot, partition_id)
        if chains is None:
            return start
        base, batches, names = self._bases[partition_id]
        restarted: list[RestartAtColdEnd] = [] if start.restart is None else [start.restart]

        async def restart(first: int) -> None:
            read = batches if base is None or batches is not None else await self.read(base)
            hot.truncate_fully_and_start_at(first, (), None)
            self._bases[partition_id] = PreviousSnapshot(base, read, names)
            restarted.append(RestartAtColdEnd(first, "the log disagrees with the chains"))

        offset, epoch = (base.offset, base.epoch) if base is not None else (hot.local_start_offset, NO_EPOCH)
        stored_end = await append_from_chains(hot, offset, epoch, chains, restart, save_offsets)
        return LeaderStart(None, restarted[-1] if restarted else None, stored_end=stored_end)

    async def _reconcile_snapshots(self, hot: DiskLog, partition_id: PartitionId) -> LeaderStart:
        names = await self._partition_names(partition_id)
        candidates = list(names)
        while True:
            choice = choose_snapshot(candidates, hot.local_start_offset, hot.end_offset, hot.epochs)
            if choice.base is None or not choice.restarts_log:
                self._bases[partition_id] = PreviousSnapshot(choice.base, None, names)
                return LeaderStart(None, None)
            try:
                batches = await self.read(choice.base)  # the log is dropped only for a snapshot that can be read
            except Corrupt as error:
                log.error("snapshot cannot be used, trying an older one key=%s why=%s", choice.base.key, error)
                candidates.remove(choice.base)
                continue
            restart = RestartAtColdEnd(choice.base.offset, f"the log ends at {hot.end_offset}, below its snapshot")
            tp = TopicPartition(self.topic, partition_id.partition)
            log.warning(
                "snapshot replaces the local log partition=%s offset=%d why=%s",
                tp,
                restart.offset,
                restart.why,
            )
            hot.truncate_fully_and_start_at(restart.offset, (), None)
            self._bases[partition_id] = PreviousSnapshot(choice.base, batches, names)
            return LeaderStart(None, restart)

    def take_base(self, partition_id: PartitionId) -> PreviousSnapshot:
        """Returns what `reconcile` found, and forgets it. Returns nothing for a new log."""
        return self._bases.pop(partition_id, PreviousSnapshot(None, None, ()))

    async def _partition_names(self, partition_id: PartitionId) -> tuple[SnapshotName, ...]:
        async with self._listing_lock:
            if self._listed is None or self._listed[0] != partition_id.topic_id:
                self._listed = partition_id.topic_id, await self._list_topic(partition_id.topic_id)
            return tuple(self._listed[1].get(partition_id.partition, ()))

    async def _list_topic(self, topic_id: TopicId) -> dict[int, list[SnapshotName]]:
        prefix, names = self.kind.topic_prefix(topic_id), dict[int, list[SnapshotName]]()
        page: list[ListedObject] = []
        while page := await self._store.list(prefix, page[-1].key if page else ""):
            for name in filter(None, (self.kind.parse_key(each.key) for each in page)):
                names.setdefault(name.partition_id.partition, []).append(name)
        return names

    # -- one snapshot -------------------------------------------------------------------------------------------------

    async def read(self, name: SnapshotName) -> list[bytes]:
        """Returns the batches of a snapshot.

        Raises `Corrupt` if the snapshot is gone or fails its checks in every attempt, `Unavailable` if the bucket
        cannot be read.
        """
        for attempt in range(1, READ_ATTEMPTS + 1):
            got = await self._store.get(name.key)
            if isinstance(got, NotFound):
                raise Corrupt("snapshot is gone", where=name.key)
            try:
                return decode_snapshot(name, got.data)
            except Corrupt as error:
                if attempt == READ_ATTEMPTS:
                    raise
                log.warning("snapshot is corrupt, reading it again key=%s why=%s", name.key, error)
        raise AssertionError("unreachable")

    async def write(self, name: SnapshotName, records: list[CoordinatorRecord]) -> None:
        """Writes a snapshot, and returns once it is in the bucket.

        Raises `Unavailable` if the store did not confirm it: the snapshot may be there, or appear later. One name
        stands for one state, and only the leader of its epoch writes it. An object that is there already is the same,
        and is not overwritten.
        """
        now_ms = self._clock.wall_ms()
        batches: list[bytes] = []
        async for each in each_of(encode_batches(records, now_ms)):
            batches.append(each)
        body = encode_snapshot(name, batches, len(records), now_ms)
        result = await self._store.put(name.key, body, if_absent=True)
        if not isinstance(result, Ok | ConditionFailed):
            self._metrics.written.inc(1, "failed")
            raise Unavailable(f"snapshot {name.key} was not stored: {result!r}")
        self._metrics.written.inc(1, "written")
        self._metrics.bytes.inc(len(body))

    async def delete_older(self, names: Iterable[SnapshotName], newest: SnapshotName) -> tuple[SnapshotName, ...]:
        """Deletes snapshots older than `newest` and the one before it. Returns those left; raises `Unavailable`."""
        ordered = sorted({*names, newest}, reverse=True)
        newer = [name for name in ordered if name > newest]
        own_or_older = ordered[len(newer) :]
        if own_or_older[KEPT_SNAPSHOTS:]:
            await self._store.delete([name.key for name in own_or_older[KEPT_SNAPSHOTS:]])
        return tuple(newer + own_or_older[:KEPT_SNAPSHOTS])

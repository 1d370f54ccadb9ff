"""Loads a shard: the snapshot, then the log from its offset on, then corrections by the state of the cluster (R5).

It works in slices, with a turn for other tasks in between: a coordinator with a long log delays only its own groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from tiered.coordinator.snapshot import SnapshotName, choose_snapshot, decode_batch
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore, PreviousSnapshot
from tiered.errors import Corrupt
from tiered.groups.records import CoordinatorRecord, OffsetKey, offset_record
from tiered.groups.shard import GroupShard
from tiered.ports import Clock, FileSlice
from tiered.records.batch import decode_records
from tiered.records.model import CONTROL
from tiered.records.native import walk
from tiered.replication.leader_replica import LeaderReplica

log = logging.getLogger(__name__)

READ_BYTES = 256 << 10
SLICE_RECORDS = 500
COMMIT_MS = 30_000
"""Time in which the in-sync replicas have to replicate the log as it was when this broker became leader."""


class LoadedShard(NamedTuple):
    """Outcome of a load.

    `snapshot` is the one that was used, None for none. `lost_below_offset`: records below it may be lost; -1 for no
    loss. `has_unsaved`: the log holds more than the snapshot.
    """

    snapshot: SnapshotName | None
    lost_below_offset: int
    has_unsaved: bool


async def load_shard(
    replica: LeaderReplica, shard: GroupShard, store: CoordinatorSnapshotStore, base: PreviousSnapshot, clock: Clock
) -> LoadedShard:
    """Loads the state of the log at the time when this broker became leader.

    Raises `Unavailable` (the bucket), `Corrupt` (the log), `Refused` (another broker leads by now).
    """
    end = replica.log.end_offset
    await replica.wait_committed(end, COMMIT_MS)
    start = replica.log_start_offset
    snapshot, batches = await _read_snapshot(replica, store, base)
    for each in batches:
        shard.load(decode_batch(each))
        await clock.sleep(0)
    from_offset = start if snapshot is None else max(start, snapshot.offset)
    await _replay(replica, shard, from_offset, end, clock)
    below = 0 if snapshot is None else snapshot.offset
    return LoadedShard(snapshot, start if below < start else -1, from_offset < end)


async def _read_snapshot(
    replica: LeaderReplica, store: CoordinatorSnapshotStore, base: PreviousSnapshot
) -> tuple[SnapshotName | None, list[bytes]]:
    """Reads the snapshot to start from, or an older one if it is corrupt."""
    name, batches, end = base.name, base.batches, replica.log.end_offset
    candidates = [each for each in base.names if each.offset <= end]
    while name is not None and batches is None:
        try:
            batches = await store.read(name)
        except Corrupt as error:
            log.error("group snapshot cannot be used, trying an older one key=%s why=%s", name.key, error)
            candidates = [each for each in candidates if each != name]
            name = choose_snapshot(candidates, replica.log_start_offset, end, replica.log.epochs).base
    return name, batches or []


async def _replay(replica: LeaderReplica, shard: GroupShard, offset: int, end: int, clock: Clock) -> None:
    while offset < end:
        fetched = replica.reads.read_now(offset, READ_BYTES)
        data = fetched.data if fetched is not None else b""
        if isinstance(data, FileSlice):
            data = data.file.pread(data.start, data.length)
        walked = walk(data)
        if walked.why or not walked.batches:
            raise Corrupt(f"no batch at offset {offset}: {walked.why or 'no data'}", where=str(replica.tp))
        for each in walked.batches:
            if not each.attributes & CONTROL:
                rows = (row for row in decode_records(data, each.position) if row.offset >= offset)
                shard.load(CoordinatorRecord(row.key, row.value) for row in rows if row.key is not None)
        offset = walked.batches[-1].last_offset + 1
        await clock.sleep(0)


class OffsetCorrections(NamedTuple):
    """Corrections of committed offsets.

    `records` are to be appended, so that each offset lies within its partition. `lowered` names each changed offset
    with its old and new value. `deleted_topics` have committed offsets but do not exist any more.
    """

    records: list[CoordinatorRecord]
    lowered: list[tuple[OffsetKey, int, int]]
    deleted_topics: tuple[str, ...]


async def correct_offsets(
    shard: GroupShard, end_offset_of: Callable[[str, int], int | None], clock: Clock
) -> OffsetCorrections:
    """Compares committed offsets with the state of the cluster (R5).

    `end_offset_of` returns the end of a partition that lost records, -1 if there is no such topic, and None if the
    offset can stay.
    """
    lowered: list[tuple[OffsetKey, int, int]] = []
    records: list[CoordinatorRecord] = []
    deleted_topics: dict[str, None] = {}
    looked_at = 0
    for group in list(shard.log_state.offsets):
        for topic, partition, committed in shard.log_state.iterate_offsets(group):
            looked_at += 1
            end = end_offset_of(topic, partition)
            if end is not None and end < 0:
                deleted_topics[topic] = None
            elif end is not None and committed.offset > end:
                lowered.append((OffsetKey(group, topic, partition), committed.offset, end))
                records.append(offset_record(group, topic, partition, committed._replace(offset=end, leader_epoch=-1)))
        if looked_at > SLICE_RECORDS:
            looked_at = 0
            await clock.sleep(0)
    return OffsetCorrections(records, lowered, tuple(deleted_topics))

"""Loads a shard: the snapshot, then the log from its offset on (R5).

It works in slices, with a turn for other tasks in between: a coordinator with a long log delays only its own callers.
The shard gets each committed offset in the order of the log (I18). Markers of transactions take effect where they stand
in the log (I15).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from tiered.coordinator.log_records import decode_batch
from tiered.coordinator.snapshot import SnapshotName, choose_snapshot
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore, PreviousSnapshot
from tiered.errors import Corrupt
from tiered.ports import Clock, FileSlice
from tiered.records.batch import decode_records
from tiered.records.marker import decode_marker
from tiered.records.model import CONTROL, TRANSACTIONAL
from tiered.records.native import walk
from tiered.replication.leader_replica import LeaderReplica
from tiered.shard import CoordinatorRecord, CoordinatorShard, ProducerIdAndEpoch
from tiered.system.turns import each_of

log = logging.getLogger(__name__)

AnyShard = CoordinatorShard[Any, Any, Any]

READ_BYTES = 256 << 10
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
    replica: LeaderReplica,
    shard: AnyShard,
    store: CoordinatorSnapshotStore,
    find_base: Callable[[], PreviousSnapshot],
    clock: Clock,
) -> LoadedShard:
    """Loads the state of the log at the time of the call, once it is committed.

    `find_base` is called then: a snapshot that was being written when the load began moves the log start to its offset.
    Raises `Unavailable` (the bucket), `Corrupt` (the log), `Refused` (another broker leads by now).
    """
    end = replica.log.end_offset
    await replica.wait_committed(end, COMMIT_MS)
    start = replica.log_start_offset
    snapshot, batches = await _read_snapshot(replica, store, find_base())
    async for each in each_of(batches):
        shard.apply(decode_batch(each))
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
            log.error("snapshot cannot be used, trying an older one key=%s why=%s", name.key, error)
            candidates = [each for each in candidates if each != name]
            name = choose_snapshot(candidates, replica.log_start_offset, end, replica.log.epochs).base
    return name, batches or []


async def _replay(replica: LeaderReplica, shard: AnyShard, offset: int, end: int, clock: Clock) -> None:
    while offset < end:
        fetched = replica.reads.read_now(offset, READ_BYTES)
        data = fetched.data if fetched is not None else b""
        if isinstance(data, FileSlice):
            data = data.file.pread(data.start, data.length)
        walked = walk(data)
        if walked.why or not walked.batches:
            raise Corrupt(f"no batch at offset {offset}: {walked.why or 'no data'}", where=str(replica.tp))
        for each in walked.batches:
            if each.attributes & CONTROL:
                marker = decode_marker(memoryview(data)[each.position : each.position + each.size])
                shard.end_transaction(ProducerIdAndEpoch(*marker[:2]), marker.commit)
                continue
            is_transactional = each.attributes & TRANSACTIONAL
            producer = ProducerIdAndEpoch(each.producer_id, each.producer_epoch) if is_transactional else None
            rows = (row for row in decode_records(data, each.position) if row.offset >= offset)
            shard.apply([CoordinatorRecord(row.key, row.value, producer) for row in rows if row.key is not None])
        offset = walked.batches[-1].last_offset + 1
        await clock.sleep(0)  # a read from the page cache waits for nothing

"""Snapshots of groups in the bucket: stored before the log below them is deleted, and before older snapshots are."""

from __future__ import annotations

import pytest

from tests.scenario import in_rig
from tests.unit.replication.rig import ReplicationRig, append_batch
from tiered.config.settings import TopicConfig
from tiered.coordination.snapshot_stores import GROUP_SNAPSHOTS, make_group_snapshot_store
from tiered.coordinator.loader import load_shard
from tiered.coordinator.snapshot import SnapshotName
from tiered.coordinator.snapshot_store import READ_ATTEMPTS, CoordinatorSnapshotStore, PreviousSnapshot
from tiered.coordinator.snapshotter import AnyPartition, CoordinatorSnapshotter
from tiered.errors import Corrupt, Unavailable
from tiered.groups.limits import GroupSettings
from tiered.groups.records import OffsetValue, offset_record
from tiered.groups.shard import GroupShard
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.replication.leader_replica import LeaderReplica
from tiered.shard import CoordinatorRecord


def record(offset: int) -> CoordinatorRecord:
    return offset_record("g", "t", 0, OffsetValue(offset, -1, "", 0, -1, ""))


def snapshot_store(rig: ReplicationRig, node: int = 1) -> CoordinatorSnapshotStore:
    broker = rig.brokers[node]
    return make_group_snapshot_store(broker.store, broker.clock, broker.metrics)


def stored(rig: ReplicationRig) -> list[tuple[int, int]]:
    """(epoch, offset) of all snapshots in the bucket, in order."""
    found = [name for key in rig.bucket.objects if (name := GROUP_SNAPSHOTS.parse_key(key)) is not None]
    return sorted((name.epoch, name.offset) for name in found)


def small() -> ReplicationRig:
    return ReplicationRig(config=TopicConfig(remote_storage_enable=False, segment_bytes=1 << 20))


async def led(rig: ReplicationRig, records: int = 10, epoch: int = 0) -> LeaderReplica:
    replica = await rig.brokers[1].lead(epoch, [1])
    for number in range(records):
        append_batch(replica, number)
    return replica


@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.CONFLICT, FaultKind.THROTTLE], ids=lambda kind: kind.name)
@in_rig(small)
async def test_log_and_older_snapshots_stay_until_the_put_is_confirmed(rig: ReplicationRig, *, kind: FaultKind) -> None:
    replica = await led(rig)
    place, keeping = AnyPartition(replica), CoordinatorSnapshotter(snapshot_store(rig))
    await keeping.write(place, 2, [record(1)])
    await keeping.write(place, 4, [record(2)])
    rig.brokers[1].faults.rules.append(FaultRule(kind, ("put",), key="groups/"))
    with pytest.raises(Unavailable):
        await keeping.write(place, 8, [record(3)])
    assert replica.log_start_offset == 4 and stored(rig) == [(0, 2), (0, 4)]


@pytest.mark.parametrize("kind", [FaultKind.TRUNCATED, FaultKind.FLIPPED], ids=lambda kind: kind.name)
def test_snapshot_that_is_damaged_on_its_way_is_read_again(kind: FaultKind) -> None:
    """The one before it, which lacks commits, is not taken for it."""
    rig = small()

    async def scenario() -> None:
        store, keeping = snapshot_store(rig), CoordinatorSnapshotter(snapshot_store(rig))
        replica = await led(rig)
        await keeping.write(AnyPartition(replica), 4, [record(2)])
        name = SnapshotName(GROUP_SNAPSHOTS, replica.partition_id, replica.leader_epoch, 4)
        intact = await store.read(name)
        rig.brokers[1].faults.rules.append(FaultRule(kind, ("get",), key="groups/", times=READ_ATTEMPTS - 1))
        assert await store.read(name) == intact
        rig.brokers[1].faults.rules.append(FaultRule(kind, ("get",), key="groups/", times=READ_ATTEMPTS))
        with pytest.raises(Corrupt):
            await store.read(name)

    rig.run(scenario)


@in_rig(small)
async def test_newest_snapshot_and_the_one_before_it_stay(rig: ReplicationRig) -> None:
    place, keeping = AnyPartition(await led(rig)), CoordinatorSnapshotter(snapshot_store(rig))
    for offset in (2, 4, 6, 8):
        await keeping.write(place, offset, [record(offset)])
    assert stored(rig) == [(0, 6), (0, 8)] and place.replica.log_start_offset == 8


@in_rig(small)
async def test_leader_deletes_no_snapshot_of_a_later_one(rig: ReplicationRig) -> None:
    replica, own = await led(rig), snapshot_store(rig)
    names = [
        SnapshotName(GROUP_SNAPSHOTS, replica.partition_id, epoch, offset)
        for epoch, offset in ((0, 2), (0, 4), (3, 5), (3, 7))
    ]
    for name in names:
        await own.write(name, [record(1)])
    await own.delete_older(names, names[1])
    await own.delete_older(names, names[0])
    assert {(3, 5), (3, 7)} < set(stored(rig)) and replica.log_start_offset == 0


@in_rig(small)
async def test_log_that_ends_below_its_snapshot_starts_over_there(rig: ReplicationRig) -> None:
    """Offsets that a snapshot covers are never assigned again."""
    first = await led(rig)
    await snapshot_store(rig).write(SnapshotName(GROUP_SNAPSHOTS, first.partition_id, 0, 10), [record(7)])
    hot = await rig.brokers[2].open_log()
    second = snapshot_store(rig, 2)
    begun = await second.reconcile(hot, first.partition_id, None, rig.brokers[2].save_offsets)
    assert begun.restart is not None and hot.local_start_offset == hot.end_offset == 10
    new_leader = await rig.brokers[2].lead(1, [2])
    shard = GroupShard(GroupSettings(), lambda: "id")
    base = second.take_base(first.partition_id)
    loaded = await load_shard(new_leader, shard, second, lambda: base, rig.clock)
    kept = shard.log_state.committed_offset("g", "t", 0)
    assert kept is not None and kept.offset == 7 and loaded.lost_below_offset == -1 and not loaded.has_unsaved


@in_rig(small)
async def test_gap_between_snapshot_and_log_is_reported(rig: ReplicationRig) -> None:
    replica = await led(rig)
    own = snapshot_store(rig)
    name = SnapshotName(GROUP_SNAPSHOTS, replica.partition_id, 0, 2)
    await own.write(name, [record(1)])
    await replica.deletion.delete_records(5)
    shard = GroupShard(GroupSettings(), lambda: "id")
    base = PreviousSnapshot(name, None, (name,))
    loaded = await load_shard(replica, shard, own, lambda: base, rig.clock)
    assert loaded.lost_below_offset == 5

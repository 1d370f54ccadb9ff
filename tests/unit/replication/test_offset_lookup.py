"""Look-ups of offsets by time and by epoch: right while records move to the bucket, over nested sub-manifests, and
after deletions inside a segment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from tests.scenario import in_rig
from tests.unit.hot.test_validation_of_timestamps import made
from tests.unit.replication.rig import ReplicationRig
from tiered.cold.manifest import Manifest
from tiered.config.settings import TopicConfig
from tiered.hot.time_lookup import TimeLookups
from tiered.records.batch import encode_batch, stamp
from tiered.replication.become_leader import PreviousLeader
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.offset_lookup import OffsetSpec, TimestampAndOffset, end_offset_for_epoch, find_by_spec

SMALL = TopicConfig(segment_bytes=600, index_interval_bytes=200)
PAST_MS = 100_000


async def upload_all(replica: LeaderReplica) -> Manifest:
    """Uploads all closed segments."""
    manifest = await replica.take_over_manifest()
    while True:
        written = await replica.cold.uploader.upload_next(replica.log, manifest, 0, replica.log.end_offset)
        if written is None:
            return manifest
        manifest = written
        replica.unified_log.update_manifest(manifest)


async def tier(replica: LeaderReplica) -> int:
    """Uploads all closed segments and drops them from the disk. Returns the cold end."""
    manifest = await upload_all(replica)
    await replica.log.drop_local_below(manifest.cold_end_offset)
    return manifest.cold_end_offset


def append(replica: LeaderReplica, timestamps: Sequence[int], *, acks: int = 1) -> None:
    """Appends one batch of one record for each timestamp."""
    for timestamp in timestamps:
        replica.append_now(bytearray(encode_batch([(timestamp, b"k", b"v" * 400, ())])), acks)


async def find_newest(replica: LeaderReplica) -> TimestampAndOffset:
    return await find_by_spec(replica, OffsetSpec.MAX_TIMESTAMP, lambda: replica.high_watermark, TimeLookups())


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=2000, index_interval_bytes=200))
async def test_record_that_moves_to_the_bucket_during_its_look_up_is_found(rig: ReplicationRig) -> None:
    base = rig.clock.wall_ms() - PAST_MS
    replica = await rig.brokers[1].lead(0, [1])
    append(replica, range(base, base + 20))
    cold_end = await tier(replica)
    append(replica, range(base + 20, base + 40))
    rig.brokers[1].faults.first_byte_seconds = 1.0
    replica.cold.reader._cache._chunks.clear()
    others = [asyncio.create_task(replica.reads.offset_for_timestamp(base + 3)) for _ in range(8)]
    await asyncio.sleep(0.001)
    look_up = asyncio.create_task(replica.reads.offset_for_timestamp(base + cold_end + 1))
    await asyncio.sleep(0.001)
    rig.brokers[1].faults.first_byte_seconds = 0.01
    assert await tier(replica) > cold_end + 1
    assert await look_up == (cold_end + 1, base + cold_end + 1, 0)
    assert {await other for other in others} == {(3, base + 3, 0)}


@in_rig(ReplicationRig, config=SMALL, fan=2)
async def test_segments_behind_a_deleted_late_record_are_found_in_deep_manifests(rig: ReplicationRig) -> None:
    base = rig.clock.wall_ms() - PAST_MS
    replica = await rig.brokers[1].lead(0, [1])
    append(replica, [base + n + (50_000 if n == 0 else 0) for n in range(40)])
    await tier(replica)
    await replica.deletion.delete_records(1)
    for target in range(1, 39):
        assert await replica.reads.offset_for_timestamp(base + target) == (target, base + target, 0)
    assert await replica.reads.offset_for_timestamp(base + 40) is None
    assert await find_newest(replica) == (39, base + 39, 0)


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=2000, index_interval_bytes=200))
async def test_newest_timestamp_is_that_of_a_record_that_is_not_deleted(rig: ReplicationRig) -> None:
    base = rig.clock.wall_ms() - PAST_MS
    replica = await rig.brokers[1].lead(0, [1])
    append(replica, [base + each for each in (90, 50, 1, 2, 3, 4, 5, 6, 7)])
    await replica.deletion.delete_records(1)
    assert await find_newest(replica) == (1, base + 50, 0)
    await tier(replica)
    assert await find_newest(replica) == (1, base + 50, 0)
    await replica.deletion.delete_records(2)
    assert await find_newest(replica) == (8, base + 7, 0)


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=2000, index_interval_bytes=200))
async def test_newest_timestamp_is_that_of_a_committed_record(rig: ReplicationRig) -> None:
    base = rig.clock.wall_ms() - PAST_MS
    replica = await rig.brokers[1].lead(0, [1])
    append(replica, [base + each for each in (1, 3, 2, 9)])
    found = await find_by_spec(replica, OffsetSpec.MAX_TIMESTAMP, lambda: 3, TimeLookups())
    assert found == (1, base + 3, 0)


@in_rig(ReplicationRig, config=SMALL, fan=2)
async def test_unset_timestamps_of_an_earlier_version_are_found_in_the_bucket(rig: ReplicationRig) -> None:
    base = rig.clock.wall_ms() - PAST_MS
    replica = await rig.brokers[1].lead(0, [1])
    for number in range(40):
        data = made([base + 10 * number, base + 10 * number + 5, base + 10 * number + 2], newest=-1)
        stamp(data, 0, replica.log.end_offset, 0)
        replica.log.append_as_follower(data, now_ms=base)
    replica.roll()
    append(replica, [base + 400])  # moves the high watermark
    for ends in (((121, 120, 400), (120, 118, 395), (60, 58, 195)), ((121, 120, 400), (120, 118, 395))):
        for target in range(40):
            for late, offset, stamp_ms in ((0, 0, 0), (1, 1, 5), (5, 1, 5), (6, 3, 10)):
                found = await replica.reads.offset_for_timestamp(base + 10 * target + late)
                assert found == (3 * target + offset, base + 10 * target + stamp_ms, 0)
        assert await replica.reads.offset_for_timestamp(base + 401) is None
        for end, offset, newest in ends:
            found = await find_by_spec(replica, OffsetSpec.MAX_TIMESTAMP, partial(int, end), TimeLookups())
            assert found == (offset, base + newest, 0)
        await tier(replica)


@in_rig(ReplicationRig, config=SMALL)
async def test_newest_record_is_found_below_cold_records_without_timestamps(rig: ReplicationRig) -> None:
    base = rig.clock.wall_ms() - PAST_MS
    replica = await rig.brokers[1].lead(0, [1])
    for data in (made([base, base + 5], newest=-1), made([-1]), made([-1])):
        stamp(data, 0, replica.log.end_offset, 0)
        replica.log.append_as_follower(data, now_ms=base)
        replica.roll()
    append(replica, [-1])  # moves the high watermark
    await tier(replica)
    assert replica.local_start_offset >= 3
    found = await find_by_spec(replica, OffsetSpec.MAX_TIMESTAMP, partial(int, 4), TimeLookups())
    assert found == (1, base + 5, 0)


@in_rig(ReplicationRig, config=SMALL, fan=2)
async def test_epoch_ends_where_it_did_though_later_epochs_are_deleted_meanwhile(rig: ReplicationRig) -> None:
    base, broker = rig.clock.wall_ms() - PAST_MS, rig.brokers[1]
    replica = await broker.lead(0, [1])
    append(replica, range(base, base + 10))
    replica.roll()
    cold_end = await tier(replica)
    replica = await broker.lead(5, [1], previous_leader=PreviousLeader.STOPPED_CLEANLY)
    replica.log.truncate_fully_and_start_at(cold_end + 5, ((3, cold_end),), None)
    append(replica, range(base + 20, base + 30))
    assert replica.log.epochs.lineage == ((3, cold_end), (5, cold_end + 5))
    replica.cold.manifests._submanifests.clear()
    broker.faults.first_byte_seconds = 1.0
    look_up = asyncio.create_task(end_offset_for_epoch(replica, 1))
    await asyncio.sleep(0.001)
    broker.faults.first_byte_seconds = 0.01
    replica.log.advance_start(cold_end + 7)
    assert await look_up == (0, cold_end)

"""Tests of reads from leader and follower replicas: they return committed records and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.refusal import refuses
from tests.scenario import in_rig
from tests.sim.harness.disk import SimDisk
from tests.unit.cold.rig import LocalLog
from tests.unit.cold.rig import batch as keyed_batch
from tests.unit.hot.fixtures import NOW, batch
from tests.unit.hot.test_disk_log_transactions import data, marker
from tests.unit.replication.rig import (
    INCARNATIONS,
    TOPIC_ID,
    TP,
    ReplicationRig,
    append_batch,
    follow_leader,
    read_bytes,
    read_log,
)
from tests.unit.replication.test_leader_replica_roles import wait_until
from tiered.config.settings import TopicConfig
from tiered.errors import Code
from tiered.hot.time_lookup import TimeLookups
from tiered.peers import PartitionFetch
from tiered.replication import offset_lookup
from tiered.replication.follower_reads import FollowerReads
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica


def fetch_as_follower(replica: LeaderReplica, offset: int) -> None:
    """Records a fetch of a follower that has all records below `offset`."""
    asked = PartitionFetch(TOPIC_ID, TP.partition, replica.leader_epoch, offset, 0, 0, 0)
    replica.handle_follower_fetch(2, INCARNATIONS[2], asked, 0)


async def leader_and_lagging_follower(rig: ReplicationRig) -> tuple[LeaderReplica, FollowerReplica]:
    """Returns a leader, and a follower that has ten records and knows five of them as committed."""
    replica = await rig.brokers[1].lead(0, [1, 2, 3])
    for number in range(5):
        append_batch(replica, number)
    replica.handle_follower_fetch(3, INCARNATIONS[3], PartitionFetch(TOPIC_ID, 0, 0, 5, 0, 0, 0), 0)
    _, copy = await follow_leader(rig, replica)
    await wait_until(lambda: copy.high_watermark == 5)
    for number in range(5, 10):
        append_batch(replica, number)
    await wait_until(lambda: copy.log.end_offset == 10)
    return replica, copy


@in_rig(ReplicationRig)
async def test_leader_serves_committed_records_only(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    for number in range(10):
        append_batch(replica, number)
    fetch_as_follower(replica, 4)
    found = replica.reads.read_now(0, 1 << 20)
    assert found is not None and read_bytes(found.data) == read_log(replica.log)[: found.size]
    assert found.size == 4 * len(batch(0)) and found.high_watermark == 4
    beyond = replica.reads.read_now(7, 1 << 20)
    assert beyond is not None and beyond.size == 0, "in the log, and not committed"
    with refuses(Code.OFFSET_OUT_OF_RANGE):
        replica.reads.read_now(11, 1 << 20)


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=1 << 20))
async def test_read_committed_shows_a_transaction_after_its_marker(rig: ReplicationRig) -> None:
    log = await rig.brokers[1].open_log()
    for one in (batch(0), data(1, 0, 7)):
        log.append_as_follower(one, now_ms=NOW)
    replica = await rig.brokers[1].lead(0, [1, 2])
    fetch_as_follower(replica, 2)

    def size_read(read_committed: bool) -> int:
        found = replica.reads.read_now(0, 1 << 20, read_committed)
        assert found is not None
        return found.size

    assert size_read(False) == log.segments.size_bytes and size_read(True) == len(batch(0))
    assert replica.last_stable_offset == replica.reads.offset_snapshot()[1] == 1
    log.append_as_follower(marker(2, 7, commit=True), now_ms=NOW)
    replica.on_config_changed()
    assert replica.last_stable_offset == 1, "its marker is not committed"
    replica.state.advance(3, 1)
    fetch_as_follower(replica, 3)
    assert replica.last_stable_offset == 3 and size_read(True) == log.segments.size_bytes


@in_rig(ReplicationRig)
async def test_cold_records_are_read_from_the_bucket_and_deleted_ones_nowhere(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    for number in range(60):
        append_batch(replica, number)
    manifest = await replica.cold.manifests.take_over(replica.partition_id, "t", 0)
    while (written := await replica.cold.uploader.upload_next(replica.log, manifest, 0, 60)) is not None:
        manifest = written
        replica.unified_log.update_manifest(manifest)
    await replica.log.drop_local_below(manifest.cold_end_offset)
    assert replica.reads.read_now(0, 1 << 20) is None, "only the bucket can answer"
    assert read_bytes((await replica.reads.read(0, 1)).data)[:8] == bytes(8)
    await replica.deletion.delete_records(10)
    with refuses(Code.OFFSET_OUT_OF_RANGE):
        replica.reads.read_now(9, 1)


@pytest.mark.parametrize("read_committed", [False, True])
@in_rig(ReplicationRig)
async def test_read_in_a_gap_below_the_cold_end_goes_on_above_it(rig: ReplicationRig, *, read_committed: bool) -> None:
    """The last cold segment is of a log that Kafka cleaned, and local retention has dropped it. Once, the consumer got
    OFFSET_OUT_OF_RANGE, and began again at the log start."""
    broker = rig.brokers[1]
    log = await broker.open_log()
    log.truncate_fully_and_start_at(25, ((1, 0),), None)
    replica = await broker.lead(1, [1])
    source = LocalLog(SimDisk(broker.rng.stream("of Kafka")))
    source.write([keyed_batch(0), keyed_batch(10)], 25)
    manifest = await replica.cold.manifests.take_over(replica.partition_id, "t", 1)
    cold = await replica.cold.uploader.upload_next(source, manifest, 1, 25)
    assert cold is not None and cold.cold_end_offset == 25
    replica.unified_log.update_manifest(cold)
    assert (await replica.reads.read(20, 1 << 20, read_committed=read_committed)).data == b""
    waiting = asyncio.ensure_future(replica.reads.read(20, 1 << 20, max_wait_ms=60_000, read_committed=read_committed))
    await rig.clock.sleep(1)
    assert append_batch(replica, 25) == 26
    found = await waiting
    assert isinstance(found.data, bytes), "as any read of the bucket"
    assert found.data == read_log(replica.log) and found.high_watermark == 26


@in_rig(ReplicationRig)
async def test_late_reply_of_the_bucket_replaces_no_newer_manifest(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    older = await replica.cold.manifests.take_over(replica.partition_id, "t", 0)
    newer = replace(older, sequence=older.sequence + 1)
    replica.unified_log.update_manifest(newer)
    replica.unified_log.update_manifest(older)
    assert replica.manifest is newer


@in_rig(ReplicationRig)
async def test_uncommitted_record_is_not_found_by_timestamp(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    for number in range(3):
        append_batch(replica, number)
    fetch_as_follower(replica, 2)
    assert (
        await offset_lookup.find_by_timestamp(replica, NOW + 1, lambda: replica.high_watermark, TimeLookups())
    ).offset == 1
    assert (
        await offset_lookup.find_by_timestamp(replica, NOW + 2, lambda: replica.high_watermark, TimeLookups())
        == offset_lookup.OFFSET_NOT_FOUND
    )


@in_rig(ReplicationRig)
async def test_follower_in_the_isr_serves_committed_records(rig: ReplicationRig) -> None:
    _, copy = await leader_and_lagging_follower(rig)
    in_sync = True
    source = FollowerReads(copy, lambda: in_sync)
    assert source.read_now(0, 1 << 20).size == 5 * len(batch(0))
    assert source.read_now(5, 1 << 20).size == 0
    in_sync = False
    with refuses(Code.NOT_LEADER_OR_FOLLOWER):
        source.read_now(0, 1 << 20)


@pytest.mark.parametrize(
    ("offset", "code"),
    [(11, Code.OFFSET_NOT_AVAILABLE), (12, Code.OFFSET_NOT_AVAILABLE), (13, Code.OFFSET_OUT_OF_RANGE)],
)
@in_rig(ReplicationRig)
async def test_committed_record_not_copied_yet_is_not_out_of_range(
    rig: ReplicationRig, *, offset: int, code: Code
) -> None:
    """After OFFSET_OUT_OF_RANGE a consumer would reset its offset."""
    _, copy = await leader_and_lagging_follower(rig)
    copy.leader_high_watermark = 12
    with refuses(code):
        FollowerReads(copy, lambda: True).read_now(offset, 1)

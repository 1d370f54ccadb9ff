"""Tests of the start of a leader epoch: which leader may change the manifest, how log and bucket are reconciled (R5),
and the fsync before it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scenario import in_rig
from tests.unit.hot.cleaning import resources
from tests.unit.hot.fixtures import NOW, batch
from tests.unit.replication.rig import TOPIC_ID, TP, ReplicationRig, append_batch, read_log
from tiered.config.settings import TopicConfig
from tiered.errors import Fenced
from tiered.hot.checkpoints import EPOCHS_FILE
from tiered.hot.disk_log import DiskLog
from tiered.ids import PartitionId
from tiered.records.batch import encode_batch
from tiered.records.native import walk
from tiered.replication.become_leader import PreviousLeader
from tiered.replication.leader_replica import LeaderReplica


async def upload(leader: LeaderReplica) -> None:
    """Uploads the whole log under the leader's epoch."""
    leader.roll()
    manifest = await leader.cold.manifests.take_over(leader.partition_id, leader.topic, leader.leader_epoch)
    end = leader.log.end_offset
    written = await leader.cold.uploader.upload_next(leader.log, manifest, leader.leader_epoch, end)
    assert written is not None and written.cold_end_offset == end
    leader.unified_log.update_manifest(written)


def large() -> ReplicationRig:
    return ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))


@in_rig(large)
async def test_leader_takes_manifest_over_if_an_earlier_one_may_still_write(rig: ReplicationRig) -> None:
    first = await rig.brokers[1].lead(0, [1], [1, 2])
    for number in range(10):
        append_batch(first, number)
    await upload(first)
    new_leader = await rig.brokers[2].lead(1, [2], [1, 2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
    assert new_leader.manifest is not None and new_leader.manifest.leader_epoch == 1 and not new_leader.takeover_pending
    with pytest.raises(Fenced):
        await first.cold.manifests.take_over(first.partition_id, first.topic, 0)


@in_rig(large)
async def test_in_sync_leader_that_lacks_cold_records_takes_the_manifest_over(rig: ReplicationRig) -> None:
    first = await rig.brokers[1].lead(0, [1], [1, 2])
    for number in range(10):
        append_batch(first, number)
    await upload(first)
    new_leader = await rig.brokers[2].lead(1, [2], [1, 2], previous_leader=PreviousLeader.WAS_IN_SYNC_WITH)
    assert new_leader.log.local_start_offset == new_leader.log.end_offset == 10
    assert new_leader.manifest is not None and new_leader.manifest.leader_epoch == 1 and not new_leader.takeover_pending


@pytest.mark.parametrize(
    "past", [PreviousLeader.MAY_STILL_WRITE, PreviousLeader.WAS_IN_SYNC_WITH, PreviousLeader.STOPPED_CLEANLY]
)
@in_rig(large)
async def test_deleted_records_stay_deleted_under_the_next_leader(rig: ReplicationRig, *, past: PreviousLeader) -> None:
    first, second = await rig.brokers[1].lead(0, [1]), await rig.brokers[2].lead(0, [2])
    for number in range(10):
        append_batch(first, number)
        append_batch(second, number)
    await upload(first)
    await first.deletion.delete_records(7)
    new_leader = await rig.brokers[2].lead(1, [2], previous_leader=past)
    assert new_leader.log.start_offset == new_leader.log_start_offset == 7


@in_rig(large)
async def test_damaged_leader_epochs_cost_no_local_record(rig: ReplicationRig) -> None:
    first = await rig.brokers[1].lead(3, [1])
    for number in range(10):
        append_batch(first, number)
    await upload(first)
    append_batch(first, 10)
    first.log.epochs.truncate_from(0)
    first.log.epochs.assign(2, 0)  # a right CRC, and not what the batches say
    new_leader = await rig.brokers[1].lead(4, [1], previous_leader=PreviousLeader.MAY_STILL_WRITE)
    assert (new_leader.log.local_start_offset, new_leader.log.end_offset) == (0, 11)
    assert new_leader.log.epochs.lineage == ((3, 0),) and not new_leader.restarted_at_cold_end
    text = rig.brokers[1].disk.open(f"log/t-0/{EPOCHS_FILE}", write=False)
    assert b"3 0" in text.pread(0, text.size())


@in_rig(large)
async def test_log_that_diverged_from_cold_segments_is_dropped(rig: ReplicationRig) -> None:
    first, second = await rig.brokers[1].lead(1, [1]), await rig.brokers[2].lead(2, [2])
    for number in range(10):
        append_batch(first, number)
        append_batch(second, number)
    await upload(first)
    append_batch(second, 10)
    new_leader = await rig.brokers[2].lead(3, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
    assert new_leader.restarted_at_cold_end and new_leader.log.local_start_offset == new_leader.log.end_offset == 10
    assert new_leader.log.epochs.lineage == ((1, 0),), "leader epochs of what is cold"


@in_rig(large)
async def test_cold_lineage_has_every_epoch_of_several_segments(rig: ReplicationRig) -> None:
    for epoch in (0, 1, 2, 5):
        leader = await rig.brokers[1].lead(epoch, [1], previous_leader=PreviousLeader.STOPPED_CLEANLY)
        append_batch(leader, leader.log.end_offset)
        await upload(leader)
    append_batch(leader, 4)
    new_leader = await rig.brokers[1].lead(6, [1], previous_leader=PreviousLeader.MAY_STILL_WRITE)
    assert (new_leader.log.local_start_offset, new_leader.log.end_offset) == (
        0,
        5,
    ) and not new_leader.restarted_at_cold_end


COMPACTED = TopicConfig(segment_bytes=4000, cleanup_policy=("compact",), remote_storage_enable=False)


async def fill(log: DiskLog, same: range, epochs: dict[int, int], count: int = 120) -> None:
    """Appends batches of one record each. Those in `same` have one key. `epochs` has the first offset of each epoch."""
    for number in range(count):
        key = b"same" if number in same else b"k%d" % number
        epoch = max(each for each, start in epochs.items() if start <= number)
        log.append(bytearray(encode_batch([(NOW, key, b"v" * 60, ())])), leader_epoch=epoch, now_ms=NOW)
    await log.flush()


async def compact(log: DiskLog) -> None:
    await log.compaction.clean(log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW), resources())


async def compact_as_kafka(log: DiskLog) -> None:
    """Compacts a log, and drops the first batch of a leader epoch too if it has no record left."""
    await compact(log)
    data = read_log(log)
    log.truncate_fully_and_start_at(0, (), None)
    for each in walk(data).batches:
        if each.count:
            one = bytearray(data[each.position : each.position + each.size])
            log.append_as_follower(one, now_ms=NOW, may_have_gaps=True)
    await log.flush()


async def tier(rig: ReplicationRig, log: DiskLog, epoch: int) -> int:
    """Turns tiering on, which ends the cleans of disks. Broker 1 uploads its closed segments. Returns the cold end."""
    for broker in rig.brokers.values():
        for each in broker.logs.values():
            each.configure(replace(COMPACTED, remote_storage_enable=True))
    cold = rig.brokers[1].cold
    manifest = await cold.manifests.take_over(PartitionId(TOPIC_ID, TP.partition), TP.topic, epoch)
    written = await cold.uploader.upload_next(log, manifest, epoch, log.end_offset)
    assert written is not None
    return written.cold_end_offset


@pytest.mark.parametrize("past", [PreviousLeader.WAS_IN_SYNC_WITH, PreviousLeader.MAY_STILL_WRITE])
@pytest.mark.parametrize("epochs", [{1: 0, 2: 50, 3: 110}, {1: 0, 2: 42, 3: 58, 4: 110}])
@in_rig(ReplicationRig, config=COMPACTED)
async def test_leader_keeps_records_above_objects_of_a_log_cleaned_otherwise(
    rig: ReplicationRig, *, past: PreviousLeader, epochs: dict[int, int]
) -> None:
    """A compacted topic becomes tiered after the leader cleaned its disk, and before the follower did. The cold epochs
    begin later than those of the follower, or one of them has no record left."""
    old, follower = await rig.brokers[1].open_log(), await rig.brokers[2].open_log()
    for log in (old, follower):
        await fill(log, range(40, 60), epochs)
    await compact_as_kafka(old)
    assert 60 < await tier(rig, old, 4) < 120
    data = read_log(follower)
    new_leader = await rig.brokers[2].lead(5, [2], previous_leader=past)
    assert new_leader.manifest is not None and [
        start for each in new_leader.manifest.entries for epoch, start in each.lineage if epoch == 2
    ] != [epochs[2]]
    assert not new_leader.restarted_at_cold_end and read_log(new_leader.log) == data
    assert new_leader.log.epochs.lineage == tuple(epochs.items())


@pytest.mark.parametrize("local_epoch", [2, 3])
@in_rig(ReplicationRig, config=COMPACTED)
async def test_leader_with_a_gap_at_the_cold_end_keeps_the_same_history(
    rig: ReplicationRig, *, local_epoch: int
) -> None:
    """It has copied a cleaned log, so no batch of its own names the epoch of the last cold offset."""
    old, source = await rig.brokers[1].open_log(), await rig.brokers[2].open_log()
    await fill(old, range(80, 95), {1: 0, 3: 85})
    cold_end = await tier(rig, old, 3)
    source.configure(replace(COMPACTED, segment_bytes=1 << 20))
    await fill(source, range(80, 95), {1: 0, local_epoch: 85})
    source.roll()
    await compact_as_kafka(source)
    copy = await rig.brokers[3].open_log()
    copy.append_as_follower(bytearray(read_log(source)), now_ms=NOW, may_have_gaps=True)
    assert copy.epochs.lineage == ((1, 0), (local_epoch, 94)) and 85 < cold_end < 94
    new_leader = await rig.brokers[3].lead(4, [3], previous_leader=PreviousLeader.WAS_IN_SYNC_WITH)
    if local_epoch == 3:
        assert not new_leader.restarted_at_cold_end and new_leader.log.end_offset == 120
    else:
        assert new_leader.restarted_at_cold_end and new_leader.log.end_offset == cold_end


@in_rig(ReplicationRig, config=COMPACTED)
async def test_damaged_leader_epochs_of_a_compacted_log_are_repaired(rig: ReplicationRig) -> None:
    log = await rig.brokers[1].open_log()
    await fill(log, range(40, 60), {1: 0, 2: 50})
    await compact(log)
    await tier(rig, log, 3)
    for damaged in ((), ((1, 0),)):
        log.epochs.truncate_from(0)
        for epoch, start in damaged:
            log.epochs.assign(epoch, start)
        new_leader = await rig.brokers[1].lead(4, [1], previous_leader=PreviousLeader.MAY_STILL_WRITE)
        assert new_leader.log.end_offset == 120 and not new_leader.restarted_at_cold_end
        assert log.epochs.lineage == ((1, 0), (2, 50))


@pytest.mark.parametrize("past", [PreviousLeader.NONE, PreviousLeader.STOPPED_CLEANLY, PreviousLeader.MAY_STILL_WRITE])
@in_rig(ReplicationRig, config=TopicConfig(flush="ack", segment_bytes=1 << 20))
async def test_new_leader_with_flush_ack_fsyncs_its_log_first(rig: ReplicationRig, *, past: PreviousLeader) -> None:
    """Records from before the epoch are soon below the high watermark, and then count as acknowledged."""
    log = await rig.brokers[1].open_log()
    log.append(batch(0, 10), leader_epoch=0, now_ms=NOW)
    leader = await rig.brokers[1].lead(1, [1], previous_leader=past)
    assert leader.high_watermark == log.flushed_offset == (0 if past is PreviousLeader.NONE else 10)
    leader.append_now(batch(10), 1)
    assert leader.high_watermark == log.flushed_offset, "an append alone counts for nothing"

"""Tests of a leader replica: replies to followers, the end of waits, and calls of its listeners."""

from __future__ import annotations

import asyncio

import pytest

from tests.refusal import refuses
from tests.scenario import in_rig
from tests.sim.harness.disk import DiskFault
from tests.unit.hot.fixtures import batch
from tests.unit.replication.rig import INCARNATIONS, TOPIC_ID, ReplicationRig, append_batch, read_bytes, read_log
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused
from tiered.peers import DivergingEpoch, PartitionFetch
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered.replication.read_result import FollowerReadResult

MIB = 1 << 20


def fetch(
    replica: LeaderReplica,
    broker: int,
    offset: int,
    last_epoch: int = 0,
    *,
    max_bytes: int = MIB,
    epoch: int | None = None,
) -> FollowerReadResult:
    leader_epoch = replica.leader_epoch if epoch is None else epoch
    asked = PartitionFetch(TOPIC_ID, 0, leader_epoch, offset, last_epoch if offset else -1, 0, 0)
    return replica.handle_follower_fetch(broker, INCARNATIONS[broker], asked, max_bytes)


class RecordedProgress:
    def __init__(self) -> None:
        self.places: list[int] = []

    def on_progress(self, index: int) -> None:
        self.places.append(index)


@in_rig(ReplicationRig)
async def test_follower_gets_records_that_are_not_committed_yet(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    end = append_batch(replica, 0, 3)
    copied = fetch(replica, 2, 0)
    assert read_bytes(copied.data) == read_log(replica.log)
    assert (copied.code, copied.high_watermark, replica.high_watermark) == (Code.NONE, 0, 0)
    assert fetch(replica, 2, end).high_watermark == end
    assert replica.high_watermark == end


@in_rig(ReplicationRig)
async def test_fetch_without_room_for_records_is_recorded(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    end = append_batch(replica, 0)
    assert fetch(replica, 2, end, max_bytes=0).size == 0
    assert replica.high_watermark == end
    append_batch(replica, 1)
    assert fetch(replica, 2, end, max_bytes=0).size == 0
    assert fetch(replica, 2, end, max_bytes=1).size > 0


@in_rig(ReplicationRig)
async def test_diverged_follower_gets_the_epoch_and_does_not_count(rig: ReplicationRig) -> None:
    log = await rig.brokers[1].open_log()
    log.append(batch(0, 5), leader_epoch=0, now_ms=rig.clock.wall_ms())
    replica = await rig.brokers[1].lead(2, [1, 2])
    end = append_batch(replica, 5, 5)
    copied = fetch(replica, 2, end, last_epoch=1)
    assert copied.diverging == DivergingEpoch(0, 5)
    assert copied.size == 0
    assert replica.high_watermark == 0


@pytest.mark.parametrize(
    ("broker", "incarnation", "epoch", "code"),
    [
        (2, 22, 3, Code.FENCED_LEADER_EPOCH),
        (2, 22, 5, Code.UNKNOWN_LEADER_EPOCH),
        (2, 99, 4, Code.STALE_BROKER_EPOCH),
        (3, 33, 4, Code.STALE_BROKER_EPOCH),
    ],
)
@in_rig(ReplicationRig)
async def test_refused_fetch_moves_no_high_watermark(
    rig: ReplicationRig, *, broker: int, incarnation: int, epoch: int, code: Code
) -> None:
    replica = await rig.brokers[1].lead(4, [1, 2])
    fetch(replica, 2, 0)
    end = append_batch(replica, 0)
    with refuses(code):
        replica.handle_follower_fetch(broker, incarnation, PartitionFetch(TOPIC_ID, 0, epoch, end, 4, 0, 0), MIB)
    assert replica.high_watermark == 0


@in_rig(ReplicationRig)
async def test_follower_is_sent_to_the_bucket_for_deleted_local_segments(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    for number in range(60):
        append_batch(replica, number)
    fetch(replica, 2, 60)
    manifest = await replica.cold.manifests.take_over(replica.partition_id, "t", 0)
    while (written := await replica.cold.uploader.upload_next(replica.log, manifest, 0, 60)) is not None:
        manifest = written
        replica.unified_log.update_manifest(manifest)
    await replica.log.drop_local_below(manifest.cold_end_offset)
    copied = fetch(replica, 2, 10)
    assert copied.code is Code.OFFSET_MOVED_TO_TIERED_STORAGE
    assert copied.local_start_offset == copied.cold_end_offset == manifest.cold_end_offset > 10
    assert copied.log_start_offset == 0


@in_rig(ReplicationRig)
async def test_acks_all_waits_for_the_followers(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    task = asyncio.create_task(replica.append(batch(0, 3)))
    await asyncio.sleep(0.1)
    assert not task.done()
    fetch(replica, 2, 3)
    assert (await task).last_offset == 2


@in_rig(ReplicationRig, config=TopicConfig(min_insync_replicas=2))
async def test_acks_all_fails_before_and_after_the_append_if_the_isr_is_small(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    task = asyncio.create_task(replica.append(batch(0, 3)))
    await asyncio.sleep(0.1)
    replica.apply_isr([1], [1, 2], 1)
    with refuses(Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        await task
    with refuses(Code.NOT_ENOUGH_REPLICAS):
        await replica.append(batch(3))
    assert replica.high_watermark == 0
    assert replica.append_now(batch(3), 1).base_offset == 3


@in_rig(ReplicationRig, config=TopicConfig(min_insync_replicas=2))
async def test_readers_keep_waiting_while_the_isr_is_small(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    append_batch(replica, 0)
    task = asyncio.create_task(replica.reads.read(0, MIB, max_wait_ms=5000))
    await asyncio.sleep(0.1)
    replica.apply_isr([1], [1, 2], 1)
    await asyncio.sleep(0.1)
    assert not task.done()
    fetch(replica, 2, 1)
    replica.apply_isr([1, 2], [1, 2], 2)
    assert (await task).size > 0


@in_rig(ReplicationRig, config=TopicConfig(min_insync_replicas=2))
async def test_new_min_insync_replicas_applies_at_once(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    append_batch(replica, 0)
    assert replica.high_watermark == 0
    replica.log.config = TopicConfig(min_insync_replicas=1)
    replica.on_config_changed()
    assert replica.high_watermark == 1


@in_rig(ReplicationRig)
async def test_waiting_callers_fail_when_the_leader_resigns(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    woken = RecordedProgress()
    replica.reads.add_end_listener(woken, 7)
    task = asyncio.create_task(replica.append(batch(0)))
    await asyncio.sleep(0.1)
    replica.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "it is led elsewhere"))
    with refuses(Code.NOT_LEADER_OR_FOLLOWER):
        await task
    assert woken.places == [7, 7]
    with pytest.raises(Refused):
        fetch(replica, 2, 1)


@in_rig(ReplicationRig)
async def test_end_listeners_are_called_before_records_are_committed(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    end, committed = RecordedProgress(), RecordedProgress()
    replica.reads.add_end_listener(end, 1)
    replica.reads.add_listener(committed, 2)
    append_batch(replica, 0)
    assert (end.places, committed.places) == ([1], [])
    fetch(replica, 2, 1)
    assert (end.places, committed.places) == ([1], [2])
    replica.reads.remove_end_listener(end, 1)
    append_batch(replica, 1)
    assert end.places == [1]


@in_rig(ReplicationRig)
async def test_follower_that_can_join_the_isr_is_reported(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    replica = await broker.lead(0, [1], [1, 2])
    append_batch(replica, 0, 4)
    fetch(replica, 2, 0)
    assert broker.events.with_caught_up_followers == []
    fetch(replica, 2, 4)
    assert broker.events.with_caught_up_followers == [replica]
    replica.apply_isr([1, 2], [1, 2], 1)
    fetch(replica, 2, 4)
    assert broker.events.with_caught_up_followers == [replica]


@in_rig(ReplicationRig, config=TopicConfig(flush="ack"))
async def test_with_flush_ack_only_what_is_fsynced_is_committed(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    appended = replica.append_now(batch(0, 3), ACKS_ALL)
    assert fetch(replica, 2, 0).size > 0
    fetch(replica, 2, 3)
    assert replica.high_watermark == 0
    await replica.wait_committed(appended.last_offset + 1, 1000)
    assert replica.high_watermark == 3


@in_rig(ReplicationRig)
async def test_leader_without_controller_contact_acknowledges_nothing(rig: ReplicationRig) -> None:
    """Another broker may lead by now (R6). A sole replica needs no contact, because no other broker could lead."""
    for replicas, code in (([1, 2], Code.NOT_LEADER_OR_FOLLOWER), ([1, 2, 3], Code.NOT_LEADER_OR_FOLLOWER)):
        replica = await rig.brokers[1].lead(0, [1], replicas)
        replica.admission._has_controller_contact = lambda: False
        with pytest.raises(Refused) as refused:
            append_batch(replica, 0, acks=ACKS_ALL)
        assert refused.value.code is code and replica.log.end_offset == 0
    alone = await rig.brokers[1].lead(0, [1], [1])
    alone.admission._has_controller_contact = lambda: False
    assert append_batch(alone, 0, acks=ACKS_ALL) == 1


@in_rig(ReplicationRig)
async def test_waiting_records_are_refused_once_contact_is_lost(rig: ReplicationRig) -> None:
    """A leader that was replaced uncleanly may read in the bucket that a replica left the ISR, but not yet that another
    broker leads (R6). Its high watermark then advances over records that the next leader lacks."""
    replica = await rig.brokers[1].lead(0, [1, 2])
    appending = asyncio.create_task(replica.append(batch(0, 3), timeout_ms=1000))
    await asyncio.sleep(0)
    assert replica.log.end_offset == 3 and not appending.done()
    replica.admission._has_controller_contact = lambda: False
    replica.apply_isr([1], [1, 2], 1)
    with refuses(Code.NOT_LEADER_OR_FOLLOWER):
        await appending
    assert replica.high_watermark == 3, "what is committed is served, as records of acks=1 are"


@in_rig(ReplicationRig)
async def test_failed_disk_refuses_records(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    rig.brokers[1].state.mark_dead("an fsync of another log failed")
    with pytest.raises(Refused) as refused:
        append_batch(replica, 0)
    assert refused.value.code is Code.KAFKA_STORAGE_ERROR and replica.log.end_offset == 0


@in_rig(ReplicationRig, config=TopicConfig(flush="ack", segment_bytes=1 << 20))
async def test_failed_fsync_ends_the_use_of_the_directory(rig: ReplicationRig) -> None:
    replica, broker = await rig.brokers[1].lead(0, [1]), rig.brokers[1]
    broker.disk.faults.append(DiskFault("sync", ".log", "EIO"))
    with refuses(Code.KAFKA_STORAGE_ERROR):
        await replica.append(batch(0), acks=ACKS_ALL)
    assert broker.disk_failures and replica.high_watermark == 0


@in_rig(ReplicationRig)
async def test_failed_roll_of_leader_ends_the_use_of_the_directory(rig: ReplicationRig) -> None:
    replica, broker = await rig.brokers[1].lead(0, [1]), rig.brokers[1]
    append_batch(replica, 0)
    broker.disk.faults.append(DiskFault("append", ".snapshot", "EIO"))
    with pytest.raises(Refused):
        replica.roll()
    assert broker.disk_failures, "a start on the same boot would trust pages that the disk did not take"


@in_rig(ReplicationRig)
async def test_full_disk_at_a_roll_keeps_the_directory_in_use(rig: ReplicationRig) -> None:
    replica, broker = await rig.brokers[1].lead(0, [1]), rig.brokers[1]
    append_batch(replica, 0)
    broker.disk.faults.append(DiskFault("append", ".snapshot", "ENOSPC"))
    with pytest.raises(Refused):
        replica.roll()
    assert broker.state.full is not None and not broker.disk_failures


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=1 << 30, index_interval_bytes=200))
async def test_failed_index_write_after_an_append_ends_the_use_of_the_directory(rig: ReplicationRig) -> None:
    replica, broker = await rig.brokers[1].lead(0, [1]), rig.brokers[1]
    broker.disk.faults.append(DiskFault("append", "index", "EIO"))
    with pytest.raises(Refused) as refused:
        for number in range(20_000):
            append_batch(replica, number)
            assert not broker.disk.failed, "a batch is acknowledged after an I/O error"
    assert refused.value.code is Code.KAFKA_STORAGE_ERROR and "index" in refused.value.why
    assert broker.disk_failures


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))
async def test_follower_is_sent_to_the_bucket_for_damaged_cold_records_only(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    for number in range(20):
        append_batch(replica, number)
    replica.roll()
    disk = rig.brokers[1].disk
    manifest = await replica.cold.manifests.take_over(replica.partition_id, "t", 0)
    cold = await replica.cold.uploader.upload_next(replica.log, manifest, 0, 20)
    for number in range(20, 40):
        append_batch(replica, number)
    for name in disk.list("log/t-0"):
        if name.endswith(".log"):
            disk.flip_bit(f"log/t-0/{name}", 8 * 8 + 7)  # the first batch has a length that cannot be
    with pytest.raises(Refused) as refused:
        fetch(replica, 2, 1)
    assert refused.value.code is Code.KAFKA_STORAGE_ERROR, "nothing is known to be in the bucket"
    assert cold is not None
    replica.unified_log.update_manifest(cold)
    copied = fetch(replica, 2, 1)
    assert (copied.code, copied.local_start_offset) == (Code.OFFSET_MOVED_TO_TIERED_STORAGE, 20)
    with pytest.raises(Refused):
        fetch(replica, 2, 21)

"""Tests of followers that copy from their leaders in virtual time: new records, diverged logs, and records that only
the bucket has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.scenario import in_rig
from tests.sim.harness.disk import DiskFault, Op
from tests.unit.hot.fixtures import batch
from tests.unit.replication.rig import (
    DirectPeers,
    ReplicationRig,
    RunningFetchers,
    append_batch,
    follow_leader,
    read_log,
)
from tiered.config.settings import TopicConfig
from tiered.errors import Refused
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_recovery import LogRecovery
from tiered.ids import TopicPartition
from tiered.replication.become_leader import PreviousLeader
from tiered.replication.disk_state import ROOM_SECONDS
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica


async def wait_until(done: Callable[[], object]) -> None:
    """Waits in virtual time until the condition holds."""
    for _ in range(2000):
        if done():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")


def is_equal(copy: FollowerReplica, replica: LeaderReplica) -> bool:
    return copy.log.end_offset == replica.log.end_offset and read_log(copy.log) == read_log(replica.log)


async def fill(replica: LeaderReplica, count: int) -> None:
    end = replica.log.end_offset
    for number in range(end, end + count):
        append_batch(replica, number)


async def upload(replica: LeaderReplica) -> int:
    """Uploads all closed segments; returns the cold end."""
    manifest = await replica.cold.manifests.take_over(replica.partition_id, "t", replica.leader_epoch)
    while True:
        stable = replica.last_stable_offset
        written = await replica.cold.uploader.upload_next(replica.log, manifest, replica.leader_epoch, stable)
        if written is None:
            return manifest.cold_end_offset
        manifest = written
        replica.unified_log.update_manifest(manifest)


@in_rig(ReplicationRig)
async def test_produced_records_are_copied_and_committed(rig: ReplicationRig) -> None:
    peers = DirectPeers(rig)
    replica = await rig.brokers[1].lead(0, [1, 2, 3])
    peers.add_leader(replica)
    copies = [await RunningFetchers(rig, rig.brokers[node], peers).follow(1, 0) for node in (2, 3)]
    for number in range(30):
        await replica.append(batch(number), acks=ACKS_ALL)
    assert replica.high_watermark == 30
    await wait_until(lambda: all(copy.high_watermark == 30 for copy in copies))
    for copy in copies:
        assert is_equal(copy, replica)
        assert copy.log.epochs.lineage == replica.log.epochs.lineage


@in_rig(ReplicationRig)
async def test_fetch_waits_at_the_leader(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    peers, _ = await follow_leader(rig, replica)
    await asyncio.sleep(10)
    assert 15 < len(peers.requests) < 25
    started = rig.clock.mono_ns()
    await replica.append(batch(0), acks=ACKS_ALL)
    assert rig.clock.mono_ns() - started < 10_000_000


@in_rig(ReplicationRig)
async def test_idle_partition_is_not_fetched_with_each_batch_of_a_busy_one(rig: ReplicationRig) -> None:
    peers = DirectPeers(rig)
    busy = await rig.brokers[1].lead(0, [1, 2])
    quiet = await rig.brokers[1].lead(0, [1, 2], tp=TopicPartition("t", 1))
    peers.add_leader(busy)
    peers.add_leader(quiet)
    following = RunningFetchers(rig, rig.brokers[2], peers)
    await following.follow(1, 0)
    await following.follow(1, 0, TopicPartition("t", 1))
    await busy.append(batch(0), acks=ACKS_ALL)
    peers.requests.clear()
    for number in range(100):
        await busy.append(batch(number), acks=ACKS_ALL)
    assert sum(1 for ask in peers.requests if 1 in [each.partition for each in ask.partitions]) < 5
    started = rig.clock.mono_ns()
    await quiet.append(batch(0), acks=ACKS_ALL)
    assert rig.clock.mono_ns() - started < 10_000_000


@in_rig(ReplicationRig)
async def test_follower_flushes_after_a_truncation_before_it_continues(rig: ReplicationRig) -> None:
    two = rig.brokers[2]
    first = await two.lead(0, [1, 2])
    await fill(first, 3)
    log = await rig.brokers[1].open_log()
    log.append_as_follower(read_log(first.log), now_ms=0)
    await fill(first, 4)
    replica = await rig.brokers[1].lead(1, [1, 2])
    await fill(replica, 9)
    _, copy = await follow_leader(rig, replica)
    await wait_until(lambda: is_equal(copy, replica))
    assert copy.log.epochs.lineage == ((0, 0), (1, 3))
    two.disk = two.disk.after_power_cut()  # parts of what was cut may not come back
    again = await DiskLog.open(
        two.disk,
        rig.clock,
        "log/t-0",
        two.config,
        LogRecovery(same_boot=False, clean=False),
        metrics=two.metrics,
        topic_id=copy.topic_id,
        name="t-0",
    )  # fmt: skip
    assert again.end_offset >= 3
    assert read_log(replica.log).startswith(read_log(again))


@in_rig(ReplicationRig)
async def test_recovery_point_is_lowered_before_a_truncation(rig: ReplicationRig) -> None:
    """A power cut during the truncation may leave zeros there, which would be rot below the recovery point."""
    peers, two, cuts = DirectPeers(rig), rig.brokers[2], list[int]()
    first = await two.lead(0, [1, 2])
    await fill(first, 3)
    log = await rig.brokers[1].open_log()
    log.append_as_follower(read_log(first.log), now_ms=0)
    await fill(first, 6)
    await first.log.flush()
    await two.save_offsets()
    replica = await rig.brokers[1].lead(1, [1, 2])
    peers.add_leader(replica)

    def look(op: Op) -> None:
        if op.verb == "truncate" and op.path.endswith(".log"):
            cuts.append(first.log.truncations.checkpointed_point)

    two.disk.on_op = look
    copy = await RunningFetchers(rig, two, peers).follow(1, 1)
    await wait_until(lambda: copy.log.end_offset == 3)
    assert cuts == [3]
    assert [ask.partitions[0].offset for ask in peers.requests][:2] == [9, 9]
    await fill(replica, 9)
    await wait_until(lambda: is_equal(copy, replica))
    await copy.flush()
    assert copy.log.recovery_point == copy.log.end_offset == 12


@in_rig(ReplicationRig)
async def test_stopped_follower_plans_no_truncation(rig: ReplicationRig) -> None:
    """The next leader may keep the records. They must stay below the recovery point then."""
    two = rig.brokers[2]
    await fill(await two.lead(0, [1, 2]), 6)
    copy = await RunningFetchers(rig, two, DirectPeers(rig)).follow(1, 1)
    await copy.flush()
    await two.save_offsets()
    assert not copy.log.plan_truncation(3)
    assert (copy.log.recovery_point, copy.is_durable) == (3, False)
    copy.stop()
    assert (copy.log.recovery_point, copy.is_durable) == (6, True)


@in_rig(ReplicationRig)
async def test_nothing_is_fetched_until_a_truncation_is_durable(rig: ReplicationRig) -> None:
    two = rig.brokers[2]
    first = await two.lead(0, [1, 2])
    await fill(first, 3)
    replica = await rig.brokers[1].lead(1, [1, 2])
    await fill(replica, 1)
    two.disk.sync_seconds = lambda: 0.5
    peers, copy = await follow_leader(rig, replica)
    await asyncio.sleep(1.0)
    assert copy.log.end_offset == 0
    assert [ask.partitions[0].offset for ask in peers.requests] == [3]
    assert copy.log.truncations.checkpointed < copy.log.truncations.made, (
        "and until the point up to which it is durable is noted anew"
    )
    await wait_until(lambda: is_equal(copy, replica))
    assert copy.log.truncations.checkpointed == copy.log.truncations.made == 1


@in_rig(ReplicationRig, config=TopicConfig(flush="ack"))
async def test_follower_with_flush_ack_fetches_from_its_fsynced_end(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    _, copy = await follow_leader(rig, replica)
    rig.brokers[2].disk.sync_seconds = lambda: 1.0
    task = asyncio.create_task(replica.append(batch(0), acks=ACKS_ALL))
    await asyncio.sleep(0.5)
    assert copy.log.end_offset == 1
    assert not task.done()
    await task
    assert copy.log.flushed_offset == 1


@in_rig(ReplicationRig)
async def test_new_follower_starts_at_the_cold_end(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    for number in range(100):
        replica.append_now(batch(number, producer=7, sequence=number), ACKS_ALL)
    cold_end = await upload(replica)
    _, copy = await follow_leader(rig, replica)
    await wait_until(lambda: copy.log.end_offset == 100)
    assert copy.log.local_start_offset == cold_end > 50
    assert read_log(copy.log) == read_log(replica.log, cold_end)
    assert copy.log.epochs.epoch_at(cold_end - 1) == 0
    ours, theirs = copy.log.producers.get(7), replica.log.producers.get(7)
    assert ours is not None and theirs is not None and ours.batches == theirs.batches


@in_rig(ReplicationRig)
async def test_follower_too_far_behind_restarts_at_the_cold_end(rig: ReplicationRig) -> None:
    peers = DirectPeers(rig)
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    peers.add_leader(replica)
    following = RunningFetchers(rig, rig.brokers[2], peers)
    copy = await following.follow(1, 0)
    await fill(replica, 10)
    await wait_until(lambda: is_equal(copy, replica))
    await following.stop()
    await fill(replica, 100)
    cold_end = await upload(replica)
    await replica.log.drop_local_below(cold_end)
    copy = await RunningFetchers(rig, rig.brokers[2], peers).follow(1, 0)
    await wait_until(lambda: copy.log.end_offset == 110)
    assert copy.log.local_start_offset == cold_end
    assert read_log(copy.log) == read_log(replica.log)


@in_rig(ReplicationRig)
async def test_restore_is_retried_until_the_bucket_replies(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    await fill(replica, 100)
    await upload(replica)
    rig.brokers[2].faults.outage = True
    _, copy = await follow_leader(rig, replica)
    await wait_until(lambda: copy.fetch_error)
    assert copy.log.end_offset == 0
    rig.brokers[2].faults.outage = False
    await wait_until(lambda: copy.log.end_offset == 100)
    assert not copy.fetch_error


@in_rig(ReplicationRig, config=TopicConfig(remote_storage_enable=False, segment_bytes=2000))
async def test_nothing_is_copied_below_the_log_start(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    for first in range(0, 100, 5):
        append_batch(replica, first, 5)
    await replica.deletion.delete_records(52)  # in the middle of a batch
    await replica.log.drop_local_below(52)
    _, copy = await follow_leader(rig, replica)
    await wait_until(lambda: copy.log.end_offset == 100)
    assert copy.log.start_offset == 52
    assert read_log(copy.log, 52) == read_log(replica.log, 52)
    await replica.deletion.delete_records(71)
    await wait_until(lambda: copy.log.start_offset == 71)


@pytest.mark.parametrize("dropped", [False, True], ids=["its records part", "it holds nothing"])
@in_rig(ReplicationRig)
async def test_log_start_above_the_leaders_end_moves_to_the_copied_records(
    rig: ReplicationRig, *, dropped: bool
) -> None:
    """An unclean election chose this leader. It never had the records that the follower deleted."""
    old = await rig.brokers[2].lead(0, [2])
    await fill(old, 30)
    if dropped:
        old.log.truncate_fully_and_start_at(30, (), None)
    old.log.advance_start(30)
    replica = await rig.brokers[1].lead(1, [1, 2])
    await fill(replica, 10)
    _, copy = await follow_leader(rig, replica)
    await wait_until(lambda: is_equal(copy, replica) and copy.high_watermark == 10)
    assert copy.log.start_offset == copy.log.checkpointed_start_offset == 0
    begun = await rig.brokers[2].lead(2, [2])
    assert append_batch(begun, 10) == 11 and begun.log_start_offset == 0


@in_rig(ReplicationRig)
async def test_stopped_replica_changes_nothing(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    _, copy = await follow_leader(rig, replica)
    await asyncio.sleep(0.1)
    copy.is_stopped = True  # with a question under way
    await fill(replica, 5)
    await asyncio.sleep(5.0)
    assert copy.log.end_offset == 0
    assert replica.high_watermark == 5


@in_rig(ReplicationRig)
async def test_all_replicas_match_the_new_leader_after_a_failover(rig: ReplicationRig) -> None:
    peers = DirectPeers(rig)
    first = await rig.brokers[1].lead(0, [1, 2, 3])
    peers.add_leader(first)
    two, three = (RunningFetchers(rig, rig.brokers[node], peers) for node in (2, 3))
    old, other = await two.follow(1, 0), await three.follow(1, 0)
    for number in range(20):
        await first.append(batch(number), acks=ACKS_ALL)
    peers.unreachable.add("1:0")
    await asyncio.sleep(1.0)
    await fill(first, 3)  # nobody hears of it
    old.is_stopped = other.is_stopped = True
    second = await rig.brokers[2].lead(
        1, [2, 3], [1, 2, 3], high_watermark=old.high_watermark, previous_leader=PreviousLeader.MAY_STILL_WRITE
    )
    peers.add_leader(second)
    assert second.epoch_start == 20
    await three.follow(2, 1)
    for number in range(20, 40):
        await second.append(batch(number), acks=ACKS_ALL)
    back = await RunningFetchers(rig, rig.brokers[1], peers).follow(2, 1, high_watermark=first.high_watermark)
    await wait_until(lambda: is_equal(back, second))
    assert read_log(await rig.brokers[3].open_log()) == read_log(second.log)


@in_rig(ReplicationRig)
async def test_fetches_to_a_silent_leader_are_retried_after_pauses(rig: ReplicationRig) -> None:
    peers = DirectPeers(rig)
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    copy = await RunningFetchers(rig, rig.brokers[2], peers).follow(1, 0)  # it does not lead yet
    await asyncio.sleep(20)
    assert 5 < len(peers.requests) < 30
    assert copy.fetch_error
    peers.add_leader(replica)
    await fill(replica, 3)
    await wait_until(lambda: is_equal(copy, replica))
    assert not copy.fetch_error


@in_rig(ReplicationRig)
async def test_full_disk_stops_copying_until_it_has_room(rig: ReplicationRig) -> None:
    two = rig.brokers[2]
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    _, copy = await follow_leader(rig, replica)
    await asyncio.sleep(1)
    two.disk.capacity = 1
    await fill(replica, 3)
    await wait_until(lambda: two.state.full is not None)
    assert copy.lag == replica.high_watermark == 3
    two.disk.capacity = 1 << 40
    await wait_until(lambda: is_equal(copy, replica))
    two.state.check()
    assert two.state.full is not None
    await asyncio.sleep(ROOM_SECONDS)
    two.state.check()
    assert two.state.full is None and copy.lag == 0
    assert not two.disk_failures


@in_rig(ReplicationRig)
async def test_disk_error_of_a_follower_ends_the_use_of_the_directory(rig: ReplicationRig) -> None:
    two = rig.brokers[2]
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    await follow_leader(rig, replica)
    await asyncio.sleep(1)
    two.disk.faults.append(DiskFault("append", ".log", "EIO"))
    await fill(replica, 3)
    await wait_until(lambda: two.disk_failures)


@in_rig(ReplicationRig)
async def test_failed_roll_of_follower_ends_the_use_of_the_directory(rig: ReplicationRig) -> None:
    two = rig.brokers[2]
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    _, copy = await follow_leader(rig, replica)
    await fill(replica, 3)
    await wait_until(lambda: is_equal(copy, replica))
    two.disk.faults.append(DiskFault("append", ".snapshot", "EIO"))
    with pytest.raises(Refused):
        copy.roll()
    assert two.disk_failures


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=2000, local_retention_bytes=1))
async def test_follower_deletes_only_cold_segments(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    _, copy = await follow_leader(rig, replica)
    await fill(replica, 100)
    await wait_until(lambda: is_equal(copy, replica))
    await copy.apply_local_retention()
    assert copy.log.local_start_offset == 0
    cold_end = await upload(replica)
    await wait_until(lambda: copy.cold_end_offset == cold_end)
    await copy.apply_local_retention()
    assert 0 < copy.log.local_start_offset <= cold_end
    assert copy.log.end_offset == 100


@pytest.mark.parametrize("seed", range(4))
def test_large_log_is_copied_in_pieces(seed: int) -> None:
    rig = ReplicationRig(seed)

    async def scenario() -> None:
        replica = await rig.brokers[1].lead(0, [1], [1, 2])
        await fill(replica, 300)
        peers, copy = await follow_leader(rig, replica, partition_max_bytes=5000)
        await wait_until(lambda: is_equal(copy, replica))
        assert len(peers.requests) > 5

    rig.run(scenario)

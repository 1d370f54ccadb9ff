"""Tests of groups after the loss of a process, a disk or a bucket: a killed process loses no commit, and a lost disk
loses at most the last minute."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.scenario import run_by
from tests.sim.harness.machine import SimMachine
from tests.sim.rig.broker_rig import SimBrokerRig, fill, run
from tests.sim.rig.group_requests import (
    GROUP_SETTINGS,
    commit,
    describe,
    fetch_committed,
    heartbeat,
    join,
    offsets_replica,
    snapshots,
    sync,
    wait_groups_loaded,
)
from tiered.broker.partition_report import explain
from tiered.cold.layout import manifest_key
from tiered.coordinator.routing import partition_of
from tiered.errors import Code
from tiered.object_store.faulty import FaultKind, FaultRule

G = "g"
P = partition_of(G, 2)
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("group", "of_50"), [("g", 3), ("", 0), ("my-group", 12), ("gruppe-ä-日本-𝄞", 33), ("polygenelubricants", 0)]
)
def test_group_has_the_partition_that_kafka_assigns(group: str, of_50: int) -> None:
    """The expected values are from Java: Math.abs("...".hashCode()) % 50, and 0 for the least integer of all."""
    assert partition_of(group, 50) == of_50


# -- deaths -----------------------------------------------------------------------------------------------------------


@run_by(run)
async def test_killed_process_loses_no_commit_and_no_member(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    joined = await join(rig, G)
    await sync(rig, G, joined)
    for offset in range(20):
        assert await commit(rig, G, offset, generation=1, member=joined.member_id) is Code.NONE
    await rig.crash(rig.machine.kill)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 19
    assert await heartbeat(rig, G, joined) is Code.NONE
    assert (await describe(rig, G)).state == "Stable"
    await asyncio.sleep(9)
    assert await heartbeat(rig, G, joined) is Code.NONE
    await asyncio.sleep(11)
    assert await heartbeat(rig, G, joined) is Code.UNKNOWN_MEMBER_ID


@run_by(run)
async def test_commits_of_one_turn_share_a_batch_in_their_order(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await commit(rig, G, 0)
    before = offsets_replica(rig, P).log.segments.size_bytes
    await commit(rig, G, 1)
    one = offsets_replica(rig, P).log.segments.size_bytes - before
    await asyncio.gather(*(commit(rig, G, offset) for offset in range(2, 100)))
    many = offsets_replica(rig, P).log.segments.size_bytes - before - one
    assert many < 98 * (one - 61) + 98 + 61, "a batch of its own for each"
    assert await fetch_committed(rig, G) == 99
    await rig.crash(rig.machine.kill)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 99


def test_fsynced_commits_survive_a_power_cut() -> None:
    async def scenario(rig: SimBrokerRig) -> None:
        await rig.start(GROUP_SETTINGS)
        replica = await rig.create("t")
        await fill(replica, 20)
        await replica.flush()
        await commit(rig, G, 5)
        await offsets_replica(rig, P).flush()
        await rig.broker.hosted_replicas.save_offsets()
        await commit(rig, G, 6)
        await rig.crash(rig.machine.power_cut)
        await rig.start(GROUP_SETTINGS)
        await wait_groups_loaded(rig)
        assert await fetch_committed(rig, G) in (5, 6)
        await rig.stop()

    for seed in range(8):
        run(scenario, seed)


def test_commits_that_wait_for_an_fsync_survive_every_power_cut() -> None:
    """With flush=ack the reply to a commit waits for the disk. Many waiting commits share one fsync and keep their
    order."""

    async def scenario(rig: SimBrokerRig) -> None:
        settings = replace(GROUP_SETTINGS, log_flush="ack")
        rig.machine.disk.sync_seconds = lambda: 0.05
        await rig.start(settings)
        await rig.create("t")
        waves = [asyncio.gather(*(commit(rig, G, 10 * wave + each) for each in range(10))) for wave in range(5)]
        for wave in waves:
            await wave
        await rig.crash(rig.machine.power_cut)
        await rig.start(settings)
        await wait_groups_loaded(rig)
        assert await fetch_committed(rig, G) == 49
        await rig.stop()

    for seed in range(4):
        run(scenario, seed)


# -- lost disks -------------------------------------------------------------------------------------------------------


@run_by(run)
async def test_groups_are_at_most_a_minute_old_after_the_loss_of_every_disk(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await fill(await rig.create("t"), 20)
    joined = await join(rig, G, session_ms=300_000)
    await sync(rig, G, joined)
    await commit(rig, G, 7, generation=1, member=joined.member_id)
    await rig.wait_until(lambda: len(snapshots(rig, P)) == 1, 61)
    end = offsets_replica(rig, P).log.end_offset
    assert (snapshots(rig, P)[0].offset, offsets_replica(rig, P).log_start_offset) == (end, end)
    await commit(rig, G, 8, generation=1, member=joined.member_id)
    await rig.crash(rig.machine.lose_disk)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 7
    assert await heartbeat(rig, G, joined) is Code.NONE
    replica = offsets_replica(rig, P)
    assert replica.log_start_offset == end, "offsets of the topic went back"
    assert explain(replica)["possible_loss"] is not None
    await commit(rig, G, 9, generation=1, member=joined.member_id)
    assert replica.log.end_offset == end + 1
    await rig.crash(rig.machine.kill)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 9


@run_by(run)
async def test_image_of_earlier_commits_is_written_without_new_commits(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    replica = await rig.create("t")
    await fill(replica, 20)
    replica.roll()
    await commit(rig, G, 5)
    await rig.wait_until(lambda: replica.cold_end_offset == 20, 30)
    await rig.crash(rig.machine.kill)
    assert snapshots(rig, P) == []
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    await rig.wait_until(lambda: len(snapshots(rig, P)) == 1, 61)
    await rig.crash(rig.machine.lose_disk)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 5


@run_by(run)
async def test_clean_stop_writes_all_groups_to_the_bucket(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await fill(await rig.create("t"), 20)
    await commit(rig, G, 7)
    await rig.stop()
    rig.machine.lose_disk()
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 7


@run_by(run)
async def test_stop_does_not_wait_for_a_slow_bucket(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await commit(rig, G, 7)
    await rig.wait_until(lambda: snapshots(rig, P) != [])
    await commit(rig, G, 8)
    rig.machine.faults.first_byte_seconds = 60.0
    before = rig.loop.now_ns
    stopping = asyncio.ensure_future(rig.stop())
    await asyncio.sleep(4)
    rig.machine.faults.first_byte_seconds = 0.0
    await stopping
    assert (rig.loop.now_ns - before) / 1e9 < 70
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 8


@run_by(run)
async def test_offsets_beyond_the_end_of_a_partition_are_cut_back(rig: SimBrokerRig) -> None:
    """Rule R5: a consumer continues at the new end of the partition instead of its beginning."""
    await rig.start(GROUP_SETTINGS)
    replica = await rig.create("t", segment_bytes="1048576", retention_ms="-1")
    await fill(replica, 20)
    await commit(rig, G, 20)
    await commit(rig, "h", 30)
    await rig.wait_until(lambda: snapshots(rig, 0) != [] and snapshots(rig, 1) != [])
    await rig.crash(rig.machine.lose_disk)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert rig.broker.leader_replica("t", 0).log.end_offset == 0
    assert (await fetch_committed(rig, G), await fetch_committed(rig, "h")) == (0, 0)
    await fill(rig.broker.leader_replica("t", 0), 5)
    await commit(rig, "h", 30)
    await rig.crash(rig.machine.kill)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, "h") == 30, "nothing was lost this time"


@run_by(run)
async def test_offsets_are_cut_back_if_the_partition_opens_after_the_groups(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    replica = await rig.create("t", segment_bytes="1048576", retention_ms="-1")
    await fill(replica, 20)
    await commit(rig, G, 20)
    await rig.wait_until(lambda: snapshots(rig, P) != [])
    await rig.crash(rig.machine.lose_disk)
    rig.machine.faults.rules.append(
        FaultRule(FaultKind.DELAY, ("get",), key=manifest_key(replica.partition_id), seconds=10)
    )
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == rig.broker.leader_replica("t", 0).log.end_offset == 0


@run_by(run)
async def test_damaged_image_is_replaced_by_the_one_before(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await fill(await rig.create("t"), 20)
    await commit(rig, G, 7)
    await rig.wait_until(lambda: len(snapshots(rig, P)) == 1)
    await commit(rig, G, 8)
    await rig.wait_until(lambda: len(snapshots(rig, P)) == 2)
    newest = snapshots(rig, P)[-1]
    body = bytearray(rig.bucket.objects[newest.key].data)
    body[-3] ^= 1
    await rig.bucket.memory.put(newest.key, body)
    await rig.crash(rig.machine.lose_disk)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 7


# -- others who write -------------------------------------------------------------------------------------------------


@run_by(run)
async def test_fenced_coordinator_loses_no_commit_of_its_successor(rig: SimBrokerRig) -> None:
    """A broker that freezes while another takes its place resumes for a while. It writes snapshots and deletes older
    ones. The commits of its successor stay."""
    await rig.start(GROUP_SETTINGS)
    await fill(await rig.create("t"), 20)
    await commit(rig, G, 7)
    await rig.wait_until(lambda: len(snapshots(rig, P)) == 1)
    frozen, old = rig.broker, snapshots(rig, P)
    other = SimMachine(rig.loop, "two", rig.bucket, rig.network)
    rig.machine, first = other, rig.machine
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 7
    assert snapshots(rig, P)[-1].epoch > old[-1].epoch, "the log begins above a snapshot that the other may delete"
    await commit(rig, G, 11)
    rig.broker, fresh = frozen, rig.broker
    for offset in (12, 13, 14):
        await commit(rig, G, offset)
        keeping = frozen.group_coordinators.host.snapshotter
        await keeping.save_changed(list(frozen.group_coordinators.host.led_partitions.values()))
    assert len({name.epoch for name in snapshots(rig, P)}) == 2
    rig.broker, rig.machine = fresh, first
    await rig.crash(first.kill)
    rig.machine = other
    await fresh.stop(clean=False)
    other.kill()
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 11
    await rig.stop()
    await frozen.stop(clean=False)


# -- clocks -----------------------------------------------------------------------------------------------------------


@run_by(run)
async def test_offsets_of_an_idle_group_outlive_a_clock_that_jumped(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await commit(rig, G, 5)
    rig.machine.clock.jump(8 * DAY_MS)
    await asyncio.sleep(3 * rig.broker.settings.offsets_retention_check_interval_ms / 1000)
    rig.machine.clock.jump(-8 * DAY_MS)
    await asyncio.sleep(3 * rig.broker.settings.offsets_retention_check_interval_ms / 1000)
    assert await fetch_committed(rig, G) == 5

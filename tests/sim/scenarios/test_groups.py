"""Tests of groups after the loss of a process, a disk or a bucket: a killed process loses no commit, and a lost disk
loses at most the last minute."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

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
from tiered.cold.layout import manifest_key
from tiered.coordinator.routing import partition_of
from tiered.errors import Code
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.replication.partition_report import explain

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


def test_killed_process_loses_no_commit_and_no_member() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await site.create("t")
        joined = await join(site, G)
        await sync(site, G, joined)
        for offset in range(20):
            assert await commit(site, G, offset, generation=1, member=joined.member_id) is Code.NONE
        await site.crash(site.machine.kill)
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 19
        assert await heartbeat(site, G, joined) is Code.NONE
        assert (await describe(site, G)).state == "Stable"
        await asyncio.sleep(9)
        assert await heartbeat(site, G, joined) is Code.NONE
        await asyncio.sleep(11)
        assert await heartbeat(site, G, joined) is Code.UNKNOWN_MEMBER_ID
        await site.stop()

    run(scenario)


def test_commits_of_one_turn_share_a_batch_in_their_order() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await site.create("t")
        await commit(site, G, 0)
        before = offsets_replica(site, P).log.size_bytes
        await commit(site, G, 1)
        one = offsets_replica(site, P).log.size_bytes - before
        await asyncio.gather(*(commit(site, G, offset) for offset in range(2, 100)))
        many = offsets_replica(site, P).log.size_bytes - before - one
        assert many < 98 * (one - 61) + 98 + 61, "a batch of its own for each"
        assert await fetch_committed(site, G) == 99
        await site.crash(site.machine.kill)
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 99
        await site.stop()

    run(scenario)


def test_fsynced_commits_survive_a_power_cut() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        replica = await site.create("t")
        await fill(replica, 20)
        await replica.flush()
        await commit(site, G, 5)
        await offsets_replica(site, P).flush()
        await site.node.hosted_replicas.save_offsets()
        await commit(site, G, 6)
        await site.crash(site.machine.power_cut)
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) in (5, 6)
        await site.stop()

    for seed in range(8):
        run(scenario, seed)


def test_commits_that_wait_for_an_fsync_survive_every_power_cut() -> None:
    """With flush=ack the reply to a commit waits for the disk. Many waiting commits share one fsync and keep their
    order."""

    async def scenario(site: SimBrokerRig) -> None:
        settings = replace(GROUP_SETTINGS, log_flush="ack")
        site.machine.disk.sync_seconds = lambda: 0.05
        await site.start(settings)
        await site.create("t")
        waves = [asyncio.gather(*(commit(site, G, 10 * wave + each) for each in range(10))) for wave in range(5)]
        for wave in waves:
            await wave
        await site.crash(site.machine.power_cut)
        await site.start(settings)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 49
        await site.stop()

    for seed in range(4):
        run(scenario, seed)


# -- lost disks -------------------------------------------------------------------------------------------------------


def test_groups_are_at_most_a_minute_old_after_the_loss_of_every_disk() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await fill(await site.create("t"), 20)
        joined = await join(site, G, session_ms=300_000)
        await sync(site, G, joined)
        await commit(site, G, 7, generation=1, member=joined.member_id)
        await site.wait_until(lambda: len(snapshots(site, P)) == 1, 61)
        end = offsets_replica(site, P).log.end_offset
        assert (snapshots(site, P)[0].offset, offsets_replica(site, P).log_start_offset) == (end, end)
        await commit(site, G, 8, generation=1, member=joined.member_id)
        await site.crash(site.machine.lose_disk)
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 7
        assert await heartbeat(site, G, joined) is Code.NONE
        replica = offsets_replica(site, P)
        assert replica.log_start_offset == end, "offsets of the topic went back"
        assert explain(replica)["possible_loss"] is not None
        await commit(site, G, 9, generation=1, member=joined.member_id)
        assert replica.log.end_offset == end + 1
        await site.crash(site.machine.kill)
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 9
        await site.stop()

    run(scenario)


def test_image_of_earlier_commits_is_written_without_new_commits() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        replica = await site.create("t")
        await fill(replica, 20)
        replica.roll()
        await commit(site, G, 5)
        await site.wait_until(lambda: replica.cold_end_offset == 20, 30)
        await site.crash(site.machine.kill)
        assert snapshots(site, P) == []
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        await site.wait_until(lambda: len(snapshots(site, P)) == 1, 61)
        await site.crash(site.machine.lose_disk)
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 5
        await site.stop()

    run(scenario)


def test_clean_stop_writes_all_groups_to_the_bucket() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await fill(await site.create("t"), 20)
        await commit(site, G, 7)
        await site.stop()
        site.machine.lose_disk()
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 7
        await site.stop()

    run(scenario)


def test_stop_does_not_wait_for_a_slow_bucket() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await site.create("t")
        await commit(site, G, 7)
        await site.wait_until(lambda: snapshots(site, P) != [])
        await commit(site, G, 8)
        site.machine.faults.first_byte_seconds = 60.0
        before = site.loop.now_ns
        stopping = asyncio.ensure_future(site.stop())
        await asyncio.sleep(4)
        site.machine.faults.first_byte_seconds = 0.0
        await stopping
        assert (site.loop.now_ns - before) / 1e9 < 70
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 8
        await site.stop()

    run(scenario)


def test_offsets_beyond_the_end_of_a_partition_are_cut_back() -> None:
    """Rule R5: a consumer continues at the new end of the partition instead of its beginning."""

    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        replica = await site.create("t", segment_bytes="1048576", retention_ms="-1")
        await fill(replica, 20)
        await commit(site, G, 20)
        await commit(site, "h", 30)
        await site.wait_until(lambda: snapshots(site, 0) != [] and snapshots(site, 1) != [])
        await site.crash(site.machine.lose_disk)
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert site.node.leader_replica("t", 0).log.end_offset == 0
        assert (await fetch_committed(site, G), await fetch_committed(site, "h")) == (0, 0)
        await fill(site.node.leader_replica("t", 0), 5)
        await commit(site, "h", 30)
        await site.crash(site.machine.kill)
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, "h") == 30, "nothing was lost this time"
        await site.stop()

    run(scenario)


def test_offsets_are_cut_back_if_the_partition_opens_after_the_groups() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        replica = await site.create("t", segment_bytes="1048576", retention_ms="-1")
        await fill(replica, 20)
        await commit(site, G, 20)
        await site.wait_until(lambda: snapshots(site, P) != [])
        await site.crash(site.machine.lose_disk)
        site.machine.faults.rules.append(
            FaultRule(FaultKind.DELAY, ("get",), key=manifest_key(replica.partition_id), seconds=10)
        )
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == site.node.leader_replica("t", 0).log.end_offset == 0
        await site.stop()

    run(scenario)


def test_damaged_image_is_replaced_by_the_one_before() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await fill(await site.create("t"), 20)
        await commit(site, G, 7)
        await site.wait_until(lambda: len(snapshots(site, P)) == 1)
        await commit(site, G, 8)
        await site.wait_until(lambda: len(snapshots(site, P)) == 2)
        newest = snapshots(site, P)[-1]
        body = bytearray(site.bucket.objects[newest.key].data)
        body[-3] ^= 1
        await site.bucket.memory.put(newest.key, body)
        await site.crash(site.machine.lose_disk)
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 7
        await site.stop()

    run(scenario)


# -- others who write -------------------------------------------------------------------------------------------------


def test_fenced_coordinator_loses_no_commit_of_its_successor() -> None:
    """A broker that freezes while another takes its place resumes for a while: it writes images and deletes older ones.
    The commits of its successor stay."""

    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await fill(await site.create("t"), 20)
        await commit(site, G, 7)
        await site.wait_until(lambda: len(snapshots(site, P)) == 1)
        frozen, old = site.node, snapshots(site, P)
        other = SimMachine(site.loop, "two", site.bucket, site.network)
        site.machine, first = other, site.machine
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 7
        assert snapshots(site, P)[-1].epoch > old[-1].epoch, "the log begins above an image that the other may delete"
        await commit(site, G, 11)
        site.node, fresh = frozen, site.node
        for offset in (12, 13, 14):
            await commit(site, G, offset)
            keeping = frozen.group_coordinators.host.snapshotter
            await keeping.save_changed(list(frozen.group_coordinators.host.led_partitions.values()))
        assert len({name.epoch for name in snapshots(site, P)}) == 2
        site.node, site.machine = fresh, first
        await site.crash(first.kill)
        site.machine = other
        await fresh.stop(clean=False)
        other.kill()
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 11
        await site.stop()
        await frozen.stop(clean=False)

    run(scenario)


# -- clocks -----------------------------------------------------------------------------------------------------------


def test_offsets_of_an_idle_group_outlive_a_clock_that_jumped() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await site.create("t")
        await commit(site, G, 5)
        site.machine.clock.jump(8 * DAY_MS)
        await asyncio.sleep(3 * site.node.settings.offsets_retention_check_interval_ms / 1000)
        site.machine.clock.jump(-8 * DAY_MS)
        await asyncio.sleep(3 * site.node.settings.offsets_retention_check_interval_ms / 1000)
        assert await fetch_committed(site, G) == 5

    run(scenario)

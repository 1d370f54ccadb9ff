"""Tests of the promise of DeleteRecords: once it is acknowledged, no later leader serves the deleted records."""

from __future__ import annotations

import asyncio

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.harness.machine import SimMachine
from tests.sim.rig.broker_rig import numbers, read_values
from tests.sim.scenarios.test_sim_rot import create_filled_topic
from tests.sim.scenarios.test_what_an_ack_survives import (
    COUNT,
    SECONDS,
    crash,
    isr_brokers,
    leader_of,
    wait_leader,
    write_records,
)
from tests.sim.scenarios.three import SESSION, SimBroker, ThreeBrokers, run_scenario
from tiered.controller.requests import AlterTopicConfigs
from tiered.errors import Code, Unavailable
from tiered.ids import TopicPartition
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica

DELETED = COUNT // 2
AT = TopicPartition("t", 0)
TIERED = pytest.mark.parametrize("tiered", ["true", "false"], ids=["tiered", "untiered"])


def follower_replicas(three: ThreeBrokers) -> list[FollowerReplica]:
    found = [each.node.hosted_replicas.find_follower(AT) for each in three.brokers.values()]
    return [copy for copy in found if copy is not None]


async def wait_next_leader(three: ThreeBrokers, former: SimBroker) -> LeaderReplica:
    await three.wait_until(lambda: bool(three.controller_ids()) and leader_of(three) is not former, SECONDS)
    return await wait_leader(three)


@TIERED
@run_by(run_scenario)
async def test_deletion_outlives_the_leaders_process(three: ThreeBrokers, *, tiered: str) -> None:
    await write_records(three, 3, min_insync_replicas="2", remote_storage_enable=tiered)
    leader, hit = await wait_leader(three), leader_of(three)
    assert await leader.deletion.delete_records(DELETED) == DELETED
    assert {copy.log.start_offset for copy in follower_replicas(three)} == {DELETED}
    await crash([hit], SimMachine.kill)
    again = await wait_next_leader(three, hit)
    assert again.log_start_offset == DELETED
    assert await read_values(again, DELETED) == numbers(DELETED, COUNT)


@TIERED
@run_by(run_scenario)
async def test_followers_save_a_log_start_unless_a_manifest_has_it(three: ThreeBrokers, *, tiered: str) -> None:
    await write_records(three, 3, min_insync_replicas="2", remote_storage_enable=tiered)
    leader = await wait_leader(three)
    assert await leader.deletion.delete_records(DELETED) == DELETED
    assert (leader.manifest is not None) == (tiered == "true")
    saved = 0 if leader.manifest is not None else DELETED
    assert {copy.log.checkpointed_start_offset for copy in follower_replicas(three)} == {saved}


@TIERED
@run_by(run_scenario)
async def test_deletion_outlives_all_processes(three: ThreeBrokers, *, tiered: str) -> None:
    await write_records(three, 3, min_insync_replicas="2", remote_storage_enable=tiered)
    assert await (await wait_leader(three)).deletion.delete_records(DELETED) == DELETED
    await crash(list(three.brokers.values()), SimMachine.kill)
    await asyncio.gather(*(each.start() for each in three.brokers.values()))
    again = await wait_leader(three)
    assert again.log_start_offset == DELETED
    await three.wait_until(lambda: again.high_watermark == COUNT, SECONDS)
    assert await read_values(again, DELETED) == numbers(DELETED, COUNT)


@pytest.mark.parametrize("late", [True, False], ids=["late-followers", "followers-in-time"])
@run_by(run_scenario)
async def test_deletion_right_after_tiering_is_turned_off_outlives_all_processes(
    three: ThreeBrokers, *, late: bool
) -> None:
    """The leader has no manifest and is not tiered any more. Late followers have the old settings, and start first."""
    await write_records(three, 3, min_insync_replicas="2", remote_storage_enable="true")
    leader, leads = await wait_leader(three), leader_of(three)
    assert leader.manifest is None
    others = [each for each in three.brokers.values() if each is not leads]
    for each in others if late else ():
        await each.node.hosted_replicas._role_change_lock.acquire()  # the broker opens some other log
    untier = AlterTopicConfigs("t", {"remote.storage.enable": "false"})
    change = asyncio.create_task(three.controller.node.submit(untier))
    await three.wait_until(lambda: not leader.config.remote_storage_enable, SECONDS)
    if not late:
        await change
        await three.wait_until(lambda: not any(map(is_tiered, follower_replicas(three))), SECONDS)
    assert await leader.deletion.delete_records(DELETED) == DELETED
    assert leader.manifest is None and [is_tiered(copy) for copy in follower_replicas(three)] == [late] * 2
    await crash(list(three.brokers.values()), SimMachine.kill)
    change.cancel()
    await asyncio.gather(*(each.start() for each in others))
    again = await wait_leader(three)
    assert again.log_start_offset == DELETED
    await leads.start()


def is_tiered(copy: FollowerReplica) -> bool:
    return copy.config.remote_storage_enable


@run_by(run_scenario)
async def test_deletion_with_flush_ack_outlives_the_power_of_all(three: ThreeBrokers) -> None:
    await write_records(three, 3, min_insync_replicas="2", remote_storage_enable="false", flush="ack")
    assert await (await wait_leader(three)).deletion.delete_records(DELETED) == DELETED
    await crash(list(three.brokers.values()), SimMachine.power_cut)
    await asyncio.gather(*(each.start() for each in three.brokers.values()))
    again = await wait_leader(three)
    assert again.log_start_offset == DELETED
    await three.wait_until(lambda: again.high_watermark == COUNT, SECONDS)


@run_by(run_scenario)
async def test_deletion_of_the_only_replica_outlives_its_process(three: ThreeBrokers) -> None:
    await write_records(three, 1, remote_storage_enable="false")
    hit = leader_of(three)
    assert await (await wait_leader(three)).deletion.delete_records(DELETED) == DELETED
    await crash([hit], SimMachine.kill)
    await hit.start()
    assert (await wait_leader(three)).log_start_offset == DELETED


@run_by(run_scenario)
async def test_deletion_ends_a_followers_waiting_fetch_at_once(three: ThreeBrokers) -> None:
    """The reply to the fetch carries the new log start at once."""
    await write_records(three, 3, remote_storage_enable="false")
    leader = await wait_leader(three)
    await asyncio.sleep(2)  # all fetches wait at the leader
    began = three.now
    await leader.deletion.delete_records(DELETED)
    wait = leader_of(three).node.settings.replica_fetch_wait_max_ms / 1000
    assert three.now - began < wait / 4


@TIERED
@run_by(run_scenario)
async def test_deletion_waits_until_a_cut_off_follower_left_the_isr(three: ThreeBrokers, *, tiered: str) -> None:
    await write_records(three, 3, min_insync_replicas="2", remote_storage_enable=tiered)
    leader, leads = await wait_leader(three), leader_of(three)
    cut = next(each for each in three.others() if each is not leads)
    copy = cut.node.hosted_replicas.find_follower(AT)
    cut.machine.kill()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await leader.deletion.delete_records(DELETED)
    assert copy is not None and copy.log.start_offset == 0
    await leader.deletion.delete_records(DELETED)
    assert cut not in isr_brokers(three)
    await cut.clear()
    await cut.start()
    await three.wait_until(lambda: cut in isr_brokers(three), SECONDS)
    back = cut.node.hosted_replicas.find_follower(AT)
    assert back is not None and back.log.start_offset == DELETED


@run_by(run_scenario)
async def test_follower_that_joins_later_cannot_bring_deleted_records_back(three: ThreeBrokers) -> None:
    """The follower was down during the deletion. Later it is the only replica left."""
    await write_records(three, 3, remote_storage_enable="false")
    leads = leader_of(three)
    away, other = [each for each in three.brokers.values() if each is not leads]
    await crash([away], SimMachine.kill)
    await three.wait_until(lambda: away not in isr_brokers(three), SECONDS)
    assert await (await wait_leader(three)).deletion.delete_records(DELETED) == DELETED
    await away.start()
    await three.wait_until(lambda: away in isr_brokers(three), SECONDS)
    await crash([other], SimMachine.kill)
    await three.wait_until(lambda: other not in isr_brokers(three), SECONDS)
    await crash([leads], SimMachine.kill)
    again = await wait_next_leader(three, leads)
    assert leader_of(three) is away and again.log_start_offset == DELETED


@TIERED
@run_by(run_scenario)
async def test_deletion_below_min_insync_replicas_is_not_acknowledged(three: ThreeBrokers, *, tiered: str) -> None:
    """A replica that left the ISR below the minimum may lead without knowledge of the deletion. If it read the manifest
    before the deletion, it serves the records until it takes the manifest over."""
    await write_records(three, 3, in_sync=2, min_insync_replicas="2", remote_storage_enable=tiered)
    leader, leads = await wait_leader(three), leader_of(three)
    (other,) = [each for each in isr_brokers(three) if each is not leads]
    await crash([other], SimMachine.kill)
    await three.wait_until(lambda: isr_brokers(three) == [leads], SECONDS)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await leader.deletion.delete_records(DELETED)
    await crash([leads], SimMachine.kill)
    await other.start()
    await three.wait_until(lambda: bool(three.controller_ids()) and leader_of(three) is other, SECONDS)
    start = (await wait_leader(three)).log_start_offset
    assert start == (DELETED if tiered == "true" else 0), "so nobody may have been told where no manifest has it"


@run_by(run_scenario)
async def test_deletion_of_a_leader_without_the_controller_is_not_answered(three: ThreeBrokers) -> None:
    """The controller still hears the leader. The follower learns of the deletion when the leader no longer hears the
    controller."""
    (a, b), c = three.others(), three.controller
    await create_filled_topic(three, [a, b], 1, tiered=False)
    for source, target in ((a, b), (b, a), (c, a)):
        three.network.cut(source.name, target.name)
    deleting = asyncio.ensure_future(a.node.leader_replica(*AT).deletion.delete_records(3))
    await three.wait_until(lambda: not a.node.cluster.has_controller_contact, 2 * SESSION)
    assert not deleting.done()
    for source, target in ((a, b), (b, a)):
        three.network.mend(source.name, target.name)
    with refuses(Code.NOT_LEADER_OR_FOLLOWER):
        await asyncio.wait_for(deleting, 5)


@run_by(run_scenario)
async def test_deletion_refused_by_the_bucket_blocks_no_isr_join(three: ThreeBrokers) -> None:
    await write_records(three, 3, min_insync_replicas="2", remote_storage_enable="true")
    leader, hit = await wait_leader(three), leader_of(three)
    hit.machine.faults.outage = True
    with pytest.raises(Unavailable):
        await leader.deletion.delete_records(DELETED)
    assert leader.log_start_offset == 0
    hit.machine.faults.outage = False
    back = next(each for each in three.others() if each is not hit)
    await crash([back], SimMachine.kill)
    await three.wait_until(lambda: back not in isr_brokers(three), SECONDS)
    await back.start()
    await three.wait_until(lambda: back in isr_brokers(three), SECONDS)
    assert await leader.deletion.delete_records(DELETED) == DELETED == leader.log_start_offset

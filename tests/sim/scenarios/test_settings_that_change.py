"""Tests of settings that change under acknowledged records: the promise of the old value holds, and no broker relies on
the new value before it is true of every record."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import run_by
from tests.sim.harness.machine import SimMachine
from tests.sim.rig.broker_rig import batch, numbers, read_values
from tests.sim.rig.old_proof import write_old_proof
from tests.sim.scenarios.test_what_an_ack_survives import (
    COUNT,
    SECONDS,
    crash,
    isr_brokers,
    leader_of,
    wait_leader,
    write_records,
)
from tests.sim.scenarios.three import ThreeBrokers, run_scenario
from tiered.broker.partition_report import explain
from tiered.controller.requests import AlterBrokerConfigs, AlterTopicConfigs, CreateTopic
from tiered.errors import Code, Refused
from tiered.metadata.changes import ALL_BROKERS, NO_LEADER
from tiered.replication.leader_replica import ACKS_ALL

MIN_ISR = "min.insync.replicas"


async def cut_power_of_lone_leader(three: ThreeBrokers) -> None:
    """Has three brokers acknowledge `COUNT` records, ends the processes of both followers, cuts the power of the
    leader, and starts all again."""
    leader = await wait_leader(three)
    hit = leader_of(three)
    others = [each for each in three.brokers.values() if each is not hit]
    for number in range(COUNT):
        await leader.append(batch([b"%06d" % number]), acks=ACKS_ALL)
    await crash(others, SimMachine.kill)
    await three.wait_until(lambda: isr_brokers(three) == [hit], SECONDS)
    await crash([hit], SimMachine.power_cut)
    await asyncio.gather(*(each.start() for each in others))
    await asyncio.sleep(10)
    await hit.start()
    again = await wait_leader(three)
    await three.wait_until(lambda: again.high_watermark >= COUNT, SECONDS)
    assert await read_values(again, 0) == numbers(0, COUNT)
    assert explain(again)["possible_loss"] is None


@run_by(run_scenario, min_insync_replicas=2)
async def test_min_insync_replicas_of_all_brokers_cannot_be_removed(three: ThreeBrokers) -> None:
    """Otherwise brokers that were started with 2 would use another number than the metadata log. Kafka refuses it too
    (KIP-966)."""
    for removed in (
        AlterBrokerConfigs(ALL_BROKERS, {MIN_ISR: None}),
        AlterBrokerConfigs(ALL_BROKERS, {"log.retention.ms": "-1"}, replace=True),
    ):
        with pytest.raises(Refused, match=MIN_ISR) as refused:
            await three.controller.node.submit(removed)
        assert refused.value.code is Code.INVALID_CONFIG
    await three.controller.node.submit(CreateTopic("t", 1, 3, configs={"retention.ms": "-1"}))
    assert (await wait_leader(three)).config.min_insync_replicas == 2
    await cut_power_of_lone_leader(three)


async def change_flush(three: ThreeBrokers, value: str, *, everywhere: bool = False) -> None:
    """Sets `flush` of the topic, or of all topics."""
    asked = (
        AlterBrokerConfigs(ALL_BROKERS, {"log.flush": value})
        if everywhere
        else AlterTopicConfigs("t", {"flush": value})
    )
    await three.controller.node.submit(asked)


async def restart_leader_first(three: ThreeBrokers, count: int = COUNT) -> None:
    """Cuts the power of the leader, ends the process of the other in-sync replica, and starts the leader first. All
    acknowledged records are there once both are back, whether the leader could wait for the other or not."""
    hit = leader_of(three)
    (other,) = [each for each in isr_brokers(three) if each is not hit]
    await crash([hit], SimMachine.power_cut)
    await asyncio.sleep(5)
    await crash([other], SimMachine.kill)
    await hit.start()
    await asyncio.sleep(SECONDS)
    await other.start()
    again = await wait_leader(three)
    await three.wait_until(lambda: again.high_watermark >= count, SECONDS)
    assert await read_values(again, 0) == numbers(0, count)
    assert explain(again)["possible_loss"] is None


@pytest.mark.parametrize("everywhere", [False, True], ids=["topic", "all"])
@pytest.mark.parametrize("pause", [0.0, 0.02, 2.0])
@run_by(run_scenario)
async def test_flush_ack_set_later_does_not_prove_unsynced_records(
    three: ThreeBrokers, *, pause: float, everywhere: bool
) -> None:
    await write_records(three, 3, in_sync=2, min_insync_replicas="2")
    await change_flush(three, "ack", everywhere=everywhere)
    await asyncio.sleep(pause)
    await restart_leader_first(three)


@pytest.mark.parametrize("pause", [0.0, 0.02, 2.0])
@pytest.mark.parametrize("again", ["none", "ack"])
@run_by(run_scenario)
async def test_removed_flush_ack_no_longer_proves_a_log(three: ThreeBrokers, *, again: str, pause: float) -> None:
    """The log stays unproved if the setting returns while no record is written."""
    await write_records(three, 3, in_sync=2, min_insync_replicas="2", flush="ack")
    await change_flush(three, "none")
    leader = await wait_leader(three)
    for number in range(COUNT, 2 * COUNT):
        await leader.append(batch([b"%06d" % number]), acks=ACKS_ALL)
    if again == "ack":
        for value in ("ack", "none", "ack"):
            await change_flush(three, value)
    await asyncio.sleep(pause)
    await restart_leader_first(three, 2 * COUNT)


@pytest.mark.parametrize("pause", [0.0, 2.0])
@run_by(run_scenario)
async def test_sole_replica_reports_its_loss_after_flush_ack_was_set(three: ThreeBrokers, *, pause: float) -> None:
    await write_records(three, 1)
    await change_flush(three, "ack")
    await asyncio.sleep(pause)
    hit = leader_of(three)
    await crash([hit], SimMachine.power_cut)
    await asyncio.sleep(5)
    await hit.start()
    again = await wait_leader(three)
    await asyncio.sleep(5)
    kept = again.high_watermark
    assert await read_values(again, 0) == numbers(0, kept)
    loss = explain(again)["possible_loss"]
    assert kept == COUNT if loss is None else loss["from_offset"] <= kept
    assert pause == 0.0 or loss is None, "by then all of it is fsynced, although nobody wrote"


@pytest.mark.parametrize("set_later", [False, True], ids=["created", "changed"])
@run_by(run_scenario)
async def test_flush_ack_proves_a_log_without_the_others(three: ThreeBrokers, *, set_later: bool) -> None:
    """Both in-sync replicas lose power, and one never comes back. The log of the other one is proved whole, and it
    leads."""
    await write_records(three, 3, in_sync=2, min_insync_replicas="2", flush="none" if set_later else "ack")
    if set_later:
        await change_flush(three, "ack")
        await asyncio.sleep(2)
    both = isr_brokers(three)
    (out,) = [each for each in three.brokers.values() if each not in both]
    await crash(both, SimMachine.power_cut)
    await out.start()
    await both[0].start()
    again = await wait_leader(three)
    assert again.state.node_id == both[0].node_id
    await three.wait_until(lambda: again.high_watermark >= COUNT, SECONDS)
    assert await read_values(again, 0) == numbers(0, COUNT)
    assert explain(again)["possible_loss"] is None


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@run_by(run_scenario)
async def test_flush_ack_topic_is_proved_soon_after_an_upgrade_adds_the_note(
    three: ThreeBrokers, *, clean: bool
) -> None:
    await write_records(three, 3, in_sync=2, min_insync_replicas="2", flush="ack")
    both = isr_brokers(three)
    (out,) = [each for each in three.brokers.values() if each not in both]
    for each in both:
        await (each.stop() if clean else each.kill())
        write_old_proof(each.machine.disk, synced=False)
    await asyncio.gather(*(each.start() for each in both))
    await wait_leader(three)
    await asyncio.sleep(5)
    await crash(both, SimMachine.power_cut)
    await out.start()
    await both[0].start()
    again = await wait_leader(three)
    await three.wait_until(lambda: again.high_watermark >= COUNT, SECONDS)
    assert await read_values(again, 0) == numbers(0, COUNT)
    assert explain(again)["possible_loss"] is None


@run_by(run_scenario)
async def test_flush_ack_topic_without_its_note_waits_for_all_after_a_power_cut(three: ThreeBrokers) -> None:
    """No note proves that the setting was the same under the older version. No replica leads before all are back."""
    await write_records(three, 3, in_sync=2, min_insync_replicas="2", flush="ack")
    both = isr_brokers(three)
    (out,) = [each for each in three.brokers.values() if each not in both]
    await crash(both, SimMachine.power_cut)
    for each in both:
        write_old_proof(each.machine.disk, synced=False)
    await out.start()
    await both[0].start()
    await asyncio.sleep(SECONDS)
    assert out.node.image.topics["t"].partitions[0].leader == NO_LEADER
    await both[1].start()
    again = await wait_leader(three)
    await three.wait_until(lambda: again.high_watermark >= COUNT, SECONDS)
    assert await read_values(again, 0) == numbers(0, COUNT)

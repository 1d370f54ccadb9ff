"""Tests of leaders that lack committed records, because the topic allows it or an operator commands it. The loss is
reported (rule R4)."""

from __future__ import annotations

import asyncio

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.three import SESSION, SimBroker, ThreeBrokers, run_scenario
from tiered.controller.requests import AcknowledgeLosses, AlterTopicConfigs, CreateTopic, ElectLeaders
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.topics import PartitionImage
from tiered.replication.leader_replica import ACKS_ALL

AT = TopicPartition("t", 0)
UNCLEAN = "unclean.leader.election.enable"


async def strand_last_record(three: ThreeBrokers, switch: str) -> tuple[SimBroker, SimBroker]:
    """Kills a leader that alone has the last record, and starts a follower without that record."""
    first, last = three.others()
    await three.controller.node.submit(
        CreateTopic("t", assignments=[[first.node_id, last.node_id]], configs={UNCLEAN: switch})
    )
    await three.wait_until(
        lambda: partition_image(three).leader == first.node_id and len(partition_image(three).isr) == 2, 10
    )
    await first.node.leader_replica("t", 0).append(batch([b"a"]), acks=ACKS_ALL)
    await last.kill()
    await three.wait_until(lambda: partition_image(three).isr == (first.node_id,), 30)
    await first.node.leader_replica("t", 0).append(batch([b"b"]), acks=ACKS_ALL)
    await first.kill()
    await three.wait_until(lambda: partition_image(three).leader == NO_LEADER, 30)
    await last.start()
    return first, last


def partition_image(three: ThreeBrokers) -> PartitionImage:
    return three.controller.node.image.topics["t"].partitions[0]


@pytest.mark.parametrize("how", ["the topic has the switch", "the topic gets the switch", "an operator says so"])
@run_by(run_scenario)
async def test_unclean_leader_is_elected_if_allowed_and_reports_the_loss(three: ThreeBrokers, *, how: str) -> None:
    first, last = await strand_last_record(three, "true" if how == "the topic has the switch" else "false")
    node = three.controller.node
    if how != "the topic has the switch":
        await asyncio.sleep(30)
        assert partition_image(three).leader == NO_LEADER, "it waits for who has everything"
    if how == "the topic gets the switch":
        await node.submit(AlterTopicConfigs("t", {UNCLEAN: "true"}))
    if how == "an operator says so":
        await node.submit(ElectLeaders(False, ((node.image.topics["t"].topic_id, 0),)))
    await three.wait_until(lambda: partition_image(three).leader == last.node_id, 30)
    await three.wait_until(
        lambda: partition_image(three).loss is not None and last.node.hosted_replicas.list_leaders() != [], 30
    )
    loss = partition_image(three).loss
    assert loss is not None and loss.from_offset <= 1
    await last.node.leader_replica("t", 0).append(batch([b"c"]), acks=ACKS_ALL)
    await first.start()
    await three.wait_until(lambda: len(partition_image(three).isr) == 2, 60)
    (copy,) = [each for each in first.node.hosted_replicas.list_replicas() if each.tp.topic == "t"]
    assert copy.log.end_offset == last.node.leader_replica("t", 0).log.end_offset == 2


@run_by(run_scenario)
async def test_replica_without_all_records_waits_for_the_complete_one(three: ThreeBrokers) -> None:
    first, _ = await strand_last_record(three, "false")
    await asyncio.sleep(30)
    assert partition_image(three).leader == NO_LEADER
    await first.start()
    await three.wait_until(lambda: partition_image(three).leader == first.node_id, 60)
    assert first.node.leader_replica("t", 0).log.end_offset == 2 and partition_image(three).loss is None


@run_by(run_scenario)
async def test_every_broker_names_the_loss_until_it_is_acknowledged(three: ThreeBrokers) -> None:
    """The loss stays after another broker has become the controller."""
    first, last = await strand_last_record(three, "true")
    await three.wait_until(lambda: partition_image(three).leader == last.node_id, 30)
    await first.start()

    def named() -> list[dict[str, int]]:
        up = [each for each in three.brokers.values() if each.node.served.is_set()]
        losses = [each.node.health().details["possible_loss"] for each in up]
        return [{at: loss["from_offset"] for at, loss in each.items()} for each in losses]

    await three.wait_until(lambda: named() == [{"t-0": 0}] * 3, 10)
    before = three.controller
    await before.kill()
    await three.wait_until(
        lambda: [each is not before for each in map(three.brokers.get, three.controller_ids())] == [True], 60
    )
    assert "t-0 may be gone from offset 0 on" in " ".join(last.node.health().problems)
    topic, loss = last.node.image.topics["t"], partition_image(three).loss
    assert loss is not None
    await last.node.submit(AcknowledgeLosses(((topic.topic_id, 0, loss.leader_epoch),)))
    assert last.node.health().details["possible_loss"] == {}
    await before.start()
    await three.wait_until(lambda: named() == [{}] * 3, 30)


@run_by(run_scenario)
async def test_late_reply_of_the_controller_makes_no_later_contact(three: ThreeBrokers) -> None:
    """The controller counts the session of a leader up to its own reply (R6). The reply waits in the network. The
    controller fences the leader before the leader knows it, and elects a broker that lacks its last records."""
    first, last = three.others()
    controller, replicas = three.controller, [first.node_id, last.node_id]
    await controller.node.submit(CreateTopic("t", assignments=[replicas], configs={UNCLEAN: "true"}))
    await three.wait_until(lambda: len(partition_image(three).isr) == 2, 10)
    await last.kill()
    await three.wait_until(lambda: partition_image(three).isr == (first.node_id,), 30)
    three.network.cut(first.name, last.name)
    three.network.cut(last.name, first.name)
    await last.start()
    first.machine.faults.outage = True
    await three.wait_until(lambda: first.node.cluster.standby.silent_ms < 20, 5)
    await asyncio.sleep(0.05)  # the next fetch is at the controller
    three.network.cut(first.name, controller.name)
    three.network.cut(controller.name, first.name)
    await asyncio.sleep(3.4)  # the controller replies after 1.5 s, and the fetch fails after 3.7 s
    three.network.mend(controller.name, first.name)
    await three.wait_until(lambda: partition_image(three).leader == last.node_id, 2 * SESSION)
    with refuses(Code.NOT_LEADER_OR_FOLLOWER):
        await first.node.leader_replica("t", 0).append(batch([b"b"]), acks=ACKS_ALL, timeout_ms=100)


@pytest.mark.parametrize("sees_each_step", [True, False])
@run_by(run_scenario, tiered_upload_max_lag_ms=3_600_000)
async def test_heir_out_of_sync_takes_the_manifest_over_at_once(three: ThreeBrokers, *, sees_each_step: bool) -> None:
    """The leader before may have a change of the manifest in flight that names records which the heir lacks."""
    before, heir = three.others()
    await three.controller.node.submit(
        CreateTopic("t", assignments=[[before.node_id, heir.node_id]], configs={UNCLEAN: "true"})
    )
    await three.wait_until(
        lambda: partition_image(three).leader == before.node_id and len(partition_image(three).isr) == 2, 10
    )
    await three.wait_until(lambda: before.node.hosted_replicas.find_leader(AT) is not None, 10)
    await asyncio.sleep(1)
    if not sees_each_step:  # it opens some other log meanwhile
        await heir.node.hosted_replicas._role_change_lock.acquire()
        await three.controller.node.submit(CreateTopic("u", assignments=[[heir.node_id]]))
    three.network.cut(before.name, heir.name)
    three.network.cut(heir.name, before.name)
    await before.node.leader_replica(*AT).append(batch([b"a"]), acks=1)
    await three.wait_until(lambda: partition_image(three).isr == (before.node_id,), 60)
    await asyncio.sleep(0.2)
    await before.kill()
    await three.wait_until(lambda: partition_image(three).leader == heir.node_id, 60)
    if not sees_each_step:
        heir.node.hosted_replicas._role_change_lock.release()
    await three.wait_until(lambda: heir.node.hosted_replicas.find_leader(AT) is not None, 30)
    replica = heir.node.leader_replica(*AT)
    assert replica.manifest is not None and replica.manifest.leader_epoch == replica.leader_epoch

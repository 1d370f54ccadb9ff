"""Tests of brokers that lost their disk: the loss is reported whatever happens in between, and records of other
replicas stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from unittest.mock import patch

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.harness.machine import SimMachine
from tests.sim.rig.broker_rig import batch, numbers, read_values
from tests.sim.scenarios.test_cut_off import isolate
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
from tiered.broker.partition_report import explain
from tiered.controller.requests import CreateTopic, Move, Reassign
from tiered.errors import Code, Refused
from tiered.groups.requests import CommitOffsets, PartitionOffset
from tiered.ids import PartitionId, TopicPartition
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.topics import PartitionImage
from tiered.metadata.topic_names import OFFSETS_TOPIC

AT = TopicPartition("t", 0)
StartStage = Callable[[SimBroker, SimBroker], bool]


def is_registered(broker: SimBroker, controller: SimBroker) -> bool:
    """True if the controller knows the new incarnation."""
    known = controller.node.image.brokers[broker.node_id]
    return known.live and known.incarnation == broker.node.incarnation


def is_leading(broker: SimBroker, controller: SimBroker) -> bool:
    """True if the broker leads and is about to report its loss."""
    return any(replica.tp == AT for replica in broker.node.hosted_replicas.list_leaders())


@pytest.mark.parametrize("reached", [is_registered, is_leading])
@run_by(run_scenario)
async def test_broker_cut_off_before_its_report_reports_the_loss_later(
    three: ThreeBrokers, *, reached: StartStage
) -> None:
    controller, broker = three.controller, three.others()[0]

    def now() -> PartitionImage:
        return controller.node.image.topics["t"].partitions[0]

    await controller.node.submit(CreateTopic("t", assignments=[[broker.node_id]]))
    await three.wait_until(lambda: is_leading(broker, controller), 5)
    await broker.node.leader_replica("t", 0).append(batch([b"v"]))
    broker.machine.lose_disk()
    await broker.clear()
    await three.wait_until(lambda: now().leader == NO_LEADER, 10)
    before = broker.node
    starting = asyncio.create_task(broker.start())
    while broker.node is before or not reached(broker, controller):
        await asyncio.sleep(0.000_05)
    assert now().loss is None
    isolate(three, broker)
    await three.wait_until(lambda: now().leader == NO_LEADER, 60)
    three.network.heal()
    await three.wait_until(lambda: now().leader == broker.node_id, 60)
    await three.wait_until(lambda: now().loss is not None, 600)
    loss = now().loss
    assert loss is not None and loss.from_offset == 0
    await starting


@pytest.mark.parametrize("acks", [0, 1, -1])
@run_by(run_scenario)
async def test_broker_with_an_unreported_loss_takes_no_records(three: ThreeBrokers, *, acks: int) -> None:
    """Otherwise its next start would report the loss from an offset behind the records that it wrote. The next start
    reports the whole loss."""
    controller, broker = three.controller, three.others()[0]
    topic = await controller.node.submit(CreateTopic("t", assignments=[[broker.node_id]]))
    await three.wait_until(lambda: is_leading(broker, controller), 5)
    await broker.node.leader_replica("t", 0).append(batch([b"v"]))
    broker.machine.lose_disk()
    await broker.clear()
    await three.wait_until(lambda: controller.node.image.topics["t"].partitions[0].leader == NO_LEADER, 10)
    before = broker.node
    starting = asyncio.create_task(broker.start())
    while broker.node is before or not is_leading(broker, controller):
        await asyncio.sleep(0.000_05)
    isolate(three, broker)
    with refuses(Code.NOT_LEADER_OR_FOLLOWER):
        await broker.node.leader_replica("t", 0).append(batch([b"w"]), acks=acks, timeout_ms=500)
    await broker.kill()
    with suppress(asyncio.CancelledError):
        await starting
    three.network.heal()
    await broker.start()
    again = broker.node.leader_replica("t", 0)
    told = controller.node.image.losses[PartitionId(topic.topic_id, 0)]
    assert [each.from_offset for each in told] == [0]
    assert (await again.append(batch([b"w"]), acks=acks)).base_offset == 0, "told, it writes"


@run_by(run_scenario)
async def test_requests_wait_while_a_loss_is_reported(three: ThreeBrokers) -> None:
    controller, broker = three.controller, three.others()[0]
    await controller.node.submit(CreateTopic("t", assignments=[[broker.node_id]]))
    await three.wait_until(lambda: is_leading(broker, controller), 5)
    replica = broker.node.leader_replica("t", 0)
    replica.admission.block_appends()
    assert replica.admission.has_unreported_loss and not replica.commits_on_append
    waiting = [asyncio.create_task(replica.append(batch([value]))) for value in (b"v", b"w")]
    await asyncio.sleep(1)
    assert not any(each.done() for each in waiting) and replica.log.end_offset == 0
    replica.admission.on_loss_reported()
    assert [(await each).base_offset for each in waiting] == [0, 1] and replica.commits_on_append
    replica.admission.block_appends()
    late = asyncio.create_task(replica.append(batch([b"x"])))
    await asyncio.sleep(0)
    broker.node.hosted_replicas.resign(AT, Refused(Code.NOT_LEADER_OR_FOLLOWER, "another one leads it"))
    with pytest.raises(Refused, match="another one leads it"):
        await late


@run_by(run_scenario)
async def test_groups_are_loaded_once_their_log_takes_records(three: ThreeBrokers) -> None:
    controller, broker = three.controller, three.others()[0]
    group = CommitOffsets("g", (PartitionOffset("t", 0, 0),))
    assignments = [[broker.node_id]]
    for name in ("t", OFFSETS_TOPIC):
        await controller.node.submit(CreateTopic(name, assignments=assignments))
    await three.wait_until(lambda: is_leading(broker, controller) and OFFSETS_TOPIC in broker.node.image.topics, 5)
    await broker.node.group_coordinators.submit("g", group)
    broker.machine.lose_disk()
    await broker.clear()
    await three.wait_until(lambda: controller.node.image.topics["t"].partitions[0].leader == NO_LEADER, 10)
    before = broker.node
    starting = asyncio.create_task(broker.start())
    while broker.node is before or len(broker.node.hosted_replicas.list_leaders()) < 2:
        await asyncio.sleep(0.000_05)
    isolate(three, broker)
    for _ in range(10):
        await asyncio.sleep(SESSION / 10)
        with refuses(Code.COORDINATOR_LOAD_IN_PROGRESS):
            await broker.node.group_coordinators.submit("g", group)
    three.network.heal()
    await starting

    def is_loaded() -> bool:
        led = [each for each in broker.node.hosted_replicas.list_leaders() if each.topic == OFFSETS_TOPIC]
        return bool(led) and not led[0].admission.has_unreported_loss

    await three.wait_until(is_loaded, 20)
    await asyncio.sleep(1)
    await broker.node.group_coordinators.submit("g", group)


@run_by(run_scenario)
async def test_isr_of_a_leader_with_an_unreported_loss_does_not_grow(three: ThreeBrokers) -> None:
    """A follower that joined could lead when this leader dies, without knowledge of the loss."""
    leader, other = three.others()
    await three.controller.node.submit(CreateTopic("t", assignments=[[leader.node_id, other.node_id]]))
    await three.wait_until(lambda: is_leading(leader, three.controller), 5)

    def in_sync() -> set[int]:
        return set(three.controller.node.image.topics["t"].partitions[0].isr)

    await other.kill()
    await three.wait_until(lambda: in_sync() == {leader.node_id}, 10)
    lost = leader.node.leader_replica("t", 0)
    with patch.object(leader.node.losses, "_is_unreported", lambda replica: True):
        leader.node.losses.unreported[lost] = 0
        await other.start()
        await three.wait_until(lambda: bool(other.node.hosted_replicas.list_replicas()), 5)
        await asyncio.sleep(3)
        assert in_sync() == {leader.node_id} and [*leader.node.losses.unreported] == [lost]
    await three.wait_until(lambda: len(in_sync()) == 2, 15)
    assert not leader.node.losses.unreported


@run_by(run_scenario)
async def test_intact_copies_survive_the_lost_disk_of_the_last_isr_member(three: ThreeBrokers) -> None:
    """Both followers left the ISR with all records that were acknowledged then. The leader acknowledges more alone, and
    comes back with an empty disk. The records of the copies stay, and the rest is reported as a loss."""
    await write_records(three, 3)
    hit = leader_of(three)
    others = [each for each in three.brokers.values() if each is not hit]
    await crash(others, SimMachine.kill)
    await three.wait_until(lambda: isr_brokers(three) == [hit], SECONDS)
    alone = await wait_leader(three)
    await alone.append(batch([b"%06d" % COUNT]))
    await crash([hit], SimMachine.lose_disk)
    await asyncio.gather(*(each.start() for each in others))
    await asyncio.sleep(SECONDS)
    now = others[0].node.image.topics["t"].partitions[0]
    assert now.leader == NO_LEADER, "the last one in sync may have more"
    await hit.start()
    again = await wait_leader(three)
    await three.wait_until(lambda: again.high_watermark >= COUNT and len(isr_brokers(three)) == 3, SECONDS)
    assert again.state.node_id != hit.node_id
    assert await read_values(again, 0) == numbers(0, COUNT)
    assert explain(again)["possible_loss"]["from_offset"] == COUNT


@run_by(run_scenario)
async def test_last_isr_member_leads_again_if_it_has_the_most_records(three: ThreeBrokers) -> None:
    """It lost its unsynced records. The controller asks the other replicas for their ends as well."""
    await write_records(three, 3)
    hit = leader_of(three)
    others = [each for each in three.brokers.values() if each is not hit]
    await crash(others, SimMachine.kill)
    await three.wait_until(lambda: isr_brokers(three) == [hit], SECONDS)
    alone = await wait_leader(three)
    for number in range(COUNT, 2 * COUNT):
        await alone.append(batch([b"%06d" % number]))
    await alone.flush()
    await alone.append(batch([b"unsynced"]))
    await crash([hit], SimMachine.power_cut)
    await asyncio.gather(*(each.start() for each in others))
    await hit.start()
    again = await wait_leader(three)
    await three.wait_until(lambda: explain(again)["possible_loss"] is not None, SECONDS)
    assert again.state.node_id == hit.node_id
    assert (await read_values(again, 0))[: 2 * COUNT] == numbers(0, 2 * COUNT)


@run_by(run_scenario)
async def test_leader_elected_long_after_its_start_reports_its_loss_at_once(three: ThreeBrokers) -> None:
    """The leader takes no records before its report. It was elected once the third broker, whose log end was awaited,
    was fenced."""
    await write_records(three, 3)
    hit = leader_of(three)
    others = [each for each in three.brokers.values() if each is not hit]
    await crash(others, SimMachine.kill)
    await three.wait_until(lambda: isr_brokers(three) == [hit], SECONDS)
    alone = await wait_leader(three)
    await alone.append(batch([b"more"]))
    await alone.flush()
    await alone.append(batch([b"unsynced"]))
    await crash([hit], SimMachine.power_cut)
    await asyncio.gather(*(each.start() for each in others))
    silent = next(each for each in others if each is not three.controller)
    isolate(three, silent)
    await hit.start()
    now = hit.node.image.topics["t"].partitions[0]
    assert now.leader == NO_LEADER and now.last_known == (hit.node_id,)
    again = await wait_leader(three)
    assert again.state.node_id == hit.node_id
    await three.wait_until(lambda: not again.admission.has_unreported_loss, 0.1)
    assert explain(again)["possible_loss"]["from_offset"] == again.epoch_start > COUNT


@run_by(run_scenario)
async def test_partition_moved_during_its_only_brokers_start_keeps_its_records(three: ThreeBrokers) -> None:
    """After the power cut no log is certain. The reassignment reaches the controller before the end of the log. The
    replica with the records leads."""
    controller = three.controller
    hit, target = three.others()
    topic = await controller.node.submit(CreateTopic("t", assignments=[[hit.node_id]]))
    await three.wait_until(lambda: is_leading(hit, controller), 5)
    for number in range(COUNT):
        await hit.node.leader_replica("t", 0).append(batch([b"%06d" % number]))
    await hit.node.leader_replica("t", 0).flush()
    await crash([hit], SimMachine.power_cut)
    await three.wait_until(lambda: not controller.node.image.brokers[hit.node_id].live, SECONDS)
    controller.machine.faults.outage = True  # what it decides is in the bucket later, all at once
    moving = asyncio.create_task(
        controller.node.submit(Reassign((Move(topic.topic_id, 0, (target.node_id,)),)), timeout=SECONDS)
    )
    await asyncio.sleep(0.1)
    starting = asyncio.create_task(hit.start())
    await three.wait_until(lambda: controller.node.cluster.pending == 2, SECONDS)
    controller.machine.faults.outage = False
    assert await moving == (None,)
    await starting
    again = await wait_leader(three)
    await three.wait_until(lambda: again.high_watermark >= COUNT, SECONDS)
    assert await read_values(again, 0) == numbers(0, COUNT)


@run_by(run_scenario, tiered_upload_max_lag_ms=5_000)
async def test_log_says_where_a_loss_begins_once_the_elected_leader_knows(
    three: ThreeBrokers, *, caplog: pytest.LogCaptureFixture
) -> None:
    await write_records(three, 3, min_insync_replicas="2", unclean_leader_election_enable="true")
    leader = leader_of(three).node.leader_replica("t", 0)
    await three.wait_until(lambda: explain(leader)["cold_end_offset"] == COUNT, 600)
    await leader.append(batch([b"not in the bucket"]))
    back = three.others()
    await crash(list(three.brokers.values()), SimMachine.lose_disk)
    caplog.clear()
    await asyncio.gather(*(each.start() for each in back))
    await three.wait_until(lambda: "fewer records may be gone" in caplog.text, 60)
    (losses,) = back[0].node.image.losses.values()
    assert [each.from_offset for each in losses] == [COUNT]
    said = [each for each in caplog.messages if "partition@offset=t-0@" in each]
    assert "t-0@0:" in said[0], "the controller does not know the log"
    assert said[-1].startswith("fewer records may be gone") and f"t-0@{COUNT}:" in said[-1]

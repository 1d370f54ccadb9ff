"""Tests of a broker that reaches the bucket but no other broker: the others continue undisturbed."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

from tests.refusal import refuses
from tests.scenario import GIVEN, run_by
from tests.seeds import first_seeds
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.three import SESSION, SUSPECT, SimBroker, ThreeBrokers, run_scenario
from tiered.cold.layout import manifest_key
from tiered.controller.requests import AlterBrokerConfigs, CreateTopic, DeleteTopic
from tiered.errors import Code, Refused
from tiered.ids import PartitionId, TopicPartition
from tiered.metadata.candidacy import EXCLUDED_SESSIONS
from tiered.metadata.changes import ControllerElected
from tiered.metadata.layout import Entry, encode_entry, slot_key
from tiered.metadata.parts.topics import PartitionImage
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.replication.leader_replica import ACKS_ALL

PARTITIONS = 3


def isolate(three: ThreeBrokers, broker: SimBroker) -> list[SimBroker]:
    """Cuts the broker off from all others; returns the others."""
    others = [each for each in three.brokers.values() if each is not broker]
    for other in others:
        three.network.cut(broker.name, other.name)
        three.network.cut(other.name, broker.name)
    return others


async def create_topic(three: ThreeBrokers) -> None:
    """Creates a topic of three replicas with `min.insync.replicas` 2, where each broker leads a partition."""
    await three.controller.node.submit(CreateTopic("t", PARTITIONS, 3, configs={"min.insync.replicas": "2"}))
    await three.wait_until(lambda: all("t" in each.node.image.topics for each in three.brokers.values()), 10)


def leaders(broker: SimBroker) -> set[int]:
    """Returns the leaders that a client of this broker is told of."""
    return {each.leader for each in broker.node.image.topics["t"].partitions}


async def try_append(three: ThreeBrokers, number: int, known_by: SimBroker) -> bool:
    """True if the leader that `known_by` names acknowledges a record."""
    leader = known_by.node.image.topics["t"].partitions[number].leader
    if leader < 0:
        return False
    with suppress(Refused):
        await three.brokers[leader].node.leader_replica("t", number).append(batch([b"v"]), timeout_ms=200)
        return True
    return False


async def wait_all_writable(three: ThreeBrokers, known_by: SimBroker, seconds: float) -> float:
    """Waits until every partition takes records from a client of `known_by`; returns the seconds."""
    start, left = three.now, set(range(PARTITIONS))
    while left:
        assert three.now - start < seconds, f"not in time: {left}"
        left -= {number for number in sorted(left) if await try_append(three, number, known_by)}
        await asyncio.sleep(0.01)
    return three.now - start


@pytest.mark.parametrize("seed", first_seeds(2, of=6))
@run_by(run_scenario, seed=GIVEN)
async def test_controller_that_is_cut_off_is_replaced_and_learns_it(three: ThreeBrokers) -> None:
    """A client may go on to use the old controller, which must read the new leaders from the bucket."""
    await create_topic(three)
    old = three.controller
    others = isolate(three, old)
    took = await wait_all_writable(three, old, SESSION + 2)
    assert took > SUSPECT / 2
    assert old.node.cluster.active_controller is None
    assert leaders(old) <= {each.node_id for each in others}


@pytest.mark.parametrize("seed", first_seeds(1, of=4))
@pytest.mark.parametrize("whom", ["controller", "follower"])
@run_by(run_scenario, seed=GIVEN)
async def test_broker_that_is_cut_off_does_not_disturb_the_others(three: ThreeBrokers, *, whom: str) -> None:
    await create_topic(three)
    lost = three.controller if whom == "controller" else three.others()[0]
    others = isolate(three, lost)
    await wait_all_writable(three, others[0], SESSION + 2)
    epoch = others[0].node.image.controller_epoch
    assert epoch == (2 if whom == "controller" else 1)
    requests = three.bucket.requests
    for _ in range(30):
        await asyncio.sleep(SESSION / 4)
        assert [each.node.image.controller_epoch for each in others] == [epoch] * 2
        await wait_all_writable(three, others[0], 0.5)
    assert three.bucket.requests - requests < 300
    three.network.heal()
    await three.wait_until(three.is_everyone_known, SESSION)
    assert three.controller in others and others[0].node.image.controller_epoch == epoch


@pytest.mark.parametrize("seed", first_seeds(1, of=3))
@run_by(run_scenario, seed=GIVEN)
async def test_broker_cut_off_during_a_bucket_outage_does_not_take_over(three: ThreeBrokers) -> None:
    """The bucket was unreachable for all, and the controller reported it. Then one broker is cut off, and the bucket
    comes back for that broker and for the controller."""
    old, lost = three.controller, three.others()[0]
    epoch = old.node.image.controller_epoch
    for each in three.brokers.values():
        each.machine.faults.outage = True
    with suppress(Refused):
        await old.node.submit(AlterBrokerConfigs(-1, {"log.retention.ms": "1000000"}), timeout=1)
    await asyncio.sleep(3 * SESSION)
    assert three.controller_ids() == [old.node_id]
    isolate(three, lost)
    for each in (old, lost):
        each.machine.faults.outage = False
    for _ in range(30):
        await asyncio.sleep(SESSION / 4)
        assert three.controller_ids() == [old.node_id]
    assert old.node.image.controller_epoch == epoch and not old.node.image.brokers[lost.node_id].live


@pytest.mark.parametrize("seed", first_seeds(1, of=3))
@run_by(run_scenario, seed=GIVEN)
async def test_broker_that_was_cut_off_takes_over_if_the_others_stay_silent(three: ThreeBrokers) -> None:
    lost = three.others()[0]
    others = isolate(three, lost)
    await three.wait_until(lambda: not others[0].node.image.brokers[lost.node_id].live, 2 * SESSION)
    for each in others:
        three.loop.freeze(each.process)
    await asyncio.sleep(2 * SESSION)
    assert lost.node.cluster.active_controller is None, "others may just not be reachable from here"
    await three.wait_until(lambda: lost.node.cluster.active_controller is not None, (EXCLUDED_SESSIONS + 5) * SESSION)
    for each in others:
        three.loop.resume(each.process)


@run_by(run_scenario)
async def test_cut_off_leader_of_a_deleted_topic_leaves_no_object(three: ThreeBrokers) -> None:
    """The leader takes records with acks=1 and uploads them until it reads the deletion from the bucket. The cluster
    drops the topic id long after that."""
    lonely, _ = three.others()
    control = three.controller
    configs = {"internal.segment.bytes": "1024", "retention.ms": "-1"}
    await control.node.submit(CreateTopic("t", assignments=[[lonely.node_id]], configs=configs))
    await three.wait_until(lambda: bool(lonely.node.leader_replicas()), 10)
    replica = lonely.node.leader_replica("t", 0)
    objects = f"data/{replica.topic_id}/"

    def list_objects() -> list[str]:
        return [key for key in three.bucket.objects if key.startswith(objects)]

    async def write_record() -> None:
        with suppress(Refused):
            while True:
                replica.append_now(batch([b"x" * 300]), 1)
                await asyncio.sleep(0.1)

    writing = asyncio.create_task(write_record())
    await three.wait_until(lambda: len(list_objects()) > 3, 60)
    isolate(three, lonely)
    await control.node.submit(DeleteTopic("t", replica.topic_id))
    took = await three.wait_until(writing.done, 60)
    assert took < SESSION + 1 and replica.is_stopped
    assert lonely.node.cluster.standby.silent_ms > took * 900, "no other broker told it"
    await three.wait_until(lambda: not control.node.image.deleted_topics, 600)
    await asyncio.sleep(60)
    assert not lonely.node.cluster.has_controller_contact and list_objects() == []


@run_by(run_scenario)
async def test_pending_request_ends_when_its_controller_is_replaced(three: ThreeBrokers) -> None:
    """Its outcome is decided then, but not known to this broker. The caller may send it to the next controller."""
    old = three.controller
    asking = three.others()[0]
    three.loop.freeze(old.process)
    start = three.now
    with refuses(Code.REQUEST_TIMED_OUT):
        await asking.node.submit(AlterBrokerConfigs(-1, {"log.retention.ms": "1000000"}), timeout=60)
    assert three.now - start < SESSION + 2
    await asking.node.submit(AlterBrokerConfigs(-1, {"log.retention.ms": "1000000"}), timeout=2)
    three.loop.resume(old.process)


@run_by(run_scenario)
async def test_controller_asked_for_its_view_checks_for_another_controller(three: ThreeBrokers) -> None:
    """The controller misses no broker, because the others still follow it. A request for its view makes it read the
    bucket, where another controller has written the next slot."""
    old, asker = three.controller, three.others()[0]
    slot, epoch = old.node.image.slot + 1, old.node.image.controller_epoch
    elected = Entry(slot, epoch + 1, "n", (ControllerElected(epoch + 1, 9, "I" * 21 + "A"),))
    await old.machine.store.put(slot_key(slot), encode_entry(elected), if_absent=True)
    await asyncio.sleep(2)
    assert old.node.cluster.active_controller is not None, "nothing told it"
    assert asker.node.peers is not None
    before = three.bucket.memory.requests
    for _ in range(5):
        await asker.node.peers.get_controller_view(f"{old.name}:9092", 5)
    await three.wait_until(lambda: old.node.cluster.active_controller is None, 1)
    assert three.bucket.memory.requests - before < 10


@pytest.mark.parametrize("ends", ["killed", "frozen"])
@run_by(run_scenario)
async def test_broker_starts_although_the_controller_changes_meanwhile(three: ThreeBrokers, *, ends: str) -> None:
    old = three.controller
    starting, successor = three.others()
    await starting.kill()
    await three.wait_until(lambda: not old.node.image.brokers[starting.node_id].live, 2 * SESSION)
    old.machine.faults.outage = True
    started = asyncio.create_task(starting.start())
    await asyncio.sleep(0.5)
    assert not started.done(), "the registration cannot be written"
    if ends == "killed":
        await old.kill()
    else:
        three.loop.freeze(old.process)
    await asyncio.wait_for(started, 3 * SESSION)
    await three.wait_until(lambda: successor.node.image.brokers[starting.node_id].live, SESSION)
    if ends == "frozen":
        three.loop.resume(old.process)


@run_by(run_scenario)
async def test_replaced_controller_has_no_contact_until_the_next_one_answers(three: ThreeBrokers) -> None:
    """It learns of the next controller when it loses a slot. That is no contact with the next controller (rule R6)."""
    old = three.controller
    isolate(three, old)
    await three.wait_until(lambda: not old.node.cluster.is_controller, 30)
    seen = three.now
    while three.now - seen < 3 * SESSION:
        assert not old.node.cluster.has_controller_contact, f"after {three.now - seen} s"
        assert f"(broker {old.node_id})" not in old.node.cluster.describe_contact()
        await asyncio.sleep(0.01)
    three.network.heal()
    await three.wait_until(lambda: old.node.cluster.has_controller_contact, 10)


@run_by(run_scenario)
async def test_broker_has_contact_only_once_it_has_the_controllers_changes(three: ThreeBrokers) -> None:
    """The controller replies, but no longer has in memory the changes that this broker missed. The broker does not
    reach the bucket."""
    victim = three.others()[0]
    others = isolate(three, victim)
    victim.machine.faults.outage = True
    await three.wait_until(lambda: not victim.node.cluster.has_controller_contact, 2 * SESSION)
    await three.wait_until(lambda: all(each.node.image.brokers[victim.node_id].fenced for each in others), 2 * SESSION)
    for each in others:
        await each.kill()
    for each in others:
        await each.start()
    await three.wait_until(lambda: len(three.controller_ids()) == 1, 30)
    known = three.controller.node.image
    three.network.heal()
    await three.wait_until(lambda: victim.node.cluster.standby.silent_ms < 100, 30)
    assert victim.node.image.slot < known.slot and not victim.node.cluster.has_controller_contact
    victim.machine.faults.outage = False
    await three.wait_until(lambda: victim.node.cluster.has_controller_contact, 30)
    assert victim.node.image.slot >= known.slot


@run_by(run_scenario)
async def test_leader_resigns_in_the_turn_in_which_it_learns_of_another(three: ThreeBrokers) -> None:
    """The broker applies images late. It would otherwise acknowledge records that the next leader, chosen by an unclean
    election, lacks."""
    slow, quick = three.others()
    tp = TopicPartition("t", 0)
    await three.controller.node.submit(
        CreateTopic(
            "t",
            assignments=[[slow.node_id, quick.node_id]],
            configs={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
        )
    )
    await three.wait_until(lambda: slow.node.hosted_replicas.find_leader(tp) is not None, 10)
    replica = slow.node.leader_replica("t", 0)
    await slow.node.hosted_replicas._role_change_lock.acquire()  # it opens some other log meanwhile
    await quick.kill()
    await three.wait_until(lambda: slow.node.image.topics["t"].partitions[0].isr == (slow.node_id,), 10)
    slow.node.hosted_replicas._role_change_lock.release()
    await three.wait_until(lambda: replica.state.isr == {slow.node_id}, 10)
    await slow.node.hosted_replicas._role_change_lock.acquire()
    await quick.start()
    isolate(three, slow)
    await three.wait_until(lambda: quick.node.image.topics["t"].partitions[0].leader == quick.node_id, 30)
    three.network.heal()
    await three.wait_until(lambda: slow.node.image.topics["t"].partitions[0].leader == quick.node_id, 30)
    await three.wait_until(lambda: slow.node.cluster.has_controller_contact, 30)
    with refuses(Code.NOT_LEADER_OR_FOLLOWER):
        replica.append_now(batch([b"lost"]), ACKS_ALL)
    assert slow.node.hosted_replicas.find_leader(tp) is None
    slow.node.hosted_replicas._role_change_lock.release()


@pytest.mark.parametrize("attempt", ["first", "second"])
@run_by(run_scenario)
async def test_leader_that_opens_late_does_not_lead_under_an_earlier_epoch(
    three: ThreeBrokers, *, attempt: str
) -> None:
    """Its broker learns of the next leader, chosen by an unclean election, while it waits for the bucket."""
    slow, quick = three.others()
    tp = TopicPartition("t", 0)
    for name in ("t", "u"):
        await three.controller.node.submit(
            CreateTopic(
                name,
                assignments=[[quick.node_id, slow.node_id]],
                configs={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
            )
        )
    await three.wait_until(lambda: all(len(image_of(three.controller, each).isr) == 2 for each in "tu"), 30)
    for name, seconds in (("t", 15), ("u", 25)):  # the next image waits for "u" too
        partition_id = PartitionId(slow.node.image.topics[name].topic_id, 0)
        faults = [(FaultKind.ERROR, 0)] if attempt == "second" else []
        slow.machine.faults.rules += [
            FaultRule(kind, ("get",), key=manifest_key(partition_id), times=1, seconds=delay)
            for kind, delay in (*faults, (FaultKind.DELAY, seconds))
        ]
    await quick.kill()
    await three.wait_until(lambda: image_of(slow, "t").leader == slow.node_id, 10)
    if attempt == "second":
        await three.wait_until(lambda: len(slow.node.hosted_replicas.unopened_leaders) == 2, 10)
    await quick.start()
    isolate(three, slow)
    await three.wait_until(lambda: quick.node.hosted_replicas.find_leader(tp) is not None, 30)
    three.network.heal()
    await three.wait_until(lambda: image_of(slow, "t").leader == quick.node_id, 30)
    await three.wait_until(lambda: slow.node.cluster.has_controller_contact, 30)
    slow_replicas = slow.node.hosted_replicas
    while slow_replicas.find_follower(tp) is None:
        replica = slow_replicas.find_leader(tp)
        assert replica is None, f"it leads under epoch {replica.leader_epoch}"
        await asyncio.sleep(0.01)
    await three.wait_until(lambda: image_of(three.controller, "t").isr == (quick.node_id, slow.node_id), 60)


def image_of(broker: SimBroker, topic: str) -> PartitionImage:
    return broker.node.image.topics[topic].partitions[0]


def test_broker_that_nobody_reaches_says_so_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tiered.controller")

    async def scenario(three: ThreeBrokers) -> None:
        await create_topic(three)
        isolate(three, three.others()[0])
        caplog.clear()
        await asyncio.sleep(60)

    run_scenario(scenario, 1)
    lines = [each for each in caplog.records if "fetch from controller failed" in each.getMessage()]
    assert [each.levelno for each in lines[:2]] == [logging.INFO, logging.WARNING]
    assert len(lines) <= 6 and "seconds=1" in lines[1].getMessage()
    assert 0 < sum("sends no view" in each.getMessage() for each in caplog.records) <= 20

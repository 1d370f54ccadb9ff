"""A broker that no other one reaches, though it reaches the bucket: the others go on without it, undisturbed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.e2e.site import batch
from tests.sim.scenarios.three import SESSION, SimBroker, ThreeBrokers, run_scenario
from tiered.controller.requests import AlterBrokerConfigs, CreateTopic, DeleteTopic
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.candidacy import FENCED_SESSIONS
from tiered.metadata.changes import ControllerElected
from tiered.metadata.layout import Entry, encode_entry, slot_key
from tiered.replication.leader_replica import ACKS_ALL

PARTITIONS = 3


def isolate(three: ThreeBrokers, broker: SimBroker) -> list[SimBroker]:
    """The others."""
    others = [each for each in three.brokers.values() if each is not broker]
    for other in others:
        three.network.cut(broker.name, other.name)
        three.network.cut(other.name, broker.name)
    return others


async def create_topic(three: ThreeBrokers) -> None:
    """A topic of three replicas, two of which must be in sync, led by each broker once."""
    await three.controller.node.submit(CreateTopic("t", PARTITIONS, 3, configs={"min.insync.replicas": "2"}))
    await three.wait_until(lambda: all("t" in each.node.image.topics for each in three.brokers.values()), 10)


def leaders(broker: SimBroker) -> set[int]:
    """As a client is told that asks this one."""
    return {each.leader for each in broker.node.image.topics["t"].partitions}


async def try_append(three: ThreeBrokers, number: int, known_by: SimBroker) -> bool:
    """Whether the leader that `asked` names takes a record and says that it is safe."""
    leader = known_by.node.image.topics["t"].partitions[number].leader
    if leader < 0:
        return False
    with suppress(Refused):
        await three.brokers[leader].node.leader_replica("t", number).append(batch([b"v"]), timeout_ms=200)
        return True
    return False


async def wait_all_writable(three: ThreeBrokers, known_by: SimBroker, seconds: float) -> float:
    """Until every partition takes records from a client that knows what `asked` knows; how long it took."""
    start, left = three.now, set(range(PARTITIONS))
    while left:
        assert three.now - start < seconds, f"not in time: {left}"
        left -= {number for number in sorted(left) if await try_append(three, number, known_by)}
        await asyncio.sleep(0.01)
    return three.now - start


@pytest.mark.parametrize("seed", range(6))
def test_a_controller_that_is_cut_off_is_replaced_and_knows_it(seed: int) -> None:
    """A client may go on asking it: it has to hear from the bucket who leads now."""

    async def scenario(three: ThreeBrokers) -> None:
        await create_topic(three)
        old = three.controller
        others = isolate(three, old)
        took = await wait_all_writable(three, old, SESSION + 2)
        assert took > SESSION / 2
        assert old.node.cluster.active_controller is None
        assert leaders(old) <= {each.node_id for each in others}

    run_scenario(scenario, seed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("whom", ["controller", "follower"])
def test_who_is_cut_off_does_not_disturb_the_others(seed: int, whom: str) -> None:
    async def scenario(three: ThreeBrokers) -> None:
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

    run_scenario(scenario, seed)


@pytest.mark.parametrize("seed", range(3))
def test_what_a_controller_said_of_the_bucket_says_nothing_to_who_was_cut_off_since(seed: int) -> None:
    """The bucket was away for all, and the controller said so. One broker is cut off, and then the bucket is back for
    that one and for the controller."""

    async def scenario(three: ThreeBrokers) -> None:
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

    run_scenario(scenario, seed)


@pytest.mark.parametrize("seed", range(3))
def test_who_was_cut_off_takes_over_where_the_others_are_silent_for_long(seed: int) -> None:
    async def scenario(three: ThreeBrokers) -> None:
        lost = three.others()[0]
        others = isolate(three, lost)
        await three.wait_until(lambda: not others[0].node.image.brokers[lost.node_id].live, 2 * SESSION)
        for each in others:
            three.loop.freeze(each.process)
        await asyncio.sleep(2 * SESSION)
        assert lost.node.cluster.active_controller is None, "others may just not be reachable from here"
        await three.wait_until(lambda: lost.node.cluster.active_controller is not None, (FENCED_SESSIONS + 5) * SESSION)
        for each in others:
            three.loop.resume(each.process)

    run_scenario(scenario, seed)


def test_who_is_cut_off_hears_of_a_deletion_from_the_bucket_and_leaves_nothing_there() -> None:
    """It goes on to take records and to upload them, with acks=1, until it hears; the topic is forgotten long after."""

    async def scenario(three: ThreeBrokers) -> None:
        lonely, _ = three.others()
        control = three.controller
        configs = {"segment.bytes": "1024", "retention.ms": "-1"}
        await control.node.submit(CreateTopic("t", assignments=[[lonely.node_id]], configs=configs))
        await three.wait_until(lambda: bool(lonely.node.leader_replicas()), 10)
        replica = lonely.node.leader_replica("t", 0)
        objects = f"data/{replica.topic_id}/"

        def stored() -> list[str]:
            return [key for key in three.bucket.objects if key.startswith(objects)]

        async def written() -> None:
            with suppress(Refused):
                while True:
                    replica.append_now(batch([b"x" * 300]), 1)
                    await asyncio.sleep(0.1)

        writing = asyncio.create_task(written())
        await three.wait_until(lambda: len(stored()) > 3, 60)
        isolate(three, lonely)
        await control.node.submit(DeleteTopic("t", replica.topic_id))
        took = await three.wait_until(writing.done, 60)
        assert took < SESSION + 1 and replica.is_stopped
        assert lonely.node.cluster.standby.silent_ms > took * 900, "no other broker told it"
        await three.wait_until(lambda: not control.node.image.deleted_topics, 600)
        await asyncio.sleep(60)
        assert not lonely.node.cluster.has_controller_contact and stored() == []

    run_scenario(scenario)


def test_a_request_that_the_last_controller_has_not_answered_ends_with_its_reign() -> None:
    """Its outcome is settled then, though not known here; who waits may ask the next one."""

    async def scenario(three: ThreeBrokers) -> None:
        old = three.controller
        asking = three.others()[0]
        three.loop.freeze(old.process)
        start = three.now
        with pytest.raises(Refused) as caught:
            await asking.node.submit(AlterBrokerConfigs(-1, {"log.retention.ms": "1000000"}), timeout=60)
        assert caught.value.code is Code.REQUEST_TIMED_OUT
        assert three.now - start < SESSION + 2
        await asking.node.submit(AlterBrokerConfigs(-1, {"log.retention.ms": "1000000"}), timeout=2)
        three.loop.resume(old.process)

    run_scenario(scenario)


def test_a_controller_that_is_asked_whom_it_hears_looks_whether_there_is_another() -> None:
    """It misses nobody: who follows it does, and to the others it says that they left long ago."""

    async def scenario(three: ThreeBrokers) -> None:
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

    run_scenario(scenario)


@pytest.mark.parametrize("ends", ["killed", "frozen"])
def test_a_broker_starts_although_the_controller_changes_while_it_registers(ends: str) -> None:
    async def scenario(three: ThreeBrokers) -> None:
        old = three.controller
        starting, heir = three.others()
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
        await three.wait_until(lambda: heir.node.image.brokers[starting.node_id].live, SESSION)
        if ends == "frozen":
            three.loop.resume(old.process)

    run_scenario(scenario)


def test_a_controller_that_was_replaced_is_in_touch_with_none_until_it_hears_the_next() -> None:
    """It learns that another one reigns by a slot that it does not get: that is no word from that one (rule R6)."""

    async def scenario(three: ThreeBrokers) -> None:
        old = three.controller
        isolate(three, old)
        await three.wait_until(lambda: not old.node.cluster.is_controller, 30)
        seen = three.now
        while three.now - seen < 3 * SESSION:
            assert not old.node.cluster.has_controller_contact, f"after {three.now - seen} s"
            await asyncio.sleep(0.01)
        three.network.heal()
        await three.wait_until(lambda: old.node.cluster.has_controller_contact, 10)

    run_scenario(scenario)


def test_a_broker_is_in_touch_only_once_it_knows_what_the_controller_knows() -> None:
    """The controller answers it, but has nothing of what it missed in memory; and the bucket is away for it."""

    async def scenario(three: ThreeBrokers) -> None:
        victim = three.others()[0]
        others = isolate(three, victim)
        victim.machine.faults.outage = True
        await three.wait_until(lambda: not victim.node.cluster.has_controller_contact, 2 * SESSION)
        await three.wait_until(
            lambda: all(each.node.image.brokers[victim.node_id].fenced for each in others), 2 * SESSION
        )
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

    run_scenario(scenario)


def test_a_leader_that_hears_of_another_one_leads_no_more_in_the_same_turn() -> None:
    """It is slow to act: until then it would acknowledge what the next leader, who was elected uncleanly, lacks."""

    async def scenario(three: ThreeBrokers) -> None:
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
        with pytest.raises(Refused) as caught:
            replica.append_now(batch([b"lost"]), ACKS_ALL)
        assert caught.value.code is Code.NOT_LEADER_OR_FOLLOWER
        assert slow.node.hosted_replicas.find_leader(tp) is None
        slow.node.hosted_replicas._role_change_lock.release()

    run_scenario(scenario)

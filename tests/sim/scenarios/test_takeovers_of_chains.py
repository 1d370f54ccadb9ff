"""Tests of takeovers of write-ahead chains: nothing else waits while a chain is read."""

from __future__ import annotations

import asyncio

from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.test_cut_off import create_topic, wait_all_writable
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.controller.requests import AlterTopicConfigs, CreateTopic, DeleteTopic, Move, Reassign
from tiered.ids import TopicPartition
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.replication.leader_replica import LeaderReplica
from tiered.wal.layout import WAL

ALONE = 6


SLOW = FaultRule(FaultKind.DELAY, ("get", "list"), key=WAL, seconds=20.0)


async def write_alone(three: ThreeBrokers) -> SimBroker:
    """Creates a topic of `flush=bucket` with one replica, and writes to it. Returns a leader that is no controller."""
    await create_topic(three)
    alone = {"flush": "bucket", "min.insync.replicas": "1"}
    await three.controller.node.submit(CreateTopic("alone", ALONE, 1, configs=alone))
    await three.wait_until(lambda: all("alone" in each.node.image.topics for each in three.brokers.values()), 10)
    led = [part.leader for part in three.newest_image().topics["alone"].partitions]
    for number, leader in enumerate(led):
        await three.brokers[leader].node.leader_replica("alone", number).append(batch([b"v"]), timeout_ms=5_000)
    dying = three.others()[0]
    assert led.count(dying.node_id) == ALONE // 3
    return dying


async def kill_with_slow_chain(three: ThreeBrokers, dying: SimBroker) -> list[SimBroker]:
    """Kills a broker whose chain takes 20 s a request to read. Returns the others."""
    rest = [each for each in three.brokers.values() if each is not dying]
    for each in rest:
        each.machine.faults.rules.append(SLOW)
    await dying.kill()
    return rest


def opening(rest: list[SimBroker]) -> set[TopicPartition]:
    """Returns the partitions that are about to be led."""
    return {tp for each in rest for tp in each.node.hosted_replicas.openings}


async def wait_all_led(three: ThreeBrokers, rest: list[SimBroker]) -> None:
    """Lets chains be read quickly again, and waits until all partitions of the topic are led by the rest."""
    for each in rest:
        each.machine.faults.rules.clear()
    tps = {TopicPartition("alone", number) for number in range(ALONE)}
    await three.wait_until(lambda: tps == {tp for each in rest for tp in tps if find_leader(each, tp)}, 90)


def find_leader(broker: SimBroker, tp: TopicPartition) -> LeaderReplica | None:
    return broker.node.hosted_replicas.find_leader(tp)


@run_by(run_scenario, seed=1)
async def test_partitions_with_replicas_are_led_while_a_chain_is_read(three: ThreeBrokers) -> None:
    rest = await kill_with_slow_chain(three, await write_alone(three))
    await wait_all_writable(three, rest[0], 8)
    await wait_all_led(three, rest)


@run_by(run_scenario, seed=1)
async def test_later_images_are_applied_while_a_chain_is_read(three: ThreeBrokers) -> None:
    """A topic that is created meanwhile takes records, and settings that change meanwhile are in force."""
    rest = await kill_with_slow_chain(three, await write_alone(three))
    await three.wait_until(lambda: len(opening(rest)) == ALONE // 3, 8)
    node = rest[0].node
    await node.submit(AlterTopicConfigs("alone", {"max.message.bytes": "1234"}))
    await node.submit(CreateTopic("later", 1, 1))
    leader = three.brokers[node.image.topics["later"].partitions[0].leader].node
    await three.wait_until(lambda: leader.hosted_replicas.find_leader(TopicPartition("later", 0)) is not None, 5)
    await leader.leader_replica("later", 0).append(batch([b"v"]), timeout_ms=5_000)
    began = opening(rest)
    assert len(began) == ALONE // 3
    assert any("read from the bucket" in why for each in rest for why in each.node.health().problems)
    await wait_all_led(three, rest)
    late = [replica for each in rest for tp in began if (replica := find_leader(each, tp)) is not None]
    assert [each.log.config.max_message_bytes for each in late] == [1234] * len(began)
    assert [each.log.end_offset for each in late] == [1] * len(began)


@run_by(run_scenario, seed=1)
async def test_topic_that_is_deleted_while_its_chain_is_read_leaves_nothing(three: ThreeBrokers) -> None:
    rest = await kill_with_slow_chain(three, await write_alone(three))
    await three.wait_until(lambda: len(opening(rest)) == ALONE // 3, 8)
    tps = opening(rest)
    await rest[0].node.submit(DeleteTopic("alone", rest[0].node.image.topics["alone"].topic_id))
    await three.wait_until(lambda: not opening(rest), 60)
    for each in rest:
        each.machine.faults.rules.clear()
    assert not any(each.node.hosted_replicas.list_unserved() or find_leader(each, tp) for each in rest for tp in tps)


@run_by(run_scenario, seed=1)
async def test_replicas_that_come_while_a_log_is_opened_get_in_sync(three: ThreeBrokers) -> None:
    """The chain is read at once, and the manifest 20 s later. The partition gets a second replica meanwhile."""
    dying = await write_alone(three)
    rest = [each for each in three.brokers.values() if each is not dying]
    for each in rest:
        each.machine.faults.rules.append(FaultRule(FaultKind.DELAY, ("get",), key="manifest", seconds=20.0))
    await dying.kill()
    await three.wait_until(lambda: len(opening(rest)) == ALONE // 3, 8)
    await asyncio.sleep(2.0)  # virtual: the chain is read, the logs are being opened
    tp = min(opening(rest))
    topic_id, both = rest[0].node.image.topics["alone"].topic_id, tuple(each.node_id for each in rest)
    assert await rest[0].node.submit(Reassign((Move(topic_id, tp.partition, both),))) == (None,)
    assert tp in opening(rest)

    def isr() -> set[int]:
        return set(rest[0].node.image.topics["alone"].partitions[tp.partition].isr)

    await three.wait_until(lambda: isr() == set(both), 60)

"""Tests of throttled replicas: replicas that move have a rate limit, in-sync ones have none (KIP-73). And a test that a
cordoned broker gets no new replicas."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import run_by
from tests.sim.harness.clock import SimClock
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.test_reassignments import AT, is_leading, partition_image, read_log, write
from tests.sim.scenarios.test_replica_fetch import INCARNATION, ReplicaFetchRig, run_with_rig
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.controller.reassignment_planner import PartitionName, plan_balance, plan_drain
from tiered.controller.requests import (
    AlterBrokerConfigs,
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
    FenceBroker,
    Move,
    Reassign,
    UnfenceBroker,
)
from tiered.errors import Refused
from tiered.metadata.changes import ALL_BROKERS
from tiered.replication.leader_replica import ACKS_ALL
from tiered_api.cli.cluster.moves import alter_reassignments, fetch_placement, fetch_reassignments
from tiered_api.cli.cluster.throttle import RATES, cordon, fetch_cordoned, throttle, unthrottle, unthrottle_all
from tiered_api.kafka.client.client import Address, KafkaClient

LARGE = b"x" * 8_000


def make_client(three: ThreeBrokers) -> KafkaClient:
    return KafkaClient(
        three.network.host("far"), SimClock(three.loop), [Address(f"b{node}", 9092) for node in (1, 2, 3)]
    )


async def throttle_leader(it: ReplicaFetchRig, rate: int, words: str) -> None:
    node = it.rig.broker
    await node.submit(AlterBrokerConfigs(1, {"leader.replication.throttled.rate": str(rate)}))
    await node.submit(AlterTopicConfigs("t", {"leader.replication.throttled.replicas": words}))


async def remove_from_isr(it: ReplicaFetchRig) -> None:
    """Fences and unfences broker 2, so that it is in no ISR."""
    await it.rig.broker.submit(FenceBroker(2, INCARNATION))
    await it.rig.broker.submit(UnfenceBroker(2, INCARNATION))
    assert all(leader.state.isr == {1} for leader in it.leaders)


@pytest.mark.parametrize("words", ["*", "0:1,1:7"])
@run_by(run_with_rig)
async def test_leader_throttles_a_follower_out_of_sync(it: ReplicaFetchRig, *, words: str) -> None:
    await remove_from_isr(it)
    (leader,) = it.leaders
    for _ in range(40):
        leader.append_now(batch([LARGE]), 1)
    size, end = leader.log.segments.size_bytes, leader.log.end_offset
    await throttle_leader(it, size // 10, words)
    began, offset, answers = it.rig.loop.time(), 0, 0
    while offset < end - 4:  # beyond that it would be in sync
        (part,) = await it.fetch(offset, wait_ms=500, epoch=leader.leader_epoch)
        assert (part.code, part.high_watermark) == (0, end)
        offset += len(part.records) // (size // 40)
        answers += 1
    assert 7 < it.rig.loop.time() - began < 11
    assert answers < 80, "it waits at the leader"


@run_by(run_with_rig, partitions=2)
async def test_leader_does_not_throttle_in_sync_or_unnamed_followers(it: ReplicaFetchRig) -> None:
    held, _ = it.leaders
    for leader in it.leaders:
        leader.append_now(batch([LARGE, LARGE]), 1)
    await throttle_leader(it, 1, "0:1")
    began = it.rig.loop.time()
    assert all(len(part.records) > 16_000 for part in await it.fetch(0, 0, wait_ms=10_000))
    await remove_from_isr(it)
    epoch = held.leader_epoch
    ask = it.ask(0, 0, wait_ms=10_000, epoch=epoch)
    parts = {part.partition: part for part in await it.peers.fetch("one:9092", ask, 20)}
    assert len(parts[0].records) > 16_000, "what was saved up"
    parts = {part.partition: part for part in await it.peers.fetch("one:9092", ask, 20)}
    assert parts[0].records == b"" and len(parts[1].records) > 16_000, "one that is held keeps no other"
    assert it.rig.loop.time() - began < 1


@run_by(run_scenario)
async def test_reassignment_runs_at_its_rate_until_the_rate_is_removed(three: ThreeBrokers) -> None:
    await three.controller.node.submit(CreateTopic("t", assignments=[[1, 2]]))
    (leader,) = (each for each in three.brokers.values() if is_leading(each))
    for _ in range(60):
        await leader.node.leader_replica("t", 0).append(batch([LARGE]), acks=ACKS_ALL)
    size = leader.node.leader_replica("t", 0).log.segments.size_bytes
    client = make_client(three)
    moves = {PartitionName("t", 0): ((1, 2), (1, 3))}
    await throttle(client, moves, size // 20)
    image = three.controller.node.image
    assert image.topics["t"].configs == {
        "leader.replication.throttled.replicas": "0:1,0:2",
        "follower.replication.throttled.replicas": "0:3",
    }
    assert set(image.broker_configs) == {1, 2, 3} and set(image.broker_configs[3]) == set(RATES)
    assert await alter_reassignments(client, {PartitionName("t", 0): (1, 3)}) == {PartitionName("t", 0): "OK"}
    began = three.now
    acked = await write(three, 10)
    assert three.now - began < 2, "who is in sync is not held"
    await three.wait_until(lambda: not partition_image(three).is_reassigning, 60)
    assert 12 < three.now - began < 40
    assert not await fetch_reassignments(client)
    await unthrottle(client, moves)
    image = three.controller.node.image
    assert set(image.topics["t"].configs.values()) <= {""}
    assert not any(image.broker_configs.values())
    assert partition_image(three).replicas == (1, 3)
    assert all(value in read_log(leader) for value in acked)
    assert await unthrottle_all(client) == (3, 1)
    assert three.controller.node.image.topics["t"].configs == {}
    await client.close()


def has_replica(broker: SimBroker) -> bool:
    return any(each.tp == AT for each in broker.node.hosted_replicas.list_replicas())


@run_by(run_scenario)
async def test_cordoned_broker_gets_no_new_replicas(three: ThreeBrokers) -> None:
    node, client = three.controller.node, make_client(three)
    await node.submit(CreateTopic("t", 6, 2))
    assert await fetch_cordoned(client, [1, 2, 3]) == set()
    await cordon(client, 2)
    assert await fetch_cordoned(client, [1, 2, 3]) == {2}
    before = await fetch_placement(client)
    assert set(before.racks) == {1, 3}
    assert (await alter_reassignments(client, plan_drain(before.replicas, before.racks, 2))).keys()
    made = await node.submit(CreateTopic("new", 9, 2))
    assert all(set(each.replicas) == {1, 3} for each in made.partitions)
    async with asyncio.timeout(60):
        while await fetch_reassignments(client):
            await asyncio.sleep(0.1)
    seen = await fetch_placement(client)
    assert not any(2 in replicas for replicas in seen.replicas.values())
    assert not any(2 in to for to in plan_balance(seen.replicas, seen.racks).values())
    with pytest.raises(Refused, match=r"1\.\.2, the number of live brokers that take new replicas"):
        await node.submit(CreateTopic("three", 1, 3))
    for named in (CreateTopic("named", assignments=[[1, 2]]), CreatePartitions("new", 10, assignments=[[2, 1]])):
        with pytest.raises(Refused, match=r"cordoned brokers take no new replicas: \[2\]"):
            await node.submit(named)
    topic_id = node.image.topics["new"].topic_id
    (answer,) = await node.submit(Reassign((Move(topic_id, 0, (1, 2)),)))
    assert answer is not None and "broker 2, which is cordoned" in answer.why
    with pytest.raises(Refused, match="set for one broker"):
        await node.submit(AlterBrokerConfigs(ALL_BROKERS, {"cordoned.log.dirs": "*"}))
    await cordon(client, 2, lift=True)
    await node.submit(CreateTopic("three", 1, 3))
    await client.close()

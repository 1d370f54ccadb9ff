"""Tests of partitions that move between three brokers, over the wire."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.scenario import GIVEN, run_by
from tests.seeds import first_seeds
from tests.sim.harness.clock import SimClock
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.controller.reassignment_planner import PartitionName, plan_balance, plan_drain
from tiered.controller.requests import CreateTopic, Move, Reassign
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.parts.topics import PartitionImage
from tiered.replication.leader_replica import ACKS_ALL
from tiered_api.cli.cluster.moves import ReplicaPlacement, alter_reassignments, fetch_placement, fetch_reassignments
from tiered_api.kafka.client.client import Address, KafkaClient

AT = TopicPartition("t", 0)


def partition_image(three: ThreeBrokers) -> PartitionImage:
    return three.controller.node.image.topics["t"].partitions[0]


async def write(three: ThreeBrokers, count: int) -> list[bytes]:
    """Writes to the leader of the partition until the record is acknowledged."""
    acked = []
    for _ in range(count):
        value = b"%d" % three.loop.now_ns
        while True:
            leader = next((each for each in three.brokers.values() if is_leading(each)), None)
            with suppress(Refused):
                if leader is not None:
                    await leader.node.leader_replica("t", 0).append(batch([value]), acks=ACKS_ALL, timeout_ms=2_000)
                    acked.append(value)
                    break
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.02)
    return acked


def is_leading(broker: SimBroker) -> bool:
    return broker.node.hosted_replicas.find_leader(AT) is not None


def read_log(broker: SimBroker) -> bytes:
    """Returns the batches of its log."""
    log, found, offset = broker.node.leader_replica("t", 0).log, b"", 0
    while offset < log.end_offset:
        some = log.read(offset, 1, end_offset=log.end_offset)
        assert some is not None
        found += some.file.pread(some.start, some.length)
        offset += 1
    return found


async def move(three: ThreeBrokers, *target: int) -> Refused | None:
    topic = three.controller.node.image.topics["t"]
    wanted = (Move(topic.topic_id, 0, target or None),)
    (answer,) = await three.others()[0].node.submit(Reassign(wanted))
    assert answer is None or isinstance(answer, Refused)
    return answer


@pytest.mark.parametrize("seed", first_seeds(1, of=4))
@run_by(run_scenario, seed=GIVEN)
async def test_partition_moves_to_other_brokers_during_writes(three: ThreeBrokers) -> None:
    await three.controller.node.submit(CreateTopic("t", assignments=[[1, 2]]))
    writing = asyncio.create_task(write(three, 100))
    await asyncio.sleep(0.5)
    assert await move(three, 3) is None
    await three.wait_until(lambda: not partition_image(three).is_reassigning, 20)
    acked = await writing
    done = partition_image(three)
    assert (done.replicas, done.leader, done.isr) == ((3,), 3, (3,))
    assert all(value in read_log(three.brokers[3]) for value in acked)
    await three.wait_until(lambda: not has_replica(three.brokers[1]) and not has_replica(three.brokers[2]), 5)
    assert await move(three, 1, 2, 3) is None
    await three.wait_until(lambda: partition_image(three).leader == 1 and len(partition_image(three).isr) == 3, 30)
    acked += await write(three, 10)
    assert all(value in read_log(three.brokers[1]) for value in acked)


@run_by(run_scenario)
async def test_manifest_of_a_moved_partition_is_taken_over_after_a_clean_stop(three: ThreeBrokers) -> None:
    """This broker left its earlier leadership cleanly. The other broker, which led until now, may still write the
    manifest."""
    here = next(each for each in three.others() if each.node_id != 1)
    other = next(each for each in three.others() if each is not here)
    await three.controller.node.submit(CreateTopic("own", assignments=[[here.node_id]]))
    await three.controller.node.submit(CreateTopic("t", assignments=[[other.node_id]]))
    await three.wait_until(lambda: is_leading(other), 10)
    theirs = other.node.leader_replica("t", 0)
    await theirs.append(batch([b"one"]))
    theirs.roll()
    await three.wait_until(lambda: theirs.cold_end_offset == 1, 60)
    await here.stop()
    await here.start()
    await three.wait_until(three.is_everyone_known, 10)
    assert not here.node.leader_replica("own", 0).takeover_pending, "nobody else has ever led it"
    assert await move(three, here.node_id) is None
    await three.wait_until(lambda: partition_image(three).leader == here.node_id and is_leading(here), 30)
    moved = here.node.leader_replica("t", 0)
    assert moved.manifest is not None
    assert moved.takeover_pending or moved.manifest.leader_epoch == moved.leader_epoch, (
        "the change of another may still land"
    )


def has_replica(broker: SimBroker) -> bool:
    return any(each.tp == AT for each in broker.node.hosted_replicas.list_replicas())


@run_by(run_scenario)
async def test_reassignment_to_a_dead_broker_waits_and_can_be_cancelled(three: ThreeBrokers) -> None:
    stays, goes = three.controller.node_id, three.others()[0].node_id
    await three.controller.node.submit(CreateTopic("t", assignments=[[stays]]))
    acked = await write(three, 5)
    await three.brokers[goes].kill()
    image = three.controller.node.image
    asked = Reassign((Move(image.topics["t"].topic_id, 0, (goes,)),))
    await three.wait_until(lambda: not three.controller.node.image.brokers[goes].live, 3)
    (refused,) = await three.controller.node.submit(asked)
    assert isinstance(refused, Refused) and refused.code is Code.INVALID_REPLICA_ASSIGNMENT
    await three.brokers[goes].start()
    await three.wait_until(three.is_everyone_known, 5)
    three.network.cut(f"b{goes}", f"b{stays}")
    assert (await three.controller.node.submit(asked)) == (None,)
    await asyncio.sleep(10)
    assert partition_image(three).is_reassigning and partition_image(three).leader == stays
    acked += await write(three, 5)
    (off,) = await three.controller.node.submit(Reassign((Move(image.topics["t"].topic_id, 0, None),)))
    assert off is None
    three.network.heal()
    await three.wait_until(lambda: partition_image(three).isr == (stays,) and is_leading(three.brokers[stays]), 5)
    await three.wait_until(three.is_everyone_known, 20)
    await three.wait_until(lambda: not has_replica(three.brokers[goes]), 5)
    acked += await write(three, 5)
    assert all(value in read_log(three.brokers[stays]) for value in acked)


@pytest.mark.parametrize("seed", range(4))
@run_by(run_scenario, seed=GIVEN)
async def test_broker_drops_a_partition_that_left_it_while_it_was_down(three: ThreeBrokers) -> None:
    gone = three.others()[0].node_id
    one, two = sorted({1, 2, 3} - {gone})
    await three.controller.node.submit(CreateTopic("t", assignments=[[one, gone]]))
    acked = await write(three, 10)
    await three.brokers[gone].kill()
    await three.wait_until(lambda: partition_image(three).isr == (one,), 5)
    image = three.controller.node.image
    asked = Reassign((Move(image.topics["t"].topic_id, 0, (two, one)),))
    assert (await three.controller.node.submit(asked)) == (None,)
    await three.wait_until(
        lambda: not partition_image(three).is_reassigning and partition_image(three).leader == two, 20
    )
    acked += await write(three, 10)
    await three.brokers[gone].start()
    await three.wait_until(three.is_everyone_known, 5)
    assert not has_replica(three.brokers[gone])
    assert await move(three, gone) is None
    await three.wait_until(lambda: partition_image(three).replicas == (gone,), 20)
    acked += await write(three, 10)
    await three.wait_until(lambda: is_leading(three.brokers[gone]), 5)
    assert all(value in read_log(three.brokers[gone]) for value in acked)


@run_by(run_scenario)
async def test_broker_is_emptied_and_refilled(three: ThreeBrokers) -> None:
    """The plans and requests are those of the commands, over the wire."""
    made = await three.controller.node.submit(CreateTopic("t", 6, 2))
    acked = await write(three, 10)
    gone = three.others()[0].node_id
    client = KafkaClient(three.network.host("far"), SimClock(three.loop), [Address("b1", 9092)])
    before = await fetch_placement(client)
    assert before.replicas == {PartitionName("t", p): each.replicas for p, each in enumerate(made.partitions)}
    await reassign_and_wait(client, plan_drain(before.replicas, before.racks, gone, before.leaderless))
    empty = await fetch_placement(client)
    assert count_replicas(empty, gone) == 0 and count_replicas(before, gone) == 4
    await three.wait_until(lambda: not three.brokers[gone].node.hosted_replicas.list_replicas(), 5)
    acked += await write(three, 10)
    await reassign_and_wait(client, plan_balance(empty.replicas, empty.racks))
    assert [count_replicas(await fetch_placement(client), node) for node in (1, 2, 3)] == [4, 4, 4]
    acked += await write(three, 10)
    (leader,) = (each for each in three.brokers.values() if is_leading(each))
    assert all(value in read_log(leader) for value in acked)
    await client.close()


async def reassign_and_wait(client: KafkaClient, moves: dict[PartitionName, tuple[int, ...]]) -> None:
    assert set((await alter_reassignments(client, moves)).values()) == {"OK"}
    async with asyncio.timeout(30):
        while await fetch_reassignments(client):
            await asyncio.sleep(0.1)


def count_replicas(standing: ReplicaPlacement, node: int) -> int:
    return sum(node in replicas for replicas in standing.replicas.values())

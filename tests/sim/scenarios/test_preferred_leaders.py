"""Tests of leaderships that return to the first replica, in scenarios of three brokers."""

from __future__ import annotations

import asyncio

from tests.scenario import run_by
from tests.sim.scenarios.three import ThreeBrokers, run_scenario
from tests.unit.hot.fixtures import batch
from tiered.controller.balancer import SETTLE_SECONDS
from tiered.controller.requests import CreateTopic
from tiered.metadata.parts.topics import PartitionImage
from tiered.replication.leader_replica import ACKS_ALL


def partitions(three: ThreeBrokers) -> tuple[PartitionImage, ...]:
    return three.controller.node.image.topics["t"].partitions


def leaders(three: ThreeBrokers) -> list[int]:
    return [each.leader for each in partitions(three)]


async def create_topic(three: ThreeBrokers, first: int, count: int = 4) -> None:
    second, third = sorted({1, 2, 3} - {first})
    await three.controller.node.submit(CreateTopic("t", assignments=[[first, second, third]] * count))
    assert leaders(three) == [first] * count


@run_by(run_scenario)
async def test_returned_preferred_leader_leads_soon_after_it_caught_up(three: ThreeBrokers) -> None:
    first = three.others()[0]
    await create_topic(three, first.node_id)
    await first.kill()
    await three.wait_until(lambda: first.node_id not in leaders(three), 5)
    slot = three.controller.node.image.slot
    await first.start()
    await three.wait_until(lambda: all(first.node_id in each.isr for each in partitions(three)), 20)
    assert first.node_id not in leaders(three)
    took = await three.wait_until(lambda: leaders(three) == [first.node_id] * 4, 3 * SETTLE_SECONDS)
    assert took > SETTLE_SECONDS / 2
    assert three.controller.node.image.slot - slot < 12, "leaderships come back together"
    await three.wait_until(lambda: all(first.node.leader_replica("t", p).leader_epoch == 2 for p in range(4)), 2)


@run_by(run_scenario)
async def test_stopping_broker_gets_no_leadership_back(three: ThreeBrokers) -> None:
    first = three.others()[0]
    await create_topic(three, first.node_id)
    await first.node.hand_over()
    assert first.node_id not in leaders(three)
    slot = three.controller.node.image.slot
    await asyncio.sleep(5 * SETTLE_SECONDS)
    assert first.node_id not in leaders(three) and three.controller.node.image.slot == slot
    await first.stop()
    await first.start()
    await three.wait_until(lambda: leaders(three) == [first.node_id] * 4, 20)


@run_by(run_scenario)
async def test_operator_may_turn_preferred_leaders_off(three: ThreeBrokers) -> None:
    first = three.others()[0]
    for each in three.brokers.values():
        each.overrides = {"auto_leader_rebalance_enable": False}
        await each.stop()
        await each.start()
    await three.wait_until(three.is_everyone_known, 10)
    await create_topic(three, first.node_id)
    await first.kill()
    await three.wait_until(lambda: first.node_id not in leaders(three), 5)
    await first.start()
    await three.wait_until(lambda: all(first.node_id in each.isr for each in partitions(three)), 20)
    await asyncio.sleep(5 * SETTLE_SECONDS)
    assert first.node_id not in leaders(three)


@run_by(run_scenario)
async def test_stopping_follower_leaves_the_isr_if_enough_others_are_in_it(three: ThreeBrokers) -> None:
    first, leader = three.others()
    await create_topic(three, leader.node_id)
    await first.node.hand_over()
    await asyncio.sleep(5)  # it goes on copying, and has all that there is
    assert all(first.node_id not in each.isr for each in partitions(three))
    first.machine.kill()
    async with asyncio.timeout(0.2):
        await leader.node.leader_replica("t", 0).append(batch(0), acks=ACKS_ALL)
    await first.clear()
    await first.start()
    await three.wait_until(lambda: all(first.node_id in each.isr for each in partitions(three)), 20)


@run_by(run_scenario)
async def test_stopping_follower_stays_in_sync_if_others_are_too_few(three: ThreeBrokers) -> None:
    first, leader = three.others()
    both, two = [leader.node_id, first.node_id], {"min.insync.replicas": "2"}
    await three.controller.node.submit(CreateTopic("t", assignments=[both, both[::-1]], configs=two))
    await first.node.hand_over()
    assert leaders(three) == [leader.node_id] * 2
    for p in range(2):
        async with asyncio.timeout(1):
            await leader.node.leader_replica("t", p).append(batch(0), acks=ACKS_ALL)
    assert all(set(each.isr) == {*both} for each in partitions(three))

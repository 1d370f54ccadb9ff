"""Disks whose fsyncs do not end: records of `flush=ack` do not wait for one of them if other replicas can have them."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import run_by
from tests.sim.scenarios.test_full_disks import write
from tests.sim.scenarios.test_hanging_brokers import GOAL_SECONDS
from tests.sim.scenarios.test_preferred_leaders import create_topic, leaders, partitions
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tests.unit.hot.fixtures import batch
from tiered.controller.balancer import SETTLE_SECONDS
from tiered.controller.requests import AlterTopicConfigs
from tiered.replication.disk_state import RECOVERY_SECONDS
from tiered.replication.leader_replica import ACKS_ALL


async def start(three: ThreeBrokers, flush: str = "ack") -> tuple[SimBroker, SimBroker]:
    """Creates a topic, and writes a record. Returns its leader, and a follower that is no controller."""
    leader, follower = three.others()
    await create_topic(three, leader.node_id, 1)
    await leader.node.submit(AlterTopicConfigs("t", {"flush": flush, "min.insync.replicas": "2"}))
    await write(three, 0)
    return leader, follower


@pytest.mark.parametrize("role", ["leader", "follower"])
@run_by(run_scenario, seed=1)
async def test_all_is_writable_within_the_goal_after_a_disk_stalls(three: ThreeBrokers, *, role: str) -> None:
    leader, follower = await start(three)
    stalled = leader if role == "leader" else follower
    stalled.machine.disk.sync_seconds = lambda: 1000.0
    began = three.now
    await write(three, 1, seconds=20)
    assert three.now - began <= GOAL_SECONDS
    assert leaders(three) != [stalled.node_id] and stalled.node_id not in partitions(three)[0].isr
    assert await write(three, 2, seconds=0.5) >= 2, "the next records do not wait"
    words = f"broker {stalled.node_id}: disk stalled since"
    await three.wait_until(lambda: any(words in each for each in three.controller.node.health().problems), 5)
    assert any(each.startswith("disk stalled since") for each in stalled.node.health().own_problems)


@run_by(run_scenario, seed=1)
async def test_stalled_leader_leads_again_once_its_disk_goes_on(three: ThreeBrokers) -> None:
    leader, _ = await start(three)
    leader.machine.disk.sync_seconds = lambda: 5.0
    await write(three, 1, seconds=20)
    assert leaders(three) != [leader.node_id]
    leader.machine.disk.sync_seconds = lambda: 0.0
    await three.wait_until(lambda: leaders(three) == [leader.node_id], 2 * RECOVERY_SECONDS + 10 * SETTLE_SECONDS)
    assert leader.node.disk.stalled is None
    await write(three, 2)


@pytest.mark.parametrize(("flush", "seconds"), [("ack", 2.0), ("none", 60.0)])
@run_by(run_scenario, seed=1)
async def test_slow_disk_keeps_its_leaderships(three: ThreeBrokers, *, flush: str, seconds: float) -> None:
    """Each file takes two seconds, and a flush syncs several. Records that wait for no fsync wait for no slower one."""
    leader, _ = await start(three, flush)
    leader.machine.disk.sync_seconds = lambda: seconds
    replica = leader.node.leader_replica("t", 0)
    writing: list[asyncio.Future[object]] = []
    for number in range(1, 16):
        writing.append(asyncio.ensure_future(replica.append(batch(number), acks=ACKS_ALL, timeout_ms=60_000)))
        await asyncio.sleep(0.5)
    await asyncio.gather(*writing)
    assert leaders(three) == [leader.node_id] and leader.node.disk.stalled is None

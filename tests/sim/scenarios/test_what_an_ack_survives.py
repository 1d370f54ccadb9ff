"""Tests of the table in docs/concepts/guarantees.md, a scenario for each row: acknowledged records survive the faults
that the row names.

Two brokers that lose power or disk at once are one more than `min.insync.replicas - 1` of 2. If three are in sync, the
third one has all acknowledged records too. Only with two in sync is the promise at its limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.scenario import run_by
from tests.sim.harness.machine import SimMachine
from tests.sim.rig.broker_rig import batch, numbers, read_values
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.broker.partition_report import explain
from tiered.controller.requests import CreateTopic
from tiered.metadata.changes import NO_LEADER
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica

COUNT = 20
SECONDS = 30.0
Crash = Callable[[SimMachine], None]


async def wait_leader(three: ThreeBrokers) -> LeaderReplica:
    """Returns partition 0 of `t` at its leader, once it has one."""
    found: list[LeaderReplica] = []

    def is_led() -> bool:
        for each in three.brokers.values():
            held = {(replica.topic, replica.partition): replica for replica in each.node.leader_replicas()}
            replica = held.get(("t", 0))
            if (
                replica is not None
                and not replica.is_stopped
                and each.node.image.topics["t"].partitions[0].leader == (each.node_id)
            ):
                found.append(replica)
        return bool(found)

    await three.wait_until(is_led, SECONDS)
    return found[-1]


async def crash(brokers: Sequence[SimBroker], how: Crash) -> None:
    """Crashes all of these brokers before any of them has ended."""
    for each in brokers:
        how(each.machine)
    for each in brokers:
        await each.clear()


async def write_records(
    three: ThreeBrokers, replicas: int, acks: int = ACKS_ALL, in_sync: int = 3, **configs: str
) -> None:
    """Writes `COUNT` acknowledged records to the topic `t`, none of them in a closed segment. With two replicas in sync
    the third broker stopped before, and has no record."""
    dotted = {name.replace("_", "."): value for name, value in configs.items()}
    await three.controller.node.submit(CreateTopic("t", 1, replicas, configs={"retention.ms": "-1", **dotted}))
    leader = await wait_leader(three)
    if in_sync == 2:
        hit = next(each for each in three.others() if each is not leader_of(three))
        await hit.kill()
        await three.wait_until(lambda: hit not in isr_brokers(three), SECONDS)
    for number in range(COUNT):
        await leader.append(batch([b"%06d" % number]), acks=acks)


def run_with_records(
    replicas: int,
    scenario: Callable[[ThreeBrokers], Awaitable[None]],
    acks: int = ACKS_ALL,
    in_sync: int = 3,
    **configs: str,
) -> None:
    """Writes acknowledged records (`written`), runs the faults of `scenario`, and checks that all records are there."""

    async def run_all(three: ThreeBrokers) -> None:
        await write_records(three, replicas, acks, in_sync, **configs)
        await scenario(three)
        again = await wait_leader(three)
        await three.wait_until(lambda: again.high_watermark >= COUNT, SECONDS)
        assert await read_values(again, 0) == numbers(0, COUNT)
        assert explain(again)["possible_loss"] is None

    run_scenario(run_all)


def leader_of(three: ThreeBrokers) -> SimBroker:
    return three.brokers[three.controller.node.image.topics["t"].partitions[0].leader]


def isr_brokers(three: ThreeBrokers) -> list[SimBroker]:
    """Returns the brokers of the ISR."""
    return [three.brokers[node] for node in three.controller.node.image.topics["t"].partitions[0].isr]


def test_acks_1_of_a_sole_replica_survives_a_killed_process() -> None:
    async def scenario(three: ThreeBrokers) -> None:
        hit = leader_of(three)
        await crash([hit], SimMachine.kill)
        await hit.start()

    run_with_records(1, scenario, acks=1)


@pytest.mark.parametrize("how", [SimMachine.power_cut, SimMachine.lose_disk])
@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "a follower"])
def test_acks_all_survives_faults_of_min_insync_replicas_minus_one(how: Crash, leads: bool) -> None:
    async def scenario(three: ThreeBrokers) -> None:
        hit = leader_of(three)
        if not leads:
            hit = next(each for each in three.brokers.values() if each is not hit)
        await crash([hit], how)
        await hit.start()
        await three.wait_until(three.is_everyone_known, SECONDS)

    run_with_records(3, scenario, min_insync_replicas="2")


@pytest.mark.parametrize("how", [SimMachine.power_cut, SimMachine.lose_disk])
@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "a follower"])
def test_acks_all_with_a_minimal_isr_survives_the_fault_of_one(how: Crash, leads: bool) -> None:
    """One of the three brokers still has the records, and the one that comes back first has none."""

    async def scenario(three: ThreeBrokers) -> None:
        both = isr_brokers(three)
        (out,) = [each for each in three.brokers.values() if each not in both]
        hit = next(each for each in both if (each is leader_of(three)) is leads)
        await crash([hit], how)
        await out.start()
        await wait_leader(three)
        await hit.start()
        await three.wait_until(three.is_everyone_known, SECONDS)

    run_with_records(3, scenario, in_sync=2, min_insync_replicas="2")


@pytest.mark.parametrize("how", [SimMachine.power_cut, SimMachine.lose_disk])
@run_by(run_scenario)
async def test_acks_all_with_a_minimal_isr_reports_the_loss_after_two_faults(
    three: ThreeBrokers, *, how: Crash
) -> None:
    """One broker more fails than the promise covers. The scenarios above go to the limit of the promise."""
    await write_records(three, 3, in_sync=2, min_insync_replicas="2")
    both = isr_brokers(three)
    (out,) = [each for each in three.brokers.values() if each not in both]
    await crash(both, how)
    await out.start()
    await three.wait_until(lambda: out.node.cluster.active_controller is not None, SECONDS)
    await asyncio.sleep(SECONDS)
    assert out.node.image.topics["t"].partitions[0].leader == NO_LEADER, "it waits for who had the records"
    await asyncio.gather(*(each.start() for each in both))
    again = await wait_leader(three)
    await three.wait_until(lambda: explain(again)["possible_loss"] is not None, SECONDS)
    assert explain(again)["possible_loss"]["from_offset"] <= again.high_watermark < COUNT
    assert await read_values(again, 0) == numbers(0, again.high_watermark)


def test_acks_all_survives_a_kill_of_all_processes() -> None:
    async def scenario(three: ThreeBrokers) -> None:
        await crash(list(three.brokers.values()), SimMachine.kill)
        await asyncio.gather(*(each.start() for each in three.brokers.values()))

    run_with_records(3, scenario, min_insync_replicas="2")


def test_acks_all_with_flush_ack_survives_a_power_cut_of_all() -> None:
    async def scenario(three: ThreeBrokers) -> None:
        await crash(list(three.brokers.values()), SimMachine.power_cut)
        await asyncio.gather(*(each.start() for each in three.brokers.values()))

    run_with_records(3, scenario, min_insync_replicas="2", flush="ack")


@run_by(run_scenario)
async def test_records_in_the_bucket_survive_all_brokers_and_disks(three: ThreeBrokers) -> None:
    configs = {"internal.segment.bytes": "4096", "retention.ms": "-1"}
    await three.controller.node.submit(CreateTopic("t", 1, 3, configs=configs))
    leader = await wait_leader(three)
    for number in range(COUNT):
        await leader.append(batch([b"%06d" % number + b"x" * 1000]))
    await three.wait_until(lambda: leader.cold_end_offset > 0, SECONDS)
    cold_end = leader.cold_end_offset
    await crash(list(three.brokers.values()), SimMachine.lose_disk)
    await asyncio.gather(*(each.start() for each in three.brokers.values()))
    again = await wait_leader(three)
    assert again.high_watermark >= cold_end
    assert (await read_values(again, 0))[:cold_end] == numbers(0, cold_end)

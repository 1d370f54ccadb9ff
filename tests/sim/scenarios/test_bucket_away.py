"""Tests of an unreachable bucket: what continues, what waits, and which brokers start meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import GIVEN, run_by
from tests.seeds import first_seeds
from tests.sim.rig.broker_rig import SimBrokerRig, batch, run
from tests.sim.scenarios.three import SESSION, SimBroker, ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic
from tiered.errors import Refused, Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.object_store.metered import MeteredStore
from tiered.ports import GetResult, NotFound
from tiered.replication.leader_replica import ACKS_ALL

SOON_SECONDS = 40.0
"""Seconds until a broker serves again: the longest pause of its start, a session, and its reads of the bucket."""


def set_bucket_outage(three: ThreeBrokers, *, is_unreachable: bool) -> None:
    for each in three.brokers.values():
        each.machine.faults.outage = is_unreachable


def problems(broker: SimBroker) -> str:
    return " ".join(broker.node.health().problems)


async def create_topic(three: ThreeBrokers, name: str, *replicas: int) -> None:
    """Creates a topic of one partition, led by the first of `replicas`."""
    wanted = CreateTopic(name, assignments=[list(replicas)], configs={"min.insync.replicas": "2"})
    await three.controller.node.submit(wanted)
    await three.wait_until(lambda: all(name in each.node.image.topics for each in three.brokers.values()), 10)


@pytest.mark.parametrize("seed", first_seeds(1, of=4))
@run_by(run_scenario, seed=GIVEN)
async def test_restarted_broker_waits_for_the_bucket_and_then_serves(
    three: ThreeBrokers, *, caplog: pytest.LogCaptureFixture
) -> None:
    late = three.others()[0]
    others = [each.node_id for each in three.brokers.values() if each is not late]
    await create_topic(three, "t", late.node_id, *others)
    await late.node.leader_replica("t", 0).append(batch([b"before"]))
    await late.kill()
    await three.wait_until(lambda: three.brokers[others[0]].node.image.topics["t"].partitions[0].leader in others, 10)
    set_bucket_outage(three, is_unreachable=True)
    caplog.clear()
    starting = asyncio.create_task(late.start())
    await asyncio.sleep(60)
    assert not starting.done()
    health = late.node.health()
    assert not health.ok and "waits for the bucket" in problems(late), health.problems
    assert health.details["store_unreachable_since_ms"] is not None
    said = [each for each in caplog.messages if "start waits for the bucket" in each]
    assert len(said) == 1, "it is said once"
    set_bucket_outage(three, is_unreachable=False)
    await three.wait_until(lambda: starting.done(), SOON_SECONDS)
    await starting
    await three.wait_until(three.is_everyone_known, SOON_SECONDS)
    await three.wait_until(lambda: len(late.node.image.topics["t"].partitions[0].isr) == 3, SOON_SECONDS)
    await three.wait_until(lambda: late.node.image.topics["t"].partitions[0].leader == late.node_id, SOON_SECONDS)
    await late.node.leader_replica("t", 0).append(batch([b"after"]))
    assert late.node.health().ok and "waits" not in problems(late)


@pytest.mark.parametrize("seed", range(3))
@run_by(run_scenario, seed=GIVEN)
async def test_cluster_that_restarts_as_a_whole_waits_for_the_bucket(three: ThreeBrokers) -> None:
    for each in three.brokers.values():
        await each.kill()
    set_bucket_outage(three, is_unreachable=True)
    starting = [asyncio.create_task(each.start()) for each in three.brokers.values()]
    await asyncio.sleep(300)
    assert not any(each.done() for each in starting)
    set_bucket_outage(three, is_unreachable=False)
    await asyncio.wait_for(asyncio.gather(*starting), SOON_SECONDS)
    await three.wait_until(three.is_everyone_known, SOON_SECONDS)


@pytest.mark.parametrize("seconds", [0.01, 0.2, 0.5, 1.0, 2.6, 3.0])
@run_by(run)
async def test_start_outlasts_an_outage_that_begins_during_it(rig: SimBrokerRig, *, seconds: float) -> None:
    rig.machine.faults.first_byte_seconds = 0.1
    starting = asyncio.create_task(rig.start())
    await asyncio.sleep(seconds)
    assert not starting.done()
    rig.machine.faults.outage = True
    await asyncio.sleep(30)
    assert "waits for the bucket" in " ".join(rig.broker.health().problems)
    await asyncio.sleep(270)
    assert not starting.done()
    rig.machine.faults.outage = False
    await asyncio.wait_for(starting, SOON_SECONDS)
    assert rig.broker.health().ok


@run_by(run)
async def test_waiting_start_ends_at_once_on_a_stop(rig: SimBrokerRig, *, caplog: pytest.LogCaptureFixture) -> None:
    rig.machine.faults.outage = True
    starting = asyncio.create_task(rig.start())
    await asyncio.sleep(1000)
    before = rig.loop.now_ns
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await rig.stop()
    assert rig.loop.now_ns - before < 1_000_000_000
    said = [each for each in caplog.messages if "waits for the bucket" in each]
    assert 2 <= len(said) <= 6, "rarely"


@run_by(run)
async def test_refusal_of_the_store_ends_the_start_with_its_reason(
    rig: SimBrokerRig, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deny(store: MeteredStore, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        raise Unavailable("AccessDenied", refused=True)

    monkeypatch.setattr(MeteredStore, "get", deny)
    with pytest.raises(Unavailable, match="AccessDenied"):
        await asyncio.wait_for(rig.start(), 1)


async def is_acked(leader: SimBroker, topic: str, acks: int) -> bool:
    """True if a record is acknowledged within two seconds."""
    try:
        await leader.node.leader_replica(topic, 0).append(batch([b"v"]), acks=acks, timeout_ms=2_000)
    except Refused:
        return False
    return True


@pytest.mark.parametrize("seed", first_seeds(1, of=3))
def test_acks_all_waits_only_if_a_member_of_the_last_isr_is_gone(seed: int) -> None:
    async def scenario(three: ThreeBrokers) -> None:
        leader = three.controller
        stays, dies = three.others()
        await create_topic(three, "all", leader.node_id, stays.node_id, dies.node_id)
        await create_topic(three, "two", leader.node_id, stays.node_id)
        both = ("all", "two")
        await three.wait_until(
            lambda: all(len(leader.node.image.topics[t].partitions[0].isr) == n for t, n in sets), 20
        )
        set_bucket_outage(three, is_unreachable=True)
        for _ in range(10):
            assert [await is_acked(leader, topic, ACKS_ALL) for topic in both] == [True, True]
            await asyncio.sleep(3)
        await dies.kill()
        before = leader.node.leader_replica("all", 0).high_watermark
        for _ in range(10):
            assert not await is_acked(leader, "all", ACKS_ALL), "a member of its last set does not have it"
            assert await is_acked(leader, "two", ACKS_ALL), "nobody of its set is gone"
            assert [await is_acked(leader, topic, 1) for topic in both] == [True, True]
        replica = leader.node.leader_replica("all", 0)
        assert replica.high_watermark == before
        assert (await replica.reads.read(0, 1 << 20)).data, "what was committed before is read on"
        assert len(leader.node.image.topics["all"].partitions[0].isr) == 3, "no metadata changes"
        assert "store unreachable" in problems(leader)
        set_bucket_outage(three, is_unreachable=False)
        await three.wait_until(lambda: len(leader.node.image.topics["all"].partitions[0].isr) == 2, SOON_SECONDS)
        await three.wait_until(lambda: leader.node.cluster.has_controller_contact, SOON_SECONDS)  # of whichever wins
        assert [await is_acked(leader, topic, ACKS_ALL) for topic in both] == [True, True]
        assert (
            leader.node.leader_replica("all", 0).high_watermark == leader.node.leader_replica("all", 0).log.end_offset
        )

    sets = (("all", 3), ("two", 2))
    run_scenario(scenario, seed)


@run_by(run_scenario)
async def test_broker_without_controller_contact_refuses_acks_all(three: ThreeBrokers) -> None:
    """Rule R6. The bucket is unreachable, so that no other broker can replace the controller. The broker cannot know
    which brokers got its partitions."""
    dies = three.controller
    leader, follower = three.others()
    await create_topic(three, "t", leader.node_id, follower.node_id)
    await three.wait_until(lambda: len(leader.node.image.topics["t"].partitions[0].isr) == 2, 20)
    assert await is_acked(leader, "t", ACKS_ALL)
    set_bucket_outage(three, is_unreachable=True)
    await dies.kill()
    await asyncio.sleep(2 * SESSION)
    assert not await is_acked(leader, "t", ACKS_ALL)
    assert await is_acked(leader, "t", 1)
    assert (await leader.node.leader_replica("t", 0).reads.read(0, 1 << 20)).size, "reads go on"
    own = leader.node.health().own_problems  # what `tiered cluster health` shows
    assert any(f"no contact with the controller (broker {dies.node_id})" in each for each in own)
    set_bucket_outage(three, is_unreachable=False)
    await three.wait_until(
        lambda: len(three.controller_ids()) == 1 and leader.node.cluster.has_controller_contact, SOON_SECONDS
    )
    assert await is_acked(leader, "t", ACKS_ALL)


@pytest.mark.parametrize("fault", ["slow", "puts fail"])
@pytest.mark.parametrize("seed", first_seeds(1, 3))
@run_by(run_scenario, seed=GIVEN)
async def test_change_that_the_bucket_does_not_take_costs_no_broker_its_contact(
    three: ThreeBrokers, *, fault: str
) -> None:
    """The controller replies to its standbys all the time. The standbys try the bucket too, and go on to fetch."""
    leader, follower = three.others()
    controller = three.controller
    await create_topic(three, "t", leader.node_id, follower.node_id, controller.node_id)
    await three.wait_until(lambda: len(leader.node.image.topics["t"].partitions[0].isr) == 3, 20)
    for each in three.brokers.values():
        if fault == "slow":
            each.machine.faults.first_byte_seconds = 20.0
        else:
            each.machine.faults.rules.append(FaultRule(FaultKind.ERROR, ("put",)))
    waits = asyncio.create_task(controller.node.submit(CreateTopic("u", partitions=1)))
    end = three.now + 20 * SESSION
    while three.now < end:
        assert all(each.node.cluster.has_controller_contact for each in three.brokers.values())
        assert await is_acked(leader, "t", ACKS_ALL)
        await asyncio.sleep(SESSION / 10)
    for each in three.brokers.values():
        each.machine.faults.first_byte_seconds = 0.0
        each.machine.faults.rules.clear()
    await asyncio.wait([waits], timeout=SOON_SECONDS)
    assert waits.done() and isinstance(waits.exception(), Refused | None)
    await create_topic(three, "v", leader.node_id, follower.node_id)

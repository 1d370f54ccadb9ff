"""Tests of brokers whose disk fills, in scenarios of three brokers: leaderships move to replicas with room, and come
back."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.scenarios.test_preferred_leaders import create_topic, leaders, partitions
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tests.unit.hot.fixtures import batch
from tiered.access.audit_log import LOGGER
from tiered.controller.balancer import SETTLE_SECONDS
from tiered.controller.requests import CreateTopic
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.replication.disk_state import RECOVERY_SECONDS, ROOM_SECONDS
from tiered.replication.leader_replica import ACKS_ALL

LARGE = 30_000


def fill_disk(broker: SimBroker, room: int = 0) -> None:
    disk = broker.machine.disk
    disk.capacity = disk.space().total - disk.space().free + room


async def write(three: ThreeBrokers, number: int, size: int = 10, seconds: float = 10) -> int:
    """Writes a record with acks=all as a client does that retries, and returns its offset."""
    async with asyncio.timeout(seconds):
        while True:
            with suppress(Refused):
                leader = three.brokers[leaders(three)[0]].node.leader_replica("t", 0)
                found = await leader.append(batch(number, size=size), acks=ACKS_ALL, timeout_ms=2_000)
                return found.base_offset
            await asyncio.sleep(0.1)


def test_full_leader_hands_over_and_leads_again_once_it_has_room(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(three: ThreeBrokers) -> None:
        first, other = three.others()
        await create_topic(three, first.node_id, 1)
        offsets = [await write(three, number) for number in range(5)]
        fill_disk(first)
        offsets += [await write(three, number, LARGE, seconds=4) for number in range(5, 15)]
        assert leaders(three) != [first.node_id] and first.node_id not in partitions(three)[0].isr
        assert len(set(offsets)) == 15
        moved = f"moved leadership of 1 partitions from broker {first.node_id}: disk full since"
        for each in three.brokers.values():
            assert any(moved in problem for problem in each.node.health().problems)
        for words in ("disk full since", moved):
            assert any(each.startswith(words) for each in first.node.health().own_problems)
        await asyncio.sleep(RECOVERY_SECONDS + 5 * SETTLE_SECONDS)
        assert leaders(three) != [first.node_id], "there is no room yet"
        first.machine.disk.capacity = None
        await three.wait_until(lambda: first.node_id in partitions(three)[0].isr, 3 * ROOM_SECONDS)
        await asyncio.sleep(RECOVERY_SECONDS / 2)
        assert leaders(three) != [first.node_id], "it had room for a short time only"
        await three.wait_until(lambda: leaders(three) == [first.node_id], RECOVERY_SECONDS)
        await three.wait_until(lambda: not other.node.health().problems, 5)
        assert await write(three, 15) >= 15

    with caplog.at_level("INFO"):
        run_scenario(scenario)
    lines = [each.getMessage() for each in caplog.records]
    assert any(each.startswith("moved leadership of 1 partitions from broker ") for each in lines)
    events = [json.loads(each.getMessage()) for each in caplog.records if each.name == LOGGER]
    assert any("disk full: moved leadership of 1 partitions" in each.get("detail", "") for each in events)


@run_by(run_scenario)
async def test_full_leader_keeps_leading_while_no_replica_with_room_is_in_sync(three: ThreeBrokers) -> None:
    await create_topic(three, 1, 1)
    await write(three, 0)
    for each in three.brokers.values():
        fill_disk(each)
    await three.controller.node.submit(CreateTopic("u"))  # each broker has to note it
    await three.wait_until(lambda: three.controller.node.image.bad_disk_ids() == {1, 2, 3}, 20)
    first = three.brokers[leaders(three)[0]]
    other = three.brokers[first.node_id % 3 + 1]
    replica = first.node.leader_replica("t", 0)
    for _ in range(30):
        with refuses(Code.KAFKA_STORAGE_ERROR):
            await replica.append(batch(1, size=LARGE), acks=ACKS_ALL)
        await asyncio.sleep(1)
    assert leaders(three) == [first.node_id]
    assert (await replica.reads.read(0, 1000)).high_watermark == 1
    other.machine.disk.capacity = None
    await three.wait_until(lambda: leaders(three) == [other.node_id], 3 * ROOM_SECONDS)
    await write(three, 1, LARGE, seconds=60)


def test_new_topics_avoid_a_full_disk_and_acknowledge_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(three: ThreeBrokers) -> None:
        first, other = three.others()
        await create_topic(three, first.node_id, 1)
        fill_disk(other)
        await write(three, 0, LARGE, seconds=60)
        submit = three.controller.node.submit
        await three.wait_until(lambda: three.controller.node.image.bad_disk_ids() == {other.node_id}, 20)
        two = await submit(CreateTopic("two", 6, 2))
        assert not any(other.node_id in each.replicas for each in two.partitions)
        await submit(CreateTopic("all", 3, 3))
        for p, each in enumerate(three.controller.node.image.topics["all"].partitions):
            assert other.node_id in each.replicas and each.leader != other.node_id
            leader = three.brokers[each.leader].node
            async with asyncio.timeout(5):  # less than a lagging follower may stay in the ISR
                while leader.hosted_replicas.find_leader(TopicPartition("all", p)) is None:
                    await asyncio.sleep(0.1)
                await leader.leader_replica("all", p).append(batch(0), acks=ACKS_ALL, timeout_ms=4_000)
        other.machine.disk.capacity = None
        await three.wait_until(
            lambda: all(len(each.isr) == 3 for each in three.controller.node.image.topics["all"].partitions),
            3 * ROOM_SECONDS,
        )

    with caplog.at_level("INFO"):
        run_scenario(scenario)
    assert any(each.getMessage().startswith("replicas on full disks name=all brokers=") for each in caplog.records)


def test_led_and_followed_partitions_are_counted_apart(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(three: ThreeBrokers) -> None:
        first, other = three.others()
        await create_topic(three, first.node_id, 1)
        await write(three, 0)

        def counts(broker: SimBroker) -> tuple[int, int]:
            details = broker.node.health().details
            return details["led_partitions"], details["followed_partitions"]

        await three.wait_until(lambda: (counts(first), counts(other)) == ((1, 0), (0, 1)), 10)
        await other.kill()
        caplog.clear()
        await other.start()
        await three.wait_until(lambda: counts(other) == (0, 1), 10)

    with caplog.at_level("INFO"):
        run_scenario(scenario)
    [serves] = [each.getMessage() for each in caplog.records if each.getMessage().startswith("broker serves")]
    assert serves.endswith(" led=0 followed=1")


@run_by(run_scenario)
async def test_full_follower_leaves_the_isr_and_is_a_problem_everywhere(three: ThreeBrokers) -> None:
    first, other = three.others()
    await create_topic(three, first.node_id, 1)
    fill_disk(other)
    for number in range(3):
        await write(three, number, LARGE, seconds=4)
    assert other.node_id not in partitions(three)[0].isr and leaders(three) == [first.node_id]
    await three.wait_until(lambda: three.controller.node.image.bad_disk_ids() == {other.node_id}, 5)
    assert any(each.startswith("disk full since") for each in other.node.health().own_problems)
    expected = f"moved no leadership from broker {other.node_id}: disk full since"
    assert any(expected in problem for problem in first.node.health().problems)
    assert first.node.health().details["full_disks"] == [other.node_id]

"""The table of docs/GUARANTEES.md, a story for each row: what is acknowledged is there after what the row names.

Two brokers that lose power or disk at once are one more than `min.insync.replicas - 1` of 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.e2e.site import batch, numbers, read_values
from tests.sim.test_controllers import Broker, Three, told
from tests.sim.world import SimMachine
from tiered.metadata.requests import CreateTopic
from tiered.replication.replica import ALL, Replica

COUNT = 20
SECONDS = 30.0
Crash = Callable[[SimMachine], None]


async def led(three: Three) -> Replica:
    """Partition 0 of `t`, at whoever leads it."""
    found: list[Replica] = []

    def is_led() -> bool:
        for each in three.brokers.values():
            held = {(replica.topic, replica.partition): replica for replica in each.node.replicas()}
            replica = held.get(("t", 0))
            if (
                replica is not None
                and not replica.gone
                and each.node.image.topics["t"].partitions[0].leader == (each.node_id)
            ):
                found.append(replica)
        return bool(found)

    await three.until(is_led, SECONDS)
    return found[-1]


async def crash(brokers: Sequence[Broker], how: Crash) -> None:
    """All of them before any has ended."""
    for each in brokers:
        how(each.machine)
    for each in brokers:
        await each.clear()


def story_of(replicas: int, story: Callable[[Three], Awaitable[None]], acks: int = ALL, **configs: str) -> None:
    """`COUNT` records are acknowledged in the topic `t`, none of them by a closed segment; `story` brings trouble; then
    all are there."""

    async def whole(three: Three) -> None:
        dotted = {name.replace("_", "."): value for name, value in configs.items()}
        await three.controller.node.submit(CreateTopic("t", 1, replicas, configs={"retention.ms": "-1", **dotted}))
        leader = await led(three)
        for number in range(COUNT):
            await leader.append(batch([b"%06d" % number]), acks=acks)
        await story(three)
        again = await led(three)
        await three.until(lambda: again.high_watermark >= COUNT, SECONDS)
        assert await read_values(again, 0) == numbers(0, COUNT)
        assert again.explain()["possible_loss"] is None

    told(whole)


def leader_of(three: Three) -> Broker:
    return three.brokers[three.controller.node.image.topics["t"].partitions[0].leader]


def test_acks_1_of_the_only_replica_outlives_its_process() -> None:
    async def story(three: Three) -> None:
        hit = leader_of(three)
        await crash([hit], SimMachine.kill)
        await hit.start()

    story_of(1, story, acks=1)


@pytest.mark.parametrize("how", [SimMachine.power_cut, SimMachine.lose_disk])
@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "a follower"])
def test_acks_all_outlives_power_or_disk_of_one_less_than_must_be_in_sync(how: Crash, leads: bool) -> None:
    async def story(three: Three) -> None:
        hit = leader_of(three)
        if not leads:
            hit = next(each for each in three.brokers.values() if each is not hit)
        await crash([hit], how)
        await hit.start()
        await three.until(three.all_known, SECONDS)

    story_of(3, story, min_insync_replicas="2")


def test_acks_all_outlives_all_processes() -> None:
    async def story(three: Three) -> None:
        await crash(list(three.brokers.values()), SimMachine.kill)
        await asyncio.gather(*(each.start() for each in three.brokers.values()))

    story_of(3, story, min_insync_replicas="2")


def test_acks_all_with_flush_ack_outlives_the_power_of_all() -> None:
    async def story(three: Three) -> None:
        await crash(list(three.brokers.values()), SimMachine.power_cut)
        await asyncio.gather(*(each.start() for each in three.brokers.values()))

    story_of(3, story, min_insync_replicas="2", flush="ack")


def test_what_is_in_the_bucket_outlives_all_brokers_and_disks() -> None:
    async def whole(three: Three) -> None:
        configs = {"segment.bytes": "4096", "retention.ms": "-1"}
        await three.controller.node.submit(CreateTopic("t", 1, 3, configs=configs))
        leader = await led(three)
        for number in range(COUNT):
            await leader.append(batch([b"%06d" % number + b"x" * 1000]))
        await three.until(lambda: leader.cold_end_offset > 0, SECONDS)
        cold_end = leader.cold_end_offset
        await crash(list(three.brokers.values()), SimMachine.lose_disk)
        await asyncio.gather(*(each.start() for each in three.brokers.values()))
        again = await led(three)
        assert again.high_watermark >= cold_end
        assert (await read_values(again, 0))[:cold_end] == numbers(0, cold_end)

    told(whole)

"""Settings that change under acknowledged records: what was promised under the old value holds, and nobody counts on
the new one before it is true of every record."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.site import batch, numbers, read_values
from tests.sim.test_sim_what_an_ack_survives import COUNT, SECONDS, crash, insiders, leader_of, led
from tests.sim.three import Three, told
from tests.sim.world import SimMachine
from tiered.errors import Code, Refused
from tiered.metadata.changes import CLUSTER
from tiered.metadata.requests import AlterBrokerConfigs, CreateTopic
from tiered.replication.replica import ALL

MIN_ISR = "min.insync.replicas"


async def leader_alone_loses_power(three: Three) -> None:
    """`COUNT` records are acknowledged by three; both followers' processes end, then the leader loses power, and all
    come back."""
    leader = await led(three)
    hit = leader_of(three)
    others = [each for each in three.brokers.values() if each is not hit]
    for number in range(COUNT):
        await leader.append(batch([b"%06d" % number]), acks=ALL)
    await crash(others, SimMachine.kill)
    await three.until(lambda: insiders(three) == [hit], SECONDS)
    await crash([hit], SimMachine.power_cut)
    await asyncio.gather(*(each.start() for each in others))
    await asyncio.sleep(10)
    await hit.start()
    again = await led(three)
    await three.until(lambda: again.high_watermark >= COUNT, SECONDS)
    assert await read_values(again, 0) == numbers(0, COUNT)
    assert again.explain()["possible_loss"] is None


def test_min_insync_replicas_of_all_brokers_cannot_be_removed() -> None:
    """Brokers started with 2 would mean another number than the metadata log: as Kafka refuses it (KIP-966)."""

    async def whole(three: Three) -> None:
        for removed in (
            AlterBrokerConfigs(CLUSTER, {MIN_ISR: None}),
            AlterBrokerConfigs(CLUSTER, {"log.retention.ms": "-1"}, replace=True),
        ):
            with pytest.raises(Refused, match=MIN_ISR) as refused:
                await three.controller.node.submit(removed)
            assert refused.value.code is Code.INVALID_CONFIG
        await three.controller.node.submit(CreateTopic("t", 1, 3, configs={"retention.ms": "-1"}))
        assert (await led(three)).config.min_insync_replicas == 2
        await leader_alone_loses_power(three)

    told(whole, min_insync_replicas=2)

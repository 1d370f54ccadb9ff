"""Tests of `tiered cluster unregister`: it removes a broker that has left for good from the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.scenario import run_by
from tests.sim.harness.clock import SimClock
from tests.sim.scenarios.test_cut_off import isolate
from tests.sim.scenarios.three import PORT, SESSION, ThreeBrokers, run_scenario
from tiered.controller.requests import AlterBrokerConfigs, CreateTopic, Move, Reassign
from tiered.errors import Refused
from tiered_api.cli.cluster.brokers import unregister_broker
from tiered_api.cli.cluster.view import fetch_cluster_view
from tiered_api.kafka.client.client import Address, KafkaClient


@asynccontextmanager
async def operator_client(three: ThreeBrokers) -> AsyncIterator[KafkaClient]:
    """Returns a client that knows every broker."""
    addresses = [Address(each.name, PORT) for each in three.brokers.values()]
    client = KafkaClient(three.network.host("operator"), SimClock(three.loop), addresses, timeout=5)
    try:
        yield client
    finally:
        await client.close()


@run_by(run_scenario)
async def test_stopped_broker_is_unregistered_once_it_has_no_replicas(three: ThreeBrokers) -> None:
    leaving = three.others()[0]
    rest = [each for each in three.brokers.values() if each is not leaving]
    one = three.controller.node
    await one.submit(CreateTopic("t", assignments=[[leaving.node_id, rest[0].node_id]]))
    await one.submit(AlterBrokerConfigs(leaving.node_id, {"cordoned.log.dirs": "*"}))
    async with operator_client(three) as client:
        with pytest.raises(Refused, match=f"broker {leaving.node_id} is live: stop it first"):
            await unregister_broker(client, leaving.node_id)
        await leaving.stop()
        with pytest.raises(Refused, match="has 1 replicas, such as t-0"):
            await unregister_broker(client, leaving.node_id)
        topic = one.image.topics["t"]
        await one.submit(Reassign((Move(topic.topic_id, 0, (rest[0].node_id,)),)))
        await three.wait_until(lambda: leaving.node_id not in one.image.topics["t"].partitions[0].replicas, 5)
        await unregister_broker(client, leaving.node_id)
        assert sorted((await fetch_cluster_view(client)).brokers) == sorted(each.node_id for each in rest)
        with pytest.raises(Refused, match=f"there is no broker {leaving.node_id}"):
            await unregister_broker(client, leaving.node_id)
    await three.wait_until(lambda: all(leaving.node_id not in each.node.image.brokers for each in rest), 5)
    await leaving.start()
    assert one.image.brokers[leaving.node_id].live and leaving.node_id not in one.image.broker_configs


@run_by(run_scenario)
async def test_unregistered_broker_ends_with_a_reason(three: ThreeBrokers) -> None:
    leaving = three.others()[0]
    isolate(three, leaving)
    one = three.controller.node
    await three.wait_until(lambda: not one.image.brokers[leaving.node_id].live, 3 * SESSION)
    async with operator_client(three) as client:
        await unregister_broker(client, leaving.node_id)
    three.network.heal()
    await asyncio.wait_for(leaving.node.ended.wait(), 3 * SESSION)
    why = f"the broker failed: broker {leaving.node_id} was unregistered while it had no contact with the controller"
    assert why in leaving.node.health().problems

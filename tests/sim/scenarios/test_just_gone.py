"""Tests of replies to clients at the moment when a broker has died: they wait for the truth and then contain it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.test_throttles import make_client
from tests.sim.scenarios.three import PORT, SESSION, SimBroker, ThreeBrokers, run_scenario
from tiered.controller.heartbeats import PROBE_AFTER_NS
from tiered.controller.requests import CreateTopic
from tiered.errors import Code
from tiered.replication.leader_replica import ACKS_ALL
from tiered_api.cli.topic.describe import partition_rows
from tiered_api.kafka.client.connection import BrokerConnection, open_connection
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataResponse

ANSWER_SECONDS = 5.0


def run_with_follower(
    scenario: Callable[[ThreeBrokers, SimBroker, SimBroker, BrokerConnection], Awaitable[None]],
) -> None:
    """Runs a scenario with (the three brokers, the leader of `t`, a follower, a client's connection to that follower).
    Neither of the two is the controller, and all three have a record of `t`."""

    async def run_all(three: ThreeBrokers) -> None:
        leader, follower = three.others()
        held = [leader.node_id, follower.node_id, three.controller.node_id]
        await three.controller.node.submit(CreateTopic("t", assignments=[held]))
        await three.wait_until(lambda: "t" in leader.node.image.topics, 5)
        await leader.node.leader_replica("t", 0).append(batch([b"v"]), acks=ACKS_ALL)
        link = await open_connection(three.network.host("client"), follower.name, PORT, "client", ANSWER_SECONDS)
        await scenario(three, leader, follower, link)
        link.close()

    run_scenario(run_all)


async def find_coordinator(link: BrokerConnection, group: str) -> int:
    found = await link.send(FindCoordinatorRequest(group), FindCoordinatorResponse, ANSWER_SECONDS, 3)
    assert found.error_code == Code.NONE.number, found.error_message
    return found.node_id


@run_by(run_with_follower)
async def test_metadata_after_a_death_names_next_leader_and_address_of_the_last(
    three: ThreeBrokers, leader: SimBroker, follower: SimBroker, link: BrokerConnection
) -> None:
    three.controller.machine.faults.first_byte_seconds = 0.1  # what it decides is known a little later
    leader.machine.kill()
    started = three.now
    asked = asyncio.create_task(link.send(MetadataRequest(topics=None), MetadataResponse, ANSWER_SECONDS, 12))
    await asyncio.sleep(0.01)
    known = follower.node.image
    assert known.topics["t"].partitions[0].leader == leader.node_id and known.brokers[leader.node_id].live
    assert not asked.done(), "it would be told of the dead"
    said = await asked
    (topic,) = said.topics
    assert topic.partitions[0].leader_id in {follower.node_id, three.controller.node_id}
    assert {each.node_id: each.host for each in said.brokers} == {1: "b1", 2: "b2", 3: "b3"}
    assert three.now - started < 1
    await leader.clear()


@run_by(run_with_follower)
async def test_find_coordinator_after_a_death_returns_the_next_coordinator(
    three: ThreeBrokers, leader: SimBroker, follower: SimBroker, link: BrokerConnection
) -> None:
    await find_coordinator(link, "any")  # `__consumer_offsets` is there
    (group,) = [each for each in map(str, range(50)) if await find_coordinator(link, each) == leader.node_id][:1]
    await asyncio.sleep(5)  # its replicas are in sync
    leader.machine.kill()
    assert await find_coordinator(link, group) in {follower.node_id, three.controller.node_id}
    await leader.clear()


@run_by(run_with_follower)
async def test_controller_fences_a_broker_when_its_replica_connection_ends(
    three: ThreeBrokers, leader: SimBroker, follower: SimBroker, link: BrokerConnection
) -> None:
    """It fences the broker long before the end of its session. The broker had just got a reply, so that no request of
    its own was pending whose end would have told the same."""
    seen = three.controller.node
    answered = asyncio.create_task(seen.submit(CreateTopic("u")))
    while "u" not in seen.image.topics:
        await asyncio.sleep(0.0001)
    leader.machine.kill()
    took = await three.wait_until(lambda: not seen.image.brokers[leader.node_id].live, SESSION)
    assert took < PROBE_AFTER_NS / 1e9 < SESSION / 10
    await leader.clear()
    await answered


@run_by(run_scenario)
async def test_topic_that_lost_a_leader_for_good_is_described_at_once(three: ThreeBrokers) -> None:
    one, _ = three.others()
    held = [[one.node_id], [three.controller.node_id]]
    await three.controller.node.submit(CreateTopic("t", assignments=held))
    await one.kill()
    await three.wait_until(lambda: three.controller.node.image.topics["t"].partitions[0].leader < 0, 10)
    client, start = make_client(three), three.now
    (topic,) = (await client.fetch_metadata(["t"])).topics
    rows = await partition_rows(client, topic)
    assert three.now - start < 1, "nobody is waited for"
    assert [(row["leader"] >= 0, row["high_watermark"]) for row in rows] == [(False, None), (True, 0)]
    await client.close()

"""Test of a request to a broker that does not lead: its reply names the leader (KIP-951)."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.scenario import run_by
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, run
from tiered.config.listeners import Endpoint
from tiered.controller.requests import CreateTopic, RegisterBroker
from tiered.errors import Code
from tiered.ids import TopicId
from tiered_api.kafka.client.connection import BrokerConnection, open_connection
from tiered_api.kafka.protocol.messages import fetch, produce
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.server import serve_kafka

MOVED = Code.NOT_LEADER_OR_FOLLOWER.number


class LedPartition(NamedTuple):
    """A partition that broker 2 leads."""

    topic: str
    topic_id: TopicId


def make_requests(where: LedPartition) -> tuple[Message, Message]:
    data = produce.PartitionProduceData(index=0, records=bytes(batch([b"v"])))
    topic = produce.TopicProduceData(where.topic, where.topic_id, [data])
    wanted = fetch.FetchTopic(where.topic, where.topic_id, [fetch.FetchPartition(0, partition_max_bytes=1 << 20)])
    return produce.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[topic]), fetch.FetchRequest(topics=[wanted])


async def send_produce(link: BrokerConnection, where: LedPartition, version: int) -> produce.ProduceResponse:
    return await link.send(make_requests(where)[0], produce.ProduceResponse, 5, version)


async def send_fetch(link: BrokerConnection, where: LedPartition, version: int) -> fetch.FetchResponse:
    return await link.send(make_requests(where)[1], fetch.FetchResponse, 5, version)


@pytest.mark.parametrize("other", [True, False])
@run_by(run)
async def test_reply_of_a_broker_that_does_not_lead_names_the_leader(rig: SimBrokerRig, *, other: bool) -> None:
    await rig.start(QUICK)
    listeners = {"PLAINTEXT": "two:9099"} if other else {}
    await rig.broker.submit(RegisterBroker(2, "B" * 21 + "A", "d", "two:1", "east", True, listeners))
    topic = await rig.broker.submit(CreateTopic("t", assignments=[[2]]))
    server = await serve_kafka(rig.broker, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", 9092)})
    link = await open_connection(rig.network.host("far"), "one", server.addresses["PLAINTEXT"].port, "far", 5)
    where = LedPartition("t", topic.topic_id)
    for version in (9, 10, 12, 13):
        answer = await send_produce(link, where, version)
        part = answer.responses[0].partition_responses[0]
        told = other and version >= 10
        assert part.error_code == MOVED
        assert part.current_leader == (produce.LeaderIdAndEpoch(2, 0) if told else produce.LeaderIdAndEpoch())
        assert answer.node_endpoints == ([produce.NodeEndpoint(2, "two", 9099, "east")] if told else [])
    for version in (12, 15, 16, 17, 18):
        found = await send_fetch(link, where, version)
        row = found.responses[0].partitions[0]
        told = other and version >= 16
        assert row.error_code == MOVED
        assert row.current_leader == (fetch.LeaderIdAndEpoch(2, 0) if told else fetch.LeaderIdAndEpoch())
        assert found.node_endpoints == ([fetch.NodeEndpoint(2, "two", 9099, "east")] if told else [])
    link.close()
    await server.close()

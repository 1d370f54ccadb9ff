"""Tests of a broker that follows another one over Kafka's protocol: the records that it copies, and the replies of its
clients."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.scenario import run_by
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, run
from tests.unit.kafka.scripted import Scripted
from tiered.broker.broker import Broker
from tiered.config.listeners import Endpoint
from tiered.controller.requests import CreateTopic, RegisterBroker
from tiered.metrics import Metrics
from tiered_api.kafka.client.connection import open_connection
from tiered_api.kafka.client.peers import KafkaPeers
from tiered_api.kafka.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tiered_api.kafka.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from tiered_api.kafka.server.server import serve_kafka

TWO = "B" * 21 + "A"
RECORDS = 3


def reply_to_fetch(request: FetchRequest, version: int) -> FetchResponse:
    """Returns one batch after the other, and reports each as committed once the next one is fetched."""
    answer = FetchResponse()
    for topic in request.topics:
        parts = []
        for each in topic.partitions:
            part = PartitionData(each.partition, 0, each.fetch_offset, log_start_offset=0, aborted_transactions=None)
            part.local_start_offset, part.cold_end_offset, part.records = 0, 0, b""
            if each.fetch_offset < RECORDS:
                records = batch([b"v%d" % each.fetch_offset])
                records[0:8] = each.fetch_offset.to_bytes(8, "big")
                records[12:16] = bytes(4)
                part.records = bytes(records)
            parts.append(part)
        answer.responses.append(FetchableTopicResponse(topic_id=topic.topic_id, partitions=parts))
    return answer


@run_by(run)
async def test_follower_copies_over_the_wire_and_lists_its_logs(rig: SimBrokerRig) -> None:
    host = rig.network.host("one")
    settings = replace(QUICK, tiered_broker_suspect_timeout_ms=QUICK.broker_session_timeout_ms)
    rig.broker = Broker(settings, rig.machine.process(), Metrics(), peers=KafkaPeers(host))
    await rig.broker.start()
    other = Scripted(2)
    other.script[FetchRequest] = reply_to_fetch
    await other.start(rig.network.host("two"), "two", 9092)
    await rig.broker.submit(RegisterBroker(2, TWO, "d", "two:1", "", True, {"PLAINTEXT": "two:9092"}))
    await rig.broker.submit(CreateTopic("t", assignments=[[2, 1]]))
    await rig.wait_until(
        lambda: any(copy.log.end_offset == RECORDS for copy in rig.broker.hosted_replicas.list_replicas())
    )

    server = await serve_kafka(rig.broker, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", 9092)})
    link = await open_connection(rig.network.host("far"), "one", 9092, "far", 5)
    answer = await link.send(DescribeLogDirsRequest(None), DescribeLogDirsResponse, 5)
    (topic,) = answer.results[0].topics
    (row,) = topic.partitions
    (copy,) = rig.broker.hosted_replicas.list_replicas()
    assert (topic.name, row.partition_index, row.partition_size) == ("t", 0, copy.log.segments.size_bytes)
    assert row.partition_size > 0 and row.remote_size == -1
    link.close()
    await server.close()
    other.stop()


@run_by(run)
async def test_failed_disk_ends_the_broker_when_it_gets_a_new_partition(rig: SimBrokerRig) -> None:
    """Any operation may have found the failure. No log that is opened on the disk is served, and no caller waits for it
    for ever."""
    await rig.start()
    await rig.broker.submit(RegisterBroker(2, TWO, "d", "two:1", "", True, {"PLAINTEXT": "two:9092"}))
    rig.machine.disk._failed = "sync failed"
    await rig.broker.submit(CreateTopic("t", assignments=[[2, 1]]))
    await asyncio.wait_for(rig.broker.ended.wait(), 5)
    assert any("data directory" in each for each in rig.broker.health().problems)

"""Tests of DescribeQuorum over real sockets: the controller is the leader, and other brokers are observers."""

from __future__ import annotations

import time

import pytest

from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_cluster import run as run_cluster
from tests.e2e.kafka_site import KafkaBroker, RawClient, run
from tests.e2e.test_kafka_transactions_cluster import address_of, connected
from tests.scenario import run_by
from tiered.errors import Code
from tiered_api.kafka.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumPartition,
    QuorumPartitionResult,
    QuorumTopic,
)
from tiered_api.kafka.protocol.schema import ZERO_ID
from tiered_api.kafka.server.handlers.describe_quorum import METADATA_TOPIC


async def ask(client: RawClient, version: int = 2) -> DescribeQuorumResponse:
    topics = [QuorumTopic(METADATA_TOPIC, [QuorumPartition(0)])]
    return await client.ask(DescribeQuorumRequest(topics), version, DescribeQuorumResponse)


def only(answer: DescribeQuorumResponse) -> QuorumPartitionResult:
    assert answer.error_code == 0
    ((found,),) = (topic.partitions for topic in answer.topics)
    return found


@pytest.mark.parametrize("version", range(3))
@run_by(run, "tmp_path")
async def test_single_broker_is_leader_and_voter(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()
    before = only(await ask(client, version)).high_watermark
    await site.create("t")
    answer = await ask(client, version)
    found, end = only(answer), site.broker.image.slot + 1
    assert before < end == found.high_watermark
    assert (found.error_code, found.leader_id, found.leader_epoch) == (0, 1, site.broker.image.controller_epoch)
    (voter,) = found.current_voters
    assert (voter.replica_id, voter.replica_directory_id, voter.log_end_offset) == (1, ZERO_ID, end)
    assert found.observers == []
    assert (voter.last_fetch_timestamp > 0) == (voter.last_caught_up_timestamp > 0) == (version >= 1)
    listeners = [
        (node.node_id, each.name, f"{each.host}:{each.port}") for node in answer.nodes for each in node.listeners
    ]
    assert listeners == ([(1, "PLAINTEXT", site.address)] if version >= 2 else [])


@run_by(run, "tmp_path")
async def test_other_partitions_have_no_quorum(site: KafkaBroker) -> None:
    client = await site.client()
    for topics in (
        [("t", [0])],
        [(METADATA_TOPIC, [1])],
        [(METADATA_TOPIC, [0, 1])],
        [(METADATA_TOPIC, [0]), ("t", [0])],
    ):
        asked = [QuorumTopic(name, [QuorumPartition(number) for number in numbers]) for name, numbers in topics]
        answer = await client.ask(DescribeQuorumRequest(asked), 2, DescribeQuorumResponse)
        codes = [part.error_code for topic in answer.topics for part in topic.partitions]
        assert answer.error_code == 0 and answer.nodes == []
        assert codes == [Code.UNKNOWN_TOPIC_OR_PARTITION.number] * sum(len(numbers) for _, numbers in topics)


@run_by(run_cluster, "tmp_path")
async def test_every_broker_tells_what_the_controller_knows(cluster: HttpCluster) -> None:
    await cluster.create("t", (1, 2, 3))
    image = cluster[1].broker.image
    assert image.controller in (1, 2, 3)
    others = [number for number in (1, 2, 3) if number != image.controller]
    for number in (1, 2, 3):
        async with connected(cluster, number) as client:
            answer = await ask(client)
            while {each.log_end_offset for each in only(answer).observers} != {only(answer).high_watermark}:
                answer = await ask(client)  # the test's own deadline ends the wait
            found = only(answer)
            assert (found.leader_id, found.leader_epoch) == (image.controller, image.controller_epoch)
            assert [each.replica_id for each in found.current_voters] == [image.controller]
            assert [each.replica_id for each in found.observers] == others
            now_ms = time.time() * 1000
            for each in found.observers:
                assert now_ms - 30_000 < each.last_caught_up_timestamp <= each.last_fetch_timestamp <= now_ms + 1000
            ((node,),) = (answer.nodes,)
            assert node.node_id == image.controller
            assert [f"{each.host}:{each.port}" for each in node.listeners] == [address_of(cluster, image.controller)]

"""Tests of the requests that a follower sends to a leader, and of its parsing of the replies, with Kafka's Fetch in
between."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.network import SimNetwork
from tests.unit.kafka.scripted import Scripted
from tiered.errors import Code, Unavailable
from tiered.ids import TopicId
from tiered.peers import DivergingEpoch, FetchedPartition, PartitionFetch, Peers, ReplicaFetch
from tiered_api.kafka.client.peers import KafkaPeers
from tiered_api.kafka.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)

THERE = "leader:9092"
ORDERS, PARCELS = TopicId("AAAAAAAAAAAAAAAAAAAAAQ"), TopicId("AAAAAAAAAAAAAAAAAAAAAg")
ASK = ReplicaFetch(
    2, (1 << 62) + 1, 500, 10 << 20, 1 << 20,
    [PartitionFetch(ORDERS, 0, 4, 100, 3, 7, 9), PartitionFetch(PARCELS, 5, 1, 0, -1, 0, 0),
        PartitionFetch(ORDERS, 9, 4, 8, 4, 0, 0)],
)  # fmt: skip


def run_scenario(scenario: Callable[[KafkaPeers, Scripted], Awaitable[None]]) -> None:
    loop = SimLoop(1)
    network = SimNetwork(loop, random.Random(1))

    async def main() -> None:
        leader, peers = Scripted(), KafkaPeers(network.host("follower"), credential=b"c" * 16)
        await leader.start(network.host("leader"), "leader", 9092)
        await scenario(peers, leader)
        await peers.close()
        leader.stop()

    loop.run(main())


@run_by(run_scenario)
async def test_fetch_groups_partitions_by_topic_and_names_the_replica(peers: Peers, leader: Scripted) -> None:
    leader.script[FetchRequest] = lambda request, version: FetchResponse()
    assert await peers.fetch(THERE, ASK, 5) == []
    received = leader.received[0].message
    assert leader.received[0].version == 17
    assert (received.replica_state, received.credential) == (ReplicaState(2, (1 << 62) + 1), b"c" * 16)
    assert (received.max_wait_ms, received.min_bytes, received.max_bytes) == (500, 1, 10 << 20)
    assert (received.session_id, received.session_epoch) == (0, -1)
    assert [
        (
            topic.topic_id, each.partition, each.current_leader_epoch, each.fetch_offset, each.last_fetched_epoch,
            each.log_start_offset, each.partition_max_bytes,
        )
        for topic in received.topics
        for each in topic.partitions
    ] == [
        (ORDERS, 0, 4, 100, 3, 7, 1 << 20),
        (ORDERS, 9, 4, 8, 4, 0, 1 << 20),
        (PARCELS, 5, 1, 0, -1, 0, 1 << 20),
    ]  # fmt: skip


@run_by(run_scenario)
async def test_every_field_of_a_fetch_reply_is_parsed(peers: KafkaPeers, leader: Scripted) -> None:
    def answer(request: FetchRequest, version: int) -> FetchResponse:
        full = PartitionData(
            0, 0, 90, 90, 5, records=b"batches", aborted_transactions=None, local_start_offset=40, cold_end_offset=60
        )
        parted = PartitionData(9, 0, 8, diverging_epoch=EpochEndOffset(2, 6), aborted_transactions=None)
        moved = PartitionData(5, 109, 20, log_start_offset=1, local_start_offset=12, cold_end_offset=0)
        return FetchResponse(
            responses=[
                FetchableTopicResponse(topic_id=ORDERS, partitions=[full, parted]),
                FetchableTopicResponse(topic_id=PARCELS, partitions=[moved]),
            ]
        )

    leader.script[FetchRequest] = answer
    assert await peers.fetch(THERE, ASK, 5) == [
        FetchedPartition(ORDERS, 0, 0, 90, 5, 40, 60, None, b"batches"),
        FetchedPartition(ORDERS, 9, 0, 8, -1, -1, -1, DivergingEpoch(2, 6), b""),
        FetchedPartition(PARCELS, 5, 109, 20, 1, 12, 0, None, b""),
    ]


@run_by(run_scenario)
async def test_leader_may_refuse_a_whole_fetch(peers: KafkaPeers, leader: Scripted) -> None:
    leader.script[FetchRequest] = lambda request, version: FetchResponse(error_code=77)
    with refuses(Code.STALE_BROKER_EPOCH):
        await peers.fetch(THERE, ASK, 5)


@run_by(run_scenario)
async def test_invalid_fetch_reply_counts_as_no_reply(peers: KafkaPeers, leader: Scripted) -> None:
    leader.script[FetchRequest] = lambda request, version: b"\0\0\0\x0a\0\0\0\1garbage"
    with pytest.raises(Unavailable):
        await peers.fetch(THERE, ASK, 5)
    leader.script[FetchRequest] = lambda request, version: b"HTTP/1.1 400 Bad Request"
    with pytest.raises(Unavailable) as caught:
        await peers.fetch(THERE, ASK, 5)
    assert not caught.value.final, "that address may be a broker's again"

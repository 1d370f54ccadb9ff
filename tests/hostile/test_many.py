"""Tests of very many partitions and producers, and of requests for very many partitions."""

from __future__ import annotations

import asyncio

from tests.e2e.kafka_site import RawClient, batch
from tests.hostile.attacks import attack
from tests.hostile.target import AttackedBroker, rounds, scale
from tests.hostile.test_records import now_ms, produce
from tiered.errors import Code
from tiered.records.batch import encode_batch
from tiered_api.kafka.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tiered_api.kafka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tiered_api.kafka.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tiered_api.kafka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest
from tiered_api.kafka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

EMPTY, TOPICS = scale(100, 5_000), 12
"""Partitions of a topic, and topics, that nobody writes to."""


@attack(
    tiered_partitions_max_per_broker=EMPTY * TOPICS,
    tiered_partitions_max=2 * EMPTY * TOPICS,
    stop_seconds=scale(30, 10),
)
async def test_partitions_are_bounded_and_many_empty_ones_stop_soon(to: AttackedBroker) -> None:
    async with to.attack("partitions", memory=60 + EMPTY * TOPICS * 5 // 1000):
        client = await to.client()
        for n in range(TOPICS):
            request = CreateTopicsRequest([CreatableTopic(to.name(f"t{n}"), EMPTY, 1)], 60_000)
            made = await client.ask(request, 7, CreateTopicsResponse)
            assert made.topics[0].error_code == 0
        refused = await client.ask(
            CreateTopicsRequest([CreatableTopic(to.name("more"), 1, 1)], 60_000), 7, CreateTopicsResponse
        )
        assert refused.topics[0].error_code == Code.POLICY_VIOLATION.number
        assert "tiered.partitions.max.per.broker" in str(refused.topics[0].error_message)


@attack(tiered_producer_ids_max_per_partition=1_000)
async def test_invented_producers_are_bounded(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    clients = [await to.client() for _ in range(4)]
    codes: list[int] = []

    async def invent(start: int) -> None:
        for n in range(start, scale(1_200, 100_000), len(clients)):
            data = encode_batch([(now_ms(), None, b"v", ())], producer_id=n, producer_epoch=0, base_sequence=0)
            codes.extend(await produce(clients[start], to.name("t"), (0, bytearray(data))))

    async with to.attack("invented producers", memory=50):
        await asyncio.gather(*(invent(start) for start in range(len(clients))))
        assert set(codes) <= {0, Code.NOT_ENOUGH_REPLICAS.number, Code.OUT_OF_ORDER_SEQUENCE_NUMBER.number}
        assert codes.count(0) == 750, "one address takes three quarters"


def fetch_all_partitions(topic: str, count: int, wait_ms: int) -> FetchRequest:
    parts = [FetchPartition(partition=p, fetch_offset=0, partition_max_bytes=1 << 20) for p in range(count)]
    topics = [FetchTopic(topic=topic, partitions=parts)]
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 24, topics=topics)


@attack(tiered_partitions_max_per_broker=20_000)
async def test_fetches_of_many_partitions_delay_nobody(to: AttackedBroker) -> None:
    count, clients = scale(1_200, 10_000), scale(3, 10)
    await to.create(CreatableTopic(to.name("t"), count, 1))
    crowd = [await to.client() for _ in range(clients)]
    again = crowd[0].frame(fetch_all_partitions(to.name("t"), count, 0), 11)

    async def go_round(client: RawClient) -> None:
        for _ in rounds(2, 10):
            await client.send(again)
            assert len(await client.read_reply()) > 30 * count

    async with to.attack("fetches of 10,000 partitions in a loop", memory=150):
        await asyncio.gather(*map(go_round, crowd))


def produce_to_each(topic: str, count: int, acks: int, key: bytes | None = None) -> ProduceRequest:
    data = encode_batch([(now_ms(), key, b"v", ())])
    parts = [PartitionProduceData(index=p, records=bytearray(data)) for p in range(count)]
    return ProduceRequest(acks=acks, timeout_ms=60_000, topic_data=[TopicProduceData(name=topic, partition_data=parts)])


@attack(tiered_partitions_max_per_broker=20_000)
async def test_records_for_many_partitions_delay_nobody(to: AttackedBroker) -> None:
    count = scale(400, 10_000)
    await to.create(CreatableTopic(to.name("t"), count, 1))
    async with to.attack("L3 a record for each of 10,000 partitions", memory=150):
        crowd = [await to.client() for _ in range(2)]

        async def write(client: RawClient, acks: int) -> None:
            for _ in rounds(1, 3):
                answer = await client.ask(produce_to_each(to.name("t"), count, acks), 9, ProduceResponse)
                assert {part.error_code for part in answer.responses[0].partition_responses} == {0}

        await asyncio.gather(*(write(client, acks) for client, acks in zip(crowd, (1, -1), strict=True)))


@attack(tiered_partitions_max_per_broker=20_000)
async def test_topic_of_many_partitions_is_created_and_deleted_beside_others(to: AttackedBroker) -> None:
    count = scale(400, 10_000)
    async with to.attack("L3 a topic of 10,000 partitions comes and goes", memory=20 + count * 10 // 1000):
        for _ in range(scale(1, 2)):
            await to.create(CreatableTopic(to.name("t"), count, 1))
            client = await to.client()
            request = DeleteTopicsRequest(topics=[DeleteTopicState(to.name("t"))], timeout_ms=60_000)
            answer = await client.ask(request, 6, DeleteTopicsResponse)
            assert answer.responses[0].error_code == 0


@attack(tiered_partitions_max_per_broker=20_000, stop_seconds=60)
async def test_records_of_very_many_partitions_are_deleted_beside_others(to: AttackedBroker) -> None:
    count = scale(400, 10_000)
    configs = [CreatableTopicConfig("remote.storage.enable", "false")]
    await to.create(CreatableTopic(to.name("t"), count, 1, configs=configs))
    client = await to.client()
    await client.ask(produce_to_each(to.name("t"), count, 1), 9, ProduceResponse)
    wanted = [DeleteRecordsPartition(number, -1) for number in range(count)]
    async with to.attack("records of 10,000 partitions are deleted", memory=60):
        for _ in range(scale(1, 2)):
            request = DeleteRecordsRequest([DeleteRecordsTopic(to.name("t"), wanted)], 60_000)
            answer = await client.ask(request, 2, DeleteRecordsResponse)
            assert {(row.error_code, row.low_watermark) for row in answer.topics[0].partitions} == {(0, 1)}


@attack(tiered_partitions_max_per_broker=20_000)
async def test_offsets_of_very_many_partitions_are_committed_beside_others(to: AttackedBroker) -> None:
    count = scale(400, 10_000)
    committed = [OffsetCommitRequestPartition(number, 7) for number in range(count)]
    commit = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic(to.name("t"), partitions=committed)])
    asked = [OffsetFetchRequestTopics(to.name("t"), partition_indexes=list(range(count)))]
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=asked)])
    await to.create(CreatableTopic(to.name("t"), count, 1))
    client = await to.client()
    find = FindCoordinatorRequest(coordinator_keys=["g"])
    found = await client.ask(find, 4, FindCoordinatorResponse)
    assert found.coordinators[0].error_code == 0
    async with to.attack("offsets of 10,000 partitions", memory=60):
        for _ in rounds(1, 3):
            made = await client.ask(commit, 9, OffsetCommitResponse)
            assert {row.error_code for row in made.topics[0].partitions} == {0}
            known = await client.ask(fetch, 9, OffsetFetchResponse)
            assert {row.committed_offset for row in known.groups[0].topics[0].partitions} == {7}


@attack(tiered_partitions_max_per_broker=20_000)
async def test_record_that_wakes_many_fetches_delays_nobody(to: AttackedBroker) -> None:
    count = scale(1_200, 10_000)
    await to.create(CreatableTopic(to.name("t"), count, 1))
    crowd = [await to.client() for _ in range(scale(5, 45))]
    wait = crowd[0].frame(fetch_all_partitions(to.name("t"), count, 60_000), 11)
    async with to.attack("one record wakes fetches of 10,000 partitions", memory=scale(100, 400)):
        for client in crowd:
            await client.send(wait)
        await asyncio.sleep(scale(1, 10))
        honest = await to.client()
        assert await produce(honest, to.name("t"), (count // 2, batch([b"v"]))) == [0]
        await asyncio.gather(*(client.read_reply() for client in crowd))


@attack(tiered_partitions_max_per_broker=20_000, stop_seconds=60)
async def test_backlogs_of_connections_delay_no_small_request_of_their_address(to: AttackedBroker) -> None:
    topics, connections = scale(2, 10), scale(4, 60)
    await to.create(*(CreatableTopic(to.name(f"t{n}"), scale(100, 1_000), 1) for n in range(topics)))
    crowd = [await to.client() for _ in range(connections)]
    frame = crowd[0].frame(MetadataRequest(topics=None), 12)

    async def burden(client: RawClient) -> None:
        for _ in rounds(2, 60):  # long enough for some hundred heartbeats
            for _ in range(5):
                await client.send(frame)
            for _ in range(5):
                assert len(await client.read_reply()) > 1000

    async with to.attack("backlogs of many connections", memory=300, probe_kind="heartbeat"):
        await asyncio.gather(*map(burden, crowd))


@attack()
async def test_requests_of_many_topics_delay_nobody(to: AttackedBroker) -> None:
    dotted = [CreatableTopic(f"a.name_with.many_dots.{n}", 1, 1) for n in range(scale(500, 8_000))]
    short = [CreatableTopic(to.name(f"t{n}"), 1, 1) for n in range(scale(1_000, 25_000))]
    client = await to.client()
    frames = [client.frame(CreateTopicsRequest(each, 60_000, True), 4) for each in (dotted, short)]
    async with to.attack("CreateTopics of very many names", memory=200):
        for frame in frames:
            for _ in rounds(1, 3):
                await client.send(frame)
                assert len(await client.read_reply()) > 1000

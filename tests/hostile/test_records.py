"""Tests of batches that expand when they are opened, and of headers that lie."""

from __future__ import annotations

import asyncio
import random
import struct
import time

import pytest

from tests.e2e.kafka_site import RawClient
from tests.hostile.attacks import attack
from tests.hostile.target import AttackedBroker, rounds, scale
from tests.seeds import chosen
from tiered.config.settings import Settings
from tiered.errors import Code
from tiered.records.batch import decode_header, encode_batch
from tiered.records.model import CRC_AT, CRC_FROM, Codec
from tiered.records.native import crc32c
from tiered_api.http.partitions.records import BATCHES_MAX
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig
from tiered_api.kafka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

DAY_MS = 86_400_000
DECOMPRESSED_BYTES = 1_000_000
"""Size of a decompressed batch that every small batch may have."""


def now_ms() -> int:
    return int(time.time() * 1000)


def make_zstd_batch(timestamp: int, size: int = DECOMPRESSED_BYTES) -> bytearray:
    return bytearray(encode_batch([(timestamp, None, bytes(size), ())], codec=Codec.ZSTD))


def with_max_timestamp(data: bytearray, max_timestamp: int) -> bytearray:
    """Returns the batch with a header that claims a later record than the batch has."""
    struct.pack_into(">q", data, 35, max_timestamp)
    struct.pack_into(">I", data, CRC_AT, crc32c(data[CRC_FROM:]))
    return data


async def produce(client: RawClient, topic: str, *records: tuple[int, bytearray]) -> list[int]:
    """Returns the error codes, by entry."""
    parts = [PartitionProduceData(index=index, records=data) for index, data in records]
    topics = [TopicProduceData(name=topic, partition_data=parts)]
    answer = await client.ask(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=topics), 9, ProduceResponse)
    return [part.error_code for part in answer.responses[0].partition_responses]


async def read(to: AttackedBroker, path: str, accept: str = "application/json") -> tuple[int, int]:
    """Returns status and length of a reply, of which it reads at most 64 MiB."""

    def ask() -> tuple[int, int]:
        connection = to.http(60)
        connection.request("GET", path, headers={"Accept": accept})
        response = connection.getresponse()
        size = len(response.read(1 << 26) if "event" not in accept else response.read(1000))
        connection.close()
        return response.status, size

    return await asyncio.to_thread(ask)


@attack(tiered_partitions_max_per_broker=20_000)
async def test_refused_timestamps_open_a_bounded_number_of_bytes(to: AttackedBroker) -> None:
    count = scale(500, 9_000)
    await to.create(CreatableTopic(to.name("t"), 10, 1))
    await to.create(CreatableTopic(to.name("many"), count, 1))
    late = make_zstd_batch(now_ms() + 2 * DAY_MS)
    async with to.attack("refused timestamps", memory=150):
        client = await to.client()
        for _ in rounds(2, 10):
            codes = await produce(client, to.name("t"), *[(0, late)] * count)
            assert set(codes) <= {Code.INVALID_TIMESTAMP.number, Code.INVALID_REQUEST.number}
            codes = await produce(client, to.name("many"), *((p, late) for p in range(count)))
            assert set(codes) == {Code.INVALID_TIMESTAMP.number}


@attack()
async def test_false_headers_make_time_lookups_open_few_batches(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    client = await to.client()
    for _ in range(scale(50, 1_000)):
        assert await produce(
            client, to.name("t"), (0, with_max_timestamp(make_zstd_batch(now_ms() - 1000), now_ms() + 1000))
        ) == [0]
    async with to.attack("false claims of time", memory=150):
        client = await to.client()
        wanted = ListOffsetsPartition(0, -1, now_ms() + 500)
        for _ in range(scale(20, 300)):
            request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(to.name("t"), [wanted])])
            answer = await client.ask(request, 5, ListOffsetsResponse)
            assert answer.topics[0].partitions[0].error_code == 0
            status, _ = await read(
                to, f"/topics/{to.name('t')}/partitions/0/records?timestamp={now_ms() + 500}&max_bytes=1"
            )
            assert status in (200, 400, 404, 503)


@attack()
async def test_huge_index_interval_does_not_make_fetches_slow(to: AttackedBroker) -> None:
    sparse = [CreatableTopicConfig("index.interval.bytes", "2147483647")]
    await to.create(CreatableTopic(to.name("t"), 1, 1, configs=sparse))
    body = bytes(encode_batch([(now_ms(), None, b"", ())])) * BATCHES_MAX
    bodies = scale(25, 750)
    for _ in range(bodies):
        connection = to.http(60)
        headers = {"Content-Type": "application/octet-stream"}
        connection.request("POST", f"/topics/{to.name('t')}/partitions/0/records", body, headers)
        assert connection.getresponse().status == 200
        connection.close()
    async with to.attack("fetches without an index", memory=60):
        client = await to.client()
        for n in range(scale(20, 200)):
            part = FetchPartition(partition=0, fetch_offset=bodies * BATCHES_MAX - 5 - n, partition_max_bytes=100)
            wanted = [FetchTopic(topic=to.name("t"), partitions=[part])]
            request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=100, topics=wanted)
            reply = await client.ask(request, 11, FetchResponse)
            assert reply.responses[0].partitions[0].error_code == 0


@attack(stop_seconds=60)
async def test_waiting_time_lookups_take_no_memory_and_others_get_their_turn(to: AttackedBroker) -> None:
    count, now = scale(8, 32), now_ms()
    await to.create(CreatableTopic(to.name("t"), count, 1), CreatableTopic(to.name("honest"), 1, 1))
    client = await to.client()
    noise = random.Random(1).randbytes(690_000)
    records = [(now - 5000, None, noise, ()), (now - 5000, None, bytes(60_000_000), ()), (now, None, b"", ())]
    big = bytearray(encode_batch(records, codec=Codec.GZIP))
    for number in range(count):
        assert await produce(client, to.name("t"), (number, big)) == [0]
    lines = [(now, None, noise[n * 100 : n * 100 + 100], ()) for n in range(300)]
    assert await produce(client, to.name("honest"), (0, bytearray(encode_batch(lines, codec=Codec.ZSTD)))) == [0]
    wanted = [ListOffsetsPartition(number, -1, now) for number in range(count)]
    async with to.attack("look-ups by time that wait", memory=250):
        for _ in range(scale(20, 40)):
            crowd = await to.client()
            await crowd.send(crowd.frame(ListOffsetsRequest(-1, 0, [ListOffsetsTopic(to.name("t"), wanted)]), 5))
        honest = await to.client("127.0.0.9")
        request = ListOffsetsRequest(
            -1, 0, [ListOffsetsTopic(to.name("honest"), [ListOffsetsPartition(0, -1, now - 100)])]
        )
        answer = await honest.ask(request, 5, ListOffsetsResponse)
        assert [(each.error_code, each.offset) for each in answer.topics[0].partitions] == [(0, 0)]


@attack()
async def test_record_of_many_headers_does_not_become_objects(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    client = await to.client()
    headers = (("", None),) * (DECOMPRESSED_BYTES // 2 - 100)
    crowded = bytearray(encode_batch([(now_ms(), None, None, headers)], codec=Codec.ZSTD))
    assert len(crowded) < 2000
    for _ in range(scale(3, 30)):
        assert await produce(client, to.name("t"), (0, crowded)) == [0]
    async with to.attack("half a million headers in a record", memory=400):
        path = f"/topics/{to.name('t')}/partitions/0/records?format=binary"
        for _ in rounds(2, 5):
            found = await asyncio.gather(read(to, path), read(to, path), read(to, path, "text/event-stream"))
            assert all(size < 1 << 26 for _, size in found)


def make_lines(codec: Codec, count: int, size: int = 2000) -> bytearray:
    """Returns equal lines in one batch, each a millisecond later than the one before."""
    line, first = b"x" * size, now_ms() - count
    return bytearray(encode_batch([(first + number, None, line, ()) for number in range(count)], codec=codec))


@pytest.mark.parametrize("codec", chosen([Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], [Codec.SNAPPY]))
@attack()
async def test_batch_that_compresses_well_is_read_in_little_memory(to: AttackedBroker, codec: Codec) -> None:
    """200 MiB of a monotonous log are a batch of some hundred kilobytes, which Kafka takes."""
    count = 100_000
    made = make_lines(codec, count)
    last_ms = decode_header(made).max_timestamp
    sized = [CreatableTopicConfig("max.message.bytes", str(Settings().tiered_max_message_bytes_max))]
    await to.create(CreatableTopic(to.name("t"), 1, 1, configs=sized if codec in (Codec.SNAPPY, Codec.LZ4) else []))
    async with to.attack(f"200 MiB of lines in {codec.name}", memory=250):
        client = await to.client()
        assert await produce(client, to.name("t"), (0, made)) == [0]
        for offset in (0, count // 2, count - 1):
            path = f"/topics/{to.name('t')}/partitions/0/records?offset={offset}&max_bytes=100000"
            one, two = await asyncio.gather(read(to, path), read(to, path))
            assert one == two and one[0] == 200 and one[1] > 500
        status, body = await asyncio.to_thread(
            to.ask, "GET", f"/topics/{to.name('t')}/partitions/0/records?offset={count - 3}"
        )
        assert status == 200 and [each["offset"] for each in body["records"]] == [count - 3, count - 2, count - 1]
        wanted = ListOffsetsPartition(0, -1, last_ms - 10)
        answer = await client.ask(
            ListOffsetsRequest(-1, 0, [ListOffsetsTopic(to.name("t"), [wanted])]), 5, ListOffsetsResponse
        )
        assert (answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].offset) == (0, count - 11)


@pytest.mark.parametrize("codec", chosen([Codec.GZIP, Codec.LZ4, Codec.ZSTD], [Codec.ZSTD]))
@attack()
async def test_bombs_within_the_limit_of_a_message_take_little_memory(to: AttackedBroker, codec: Codec) -> None:
    """A request for the last record makes the broker open up to a gigabyte, in pieces."""
    count = {Codec.GZIP: scale(300, 900), Codec.LZ4: 230, Codec.ZSTD: scale(300, 2_000)}[codec]
    now = now_ms()
    records = [(now + number, None, bytes(1_000_000), ()) for number in range(count)]
    bomb = bytearray(encode_batch(records, codec=codec))
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    client = await to.client()
    async with to.attack(f"a bomb of {codec.name}", memory=250):
        assert await produce(client, to.name("t"), (0, bomb)) == [0]
        for _ in rounds(1, 5):
            path = f"/topics/{to.name('t')}/partitions/0/records?offset={count - 1}"
            found = await asyncio.gather(read(to, path), read(to, path), read(to, path))
            assert all(status == 200 and size >= 1_000_000 for status, size in found)
            wanted = ListOffsetsPartition(0, -1, now + count - 1)
            request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(to.name("t"), [wanted])])
            answer = await client.ask(request, 5, ListOffsetsResponse)
            assert answer.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize("codec", chosen([Codec.GZIP, Codec.LZ4, Codec.ZSTD], [Codec.ZSTD]))
@attack(stop_seconds=60)
async def test_bombs_for_compacted_topics_are_opened_beside_the_loop(to: AttackedBroker, codec: Codec) -> None:
    """Each record needs a key, so the broker opens what it takes: 1 GB of 1 MB, or of 60 KB."""
    count = {Codec.GZIP: scale(15, 60), Codec.LZ4: 15, Codec.ZSTD: scale(15, 60)}[codec]
    records = [(now_ms(), b"k", bytes(16_000_000), ()) for _ in range(count)]
    bomb = bytearray(encode_batch(records, codec=codec))
    compacted = [CreatableTopicConfig("cleanup.policy", "compact")]
    await to.create(CreatableTopic(to.name("t"), 4, 1, configs=compacted))
    async with to.attack(f"bombs of {codec.name} with keys", memory=250):
        clients = [await to.client() for _ in range(scale(3, 8))]
        for _ in rounds(1, 5):
            codes = await asyncio.gather(*(produce(each, to.name("t"), (0, bomb), (1, bomb)) for each in clients))
            assert {code for each in codes for code in each} <= {0, Code.REQUEST_TIMED_OUT.number}

"""Tests of batches that expand when they are opened, and of headers that lie."""

from __future__ import annotations

import asyncio
import http.client
import struct
import time
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.kafka_site import RawClient
from tests.hostile.target import AttackedBroker, attacked_broker, scale
from tiered.errors import Code
from tiered.records.batch import encode_batch
from tiered.records.model import CRC_AT, CRC_FROM, Codec
from tiered.records.native import crc32c
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic
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
        connection = http.client.HTTPConnection(urlsplit(to.served.url).netloc, timeout=60)
        connection.request("GET", path, headers={"Accept": accept})
        response = connection.getresponse()
        size = len(response.read(1 << 26) if "event" not in accept else response.read(1000))
        connection.close()
        return response.status, size

    return await asyncio.to_thread(ask)


def test_refused_timestamps_open_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    async def scenario(to: AttackedBroker) -> None:
        count = scale(500, 9_000)
        await to.create(CreatableTopic("t", 10, 1))
        await to.create(CreatableTopic("many", count, 1))
        late = make_zstd_batch(now_ms() + 2 * DAY_MS)
        async with to.attack("refused timestamps", memory=150):
            client = await to.client()
            for _ in range(scale(2, 10)):
                codes = await produce(client, "t", *[(0, late)] * count)
                assert set(codes) <= {Code.INVALID_TIMESTAMP.number, Code.INVALID_REQUEST.number}
                codes = await produce(client, "many", *((p, late) for p in range(count)))
                assert set(codes) == {Code.INVALID_TIMESTAMP.number}

    with attacked_broker(tmp_path / "data", tiered_partitions_max_per_broker=20_000) as to:
        asyncio.run(scenario(to))


def test_false_headers_make_time_lookups_open_few_batches(tmp_path: Path) -> None:
    async def scenario(to: AttackedBroker) -> None:
        await to.create(CreatableTopic("t", 1, 1))
        client = await to.client()
        for _ in range(scale(50, 1_000)):
            assert await produce(
                client, "t", (0, with_max_timestamp(make_zstd_batch(now_ms() - 1000), now_ms() + 1000))
            ) == [0]
        async with to.attack("false claims of time", memory=150):
            client = await to.client()
            wanted = ListOffsetsPartition(0, -1, now_ms() + 500)
            for _ in range(scale(20, 300)):
                request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [wanted])])
                answer = await client.ask(request, 5, ListOffsetsResponse)
                assert answer.topics[0].partitions[0].error_code == 0
                status, _ = await read(to, f"/topics/t/partitions/0/records?timestamp={now_ms() + 500}&max_bytes=1")
                assert status in (200, 400, 404, 503)

    with attacked_broker(tmp_path / "data") as to:
        asyncio.run(scenario(to))


def test_record_of_many_headers_does_not_become_objects(tmp_path: Path) -> None:
    async def scenario(to: AttackedBroker) -> None:
        await to.create(CreatableTopic("t", 1, 1))
        client = await to.client()
        headers = (("", None),) * (DECOMPRESSED_BYTES // 2 - 100)
        crowded = bytearray(encode_batch([(now_ms(), None, None, headers)], codec=Codec.ZSTD))
        assert len(crowded) < 2000
        for _ in range(scale(3, 30)):
            assert await produce(client, "t", (0, crowded)) == [0]
        async with to.attack("half a million headers in a record", memory=400):
            path = "/topics/t/partitions/0/records?format=binary"
            for _ in range(scale(2, 5)):
                found = await asyncio.gather(read(to, path), read(to, path), read(to, path, "text/event-stream"))
                assert all(size < 1 << 26 for _, size in found)

    with attacked_broker(tmp_path / "data") as to:
        asyncio.run(scenario(to))

"""Tests of many readers of the end of a log over HTTP, and of many requests to clean logs. At full size only."""

from __future__ import annotations

import asyncio
import http.client

import pytest

from tests.hostile.attacks import attack
from tests.hostile.target import FULL, AttackedBroker
from tests.hostile.test_many import produce_to_each
from tests.hostile.test_records import now_ms, produce
from tiered.errors import Code
from tiered.records.batch import encode_batch
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig
from tiered_api.kafka.protocol.messages.produce import ProduceResponse
from tiered_api.kafka.protocol.messages.tiered_compact import (
    CompactedTopic,
    TieredCompactRequest,
    TieredCompactResponse,
)

pytestmark = pytest.mark.skipif(not FULL, reason="an attack at full size: make hostile")

CLIENTS, PARTITIONS = 4, 2_000
READERS, READS = 16, 60


def get(connection: http.client.HTTPConnection, path: str, accept: str) -> int:
    connection.request("GET", path, headers={"Accept": accept})
    response = connection.getresponse()
    response.read()
    return response.status


@attack()
async def test_readers_of_the_newest_records_delay_nobody(to: AttackedBroker) -> None:
    """Each reader asks for the state of the partition, then for its records from the start, a time, and the end."""
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    client = await to.client()
    data = encode_batch([(now_ms(), None, b'{"text": "%b"}' % (b"x" * 80), ())] * 2_000)
    for _ in range(READS):
        assert await produce(client, to.name("t"), (0, bytearray(data))) == [0]
    path = f"/topics/{to.name('t')}/partitions/0/records"

    def read(_: int) -> set[int]:
        connection = to.http(60)
        found = set[int]()
        for number in range(READS):
            kind = ("application/json", "application/octet-stream")[number % 2]
            found.add(get(connection, f"/tiered/v1{path.removesuffix('/records')}", "application/json"))
            for query in ("offset=0", "timestamp=1", "offset=latest&timeout=5", f"offset={number * 1_999}"):
                found.add(get(connection, f"{path}?{query}", kind))
        connection.close()
        return found

    async with to.attack("readers of the end of a log over HTTP", memory=250):
        found = await asyncio.gather(*(asyncio.to_thread(read, number) for number in range(READERS)))
        assert set().union(*found) <= {200, 503}


@attack(tiered_partitions_max_per_broker=20_000, stop_seconds=60)
async def test_requests_to_clean_many_logs_delay_nobody(to: AttackedBroker) -> None:
    """One client writes to all partitions, and several ask again and again for a clean of all of them."""
    configs = [
        CreatableTopicConfig("cleanup.policy", "compact"),
        CreatableTopicConfig("remote.storage.enable", "false"),
    ]
    await to.create(CreatableTopic(to.name("t"), PARTITIONS, 1, configs=configs))
    topics = [CompactedTopic(to.name("t"), None), CompactedTopic(to.name("t"), list(range(PARTITIONS)) * 20)]

    async def write() -> None:
        client = await to.client()
        for _ in range(4):
            made = await client.ask(produce_to_each(to.name("t"), PARTITIONS, 1, b"k"), 9, ProduceResponse)
            assert {each.error_code for each in made.responses[0].partition_responses} == {0}

    async def clean(_: int) -> None:
        client = await to.client()
        for number in range(6):
            got = await client.ask(TieredCompactRequest(topics, number % 3 > 0), 0, TieredCompactResponse)
            assert {each.error_code for each in got.partitions} == {Code.NONE.number}

    async with to.attack("requests to clean many logs", memory=200):
        await asyncio.gather(write(), *map(clean, range(CLIENTS)))

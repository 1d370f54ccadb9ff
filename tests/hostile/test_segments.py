"""Tests of a tenant that makes as many segments as it can, and of fetches that wait for nothing and need the bucket."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from tests.e2e.kafka_site import RawClient
from tests.hostile.attacks import attack
from tests.hostile.target import AttackedBroker, scale
from tests.hostile.test_records import now_ms, produce
from tests.metric_samples import samples
from tiered.errors import Code
from tiered.records.batch import encode_batch
from tiered_api.kafka.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tiered_api.kafka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

PARTITIONS = 4
SMALLEST = {
    "segment.bytes": "1048576",
    "segment.index.bytes": "4",
    "index.interval.bytes": "0",
    "segment.ms": "1",
    "segment.jitter.ms": "9223372036854775807",
}
"""The settings with which a topic gets most segments."""
MIB = 1 << 20


def topic(name: str, configs: dict[str, str], partitions: int = 1) -> CreatableTopic:
    rows = [CreatableTopicConfig(key, value) for key, value in configs.items()]
    return CreatableTopic(name, partitions, 1, configs=rows)


def one_record(size: int) -> bytearray:
    return bytearray(encode_batch([(now_ms(), None, os.urandom(size), ())]))


def count_requests(to: AttackedBroker, *verbs: str) -> float:
    """Returns the requests of the bucket so far."""
    found = samples(to.ask("GET", "/metrics")[1], "tiered_store_requests_total")
    return sum(value for (verb, _), value in found.items() if verb in verbs)


def count_files(directory: Path, suffix: str) -> int:
    return sum(name.endswith(suffix) for _, _, names in os.walk(directory) for name in names)


@attack()
async def test_records_cost_no_segment_each(to: AttackedBroker) -> None:
    client = await to.client()
    for number, name in enumerate(("segment.bytes", "internal.segment.bytes")):
        made = await client.ask(
            CreateTopicsRequest([topic(to.name(f"small-{number}"), {name: "1024"})], 60_000), 7, CreateTopicsResponse
        )
        assert made.topics[0].error_code == Code.INVALID_CONFIG.number
    await to.create(topic(to.name("t"), SMALLEST, PARTITIONS))
    rounds = scale(60, 6_000)
    puts, open_files = count_requests(to, "put", "upload"), len(os.listdir(f"/proc/{to.pid}/fd"))
    async with to.attack("segments of few records", memory=scale(40, 150)):
        for _ in range(rounds):
            parts = [(number, one_record(700)) for number in range(PARTITIONS)]
            assert await produce(client, to.name("t"), *parts) == [0] * PARTITIONS
        segments = PARTITIONS * (1 + rounds * 800 // MIB)
        assert count_files(to.directory / "log", ".log") <= segments
        assert count_files(to.directory / "bucket", ".seg") <= segments
        assert count_requests(to, "put", "upload") - puts <= 10 + 4 * segments
        assert len(os.listdir(f"/proc/{to.pid}/fd")) - open_files <= 20 + 4 * segments


async def fetch_at_once(client: RawClient, name: str, offset: int) -> bytes:
    """Returns the records of a fetch that waits for no byte and no millisecond."""
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=MIB, topics=[FetchTopic(topic=name, partitions=[wanted])]
    )
    got = await client.ask(request, 11, FetchResponse)
    [part] = got.responses[0].partitions
    assert part.error_code == 0
    return bytes(part.records or b"")


@attack(log_retention_check_interval_ms=50, remote_log_manager_task_interval_ms=50, remote_fetch_max_wait_ms=20_000)
async def test_fetches_that_wait_for_nothing_read_the_bucket_for_a_reply(to: AttackedBroker) -> None:
    await to.create(topic(to.name("t"), {"segment.bytes": "1048576", "local.retention.bytes": "1"}))
    client = await to.client()
    batches = scale(24, 400)
    for _ in range(batches):
        assert await produce(client, to.name("t"), (0, one_record(200_000))) == [0]
    cold = batches - 8
    deadline = time.monotonic() + 60
    while to.ask("GET", f"/tiered/v1/topics/{to.name('t')}/partitions/0")[1]["local_start_offset"] < cold:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    gets = count_requests(to, "get")
    clients = [await to.client() for _ in range(4)]

    async def read(each: RawClient) -> int:
        return sum([bool(await fetch_at_once(each, to.name("t"), offset)) for offset in range(cold)])

    async with to.attack("fetches that wait for nothing", memory=200):
        found = await asyncio.gather(*map(read, clients))
        assert found == [cold] * len(clients)
        assert count_requests(to, "get") - gets <= 2 * cold

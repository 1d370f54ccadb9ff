"""Tests of batches for compacted topics that compress well: each record has a key, and the loop does not open them."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest

from tests.e2e.kafka_site import KafkaBroker, RawClient, run
from tests.scenario import run_by
from tests.seeds import chosen
from tiered.errors import Code
from tiered.records.batch import decode_header, encode_batch, set_max_timestamp
from tiered.records.model import Codec
from tiered.testing import cluster
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

NOW = 1_700_000_000_000
LINE = b"x" * 5000
PACKED = [Codec.GZIP, Codec.LZ4, Codec.ZSTD]


def lines(codec: Codec, keyless: int = -1, count: int = 20_000) -> bytes:
    """Returns a batch of 100 MB of lines with keys, but for one of them."""
    records = [(NOW + n, None if n == keyless else b"%d" % (n % 7), LINE, ()) for n in range(count)]
    made = encode_batch(records, codec=codec)
    assert len(made) < 1 << 20
    return made


async def produce(
    client: RawClient, *records: tuple[str, int, bytes], acks: int = 1
) -> dict[tuple[str, int], PartitionProduceResponse]:
    topics: dict[str, list[PartitionProduceData]] = {}
    for topic, index, data in records:
        topics.setdefault(topic, []).append(PartitionProduceData(index=index, records=bytearray(data)))
    asked = [TopicProduceData(name=name, partition_data=parts) for name, parts in topics.items()]
    reply = await client.ask(ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=asked), 9, ProduceResponse)
    return {(topic.name, part.index): part for topic in reply.responses for part in topic.partition_responses}


@pytest.mark.parametrize("codec", chosen(PACKED, [Codec.LZ4]))
@run_by(run, "tmp_path")
async def test_large_batch_with_keys_is_taken_and_one_without_is_refused(site: KafkaBroker, *, codec: Codec) -> None:
    replica = await site.create("t", cleanup_policy="compact")
    client = await site.client()
    for _ in range(2):
        reply = (await produce(client, ("t", 0, lines(codec))))["t", 0]
        assert (reply.error_code, reply.base_offset % 20_000) == (0, 0)
    refused = (await produce(client, ("t", 0, lines(codec, keyless=15_000))))["t", 0]
    assert refused.error_code == Code.INVALID_RECORD.number
    assert "record 15000 has no key" in (refused.error_message or "")
    assert replica.log.end_offset == 40_000


@run_by(run, "tmp_path")
async def test_requests_of_many_partitions_keep_their_order_and_results(site: KafkaBroker) -> None:
    """Appending stops before each large batch, and goes on behind it. The next request of the connection waits."""
    small = encode_batch([(NOW, b"k", b"v", ())])
    big, keyless = lines(Codec.ZSTD), lines(Codec.ZSTD, keyless=19_999)
    compacted = await site.create("t", 4, cleanup_policy="compact")
    await site.create("plain", 2)
    client = await site.client()
    asked = [
        ("t", 0, small), ("t", 1, big), ("plain", 0, keyless), ("t", 2, keyless), ("t", 9, small), ("t", 3, big),
        ("plain", 1, small),
    ]  # fmt: skip
    found = await produce(client, *asked)
    codes = {place: each.error_code for place, each in found.items()}
    assert codes == {
        ("t", 0): 0, ("t", 1): 0, ("t", 2): Code.INVALID_RECORD.number, ("t", 3): 0,
        ("t", 9): Code.UNKNOWN_TOPIC_OR_PARTITION.number, ("plain", 0): 0, ("plain", 1): 0,
    }  # fmt: skip
    ends = {number: site.broker.leader_replica("t", number).log.end_offset for number in range(4)}
    assert ends == {0: 1, 1: 20_000, 2: 0, 3: 20_000} and compacted.log.end_offset == 1
    topics = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=1, records=bytearray(big))])]
    after = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=1, records=bytearray(small))])]
    frames = [client.frame(ProduceRequest(acks=1, timeout_ms=9, topic_data=each), 9) for each in (topics, after)]
    await client.send(*frames)
    bases = [(await client.receive(ProduceResponse, 9)).responses[0].partition_responses[0].base_offset for _ in frames]
    assert bases == [20_000, 40_000]


@pytest.mark.parametrize("codec", chosen(PACKED, [Codec.LZ4]))
def test_large_batch_without_a_latest_timestamp_gets_that_of_its_records(tmp_path: Path, codec: Codec) -> None:
    """Some clients leave it unset. The records are opened then, and the header is rewritten."""
    unset = bytearray(lines(codec))
    newest = decode_header(unset).max_timestamp
    set_max_timestamp(unset, 0, -1)

    async def scenario(site: KafkaBroker) -> None:
        replica = await site.create("t")
        reply = (await produce(await site.client(), ("t", 0, bytes(unset))))["t", 0]
        assert (reply.error_code, newest) == (0, NOW + 19_999)
        found = replica.log.read(0, 1 << 20, end_offset=20_000)
        assert found is not None
        assert decode_header(found.file.pread(found.start, found.length)).max_timestamp == newest

    run(tmp_path, scenario)


@run_by(run, "tmp_path")
async def test_large_batches_of_one_body_get_the_time_of_the_log(site: KafkaBroker) -> None:
    """The first one is not changed before the second one is opened."""
    replica = await site.create("t", cleanup_policy="compact", message_timestamp_type="LogAppendTime")
    data = bytearray(encode_batch([(NOW, b"k", b"v", ())]) + lines(Codec.ZSTD))
    appended = await replica.append(data, acks=1)
    assert (appended.base_offset, appended.last_offset) == (0, 20_000) and appended.append_time_ms > NOW


@pytest.mark.parametrize("keyless", [-1, 19_999])
def test_large_batch_with_keys_is_written_over_http(keyless: int) -> None:
    with cluster() as broker:
        broker.create_topic("t", cleanup_policy="compact")
        connection = http.client.HTTPConnection(broker.http_url.removeprefix("http://"), timeout=60)
        headers = {"Content-Type": "application/octet-stream"}
        connection.request("POST", "/topics/t/partitions/0/records", lines(Codec.ZSTD, keyless), headers)
        response = connection.getresponse()
        body = response.read()
        assert (response.status == 200) == (keyless < 0), body
        assert keyless < 0 or b"record 19999 has no key" in body
        connection.close()

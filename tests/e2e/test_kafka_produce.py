"""Tests of Produce in every version: appended records, refusals and their texts, and the time of replies."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.e2e.kafka_site import KafkaBroker, batch, fetch, produce, run, values_of, wait_until
from tests.scenario import run_by
from tiered.controller.requests import DeleteTopic
from tiered.errors import Code
from tiered.records.batch import encode_batch
from tiered.records.model import Codec
from tiered.records.native import crc32c
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.messages.fetch import FetchResponse
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

NOW = 1_700_000_000_000
VERSIONS = range(3, 14)


def only(answer: ProduceResponse) -> PartitionProduceResponse:
    """Returns the one partition of a reply."""
    ((part,),) = [each.partition_responses for each in answer.responses]
    return part


def code(answer: ProduceResponse) -> Code:
    found = only(answer)
    return next(each for each in Code if each.number == found.error_code)


def change_field(data: bytearray, at: int, form: str, value: int) -> bytearray:
    """Returns a batch with one field set to another value, and a right CRC."""
    struct.pack_into(form, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


@pytest.mark.parametrize("version", VERSIONS)
@run_by(run, "tmp_path")
async def test_records_get_their_offsets_on_the_slow_and_the_fast_path(site: KafkaBroker, *, version: int) -> None:
    replica = await site.create("t", 2)
    await site.create("other")
    client = await site.client()
    for n in range(3):
        part = only(await client.ask(produce(replica, b"a%d" % n, b"b"), version, ProduceResponse))
        start = 0 if version >= 5 else -1
        assert (part.error_code, part.base_offset, part.log_append_time_ms) == (0, 2 * n, -1)
        assert (part.log_start_offset, part.record_errors, part.error_message) == (start, [], None)
    second = site.broker.leader_replica("t", 1)
    assert only(await client.ask(produce(second, b"c"), version, ProduceResponse)).base_offset == 0
    got = await client.ask(fetch((replica, 0), (second, 0)), 12, FetchResponse)
    assert [values_of(part.records) for part in got.responses[0].partitions] == [
        [b"a0", b"b", b"a1", b"b", b"a2", b"b"],
        [b"c"],
    ]


@pytest.mark.parametrize("version", [3, 5, 8, 9, 13])
@run_by(run, "tmp_path")
async def test_each_partition_of_a_request_has_its_own_result(site: KafkaBroker, *, version: int) -> None:
    replica = await site.create("t", 4)
    client = await site.client()
    broken = batch([b"v"])
    broken[-1] ^= 1
    records = [batch([b"v"]), broken, batch([b"w"]), None, batch([b"x"])]
    parts = [
        PartitionProduceData(index=index, records=data) for index, data in zip([0, 1, 7, 2, 3], records, strict=True)
    ]
    names = [("t", replica.topic_id), ("gone", "AAAAAAAAAAAAAAAAAAAAAQ")]
    topics = [TopicProduceData(name=name, topic_id=of, partition_data=parts) for name, of in names]
    answer = await client.ask(ProduceRequest(acks=1, timeout_ms=1, topic_data=topics), version, ProduceResponse)
    here, there = answer.responses
    found = [(part.index, part.error_code, part.base_offset) for part in here.partition_responses]
    assert found == [(0, 0, 0), (1, 2, -1), (7, 3, -1), (2, 87, -1), (3, 0, 0)]
    unknown = Code.UNKNOWN_TOPIC_ID if version >= 13 else Code.UNKNOWN_TOPIC_OR_PARTITION
    assert {part.error_code for part in there.partition_responses} == {unknown.number}
    words = [part.error_message for part in here.partition_responses]
    assert all((word is not None) == (version >= 8 and n in (1, 2, 3)) for n, word in enumerate(words))


@run_by(run, "tmp_path")
async def test_refused_batch_has_the_code_that_clients_handle(site: KafkaBroker) -> None:
    two = [(NOW, None, b"v", ())] * 2
    zstd = bytearray(encode_batch(two, codec=Codec.ZSTD))
    transactional = bytearray(encode_batch(two, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
    lying = bytearray(encode_batch(two))
    lying[lying.index(b"v") + 2 + 3] = 8  # offset delta of the second record
    cases = [
        (batch([b"v"])[:-1], 9, Code.INVALID_RECORD),
        (batch([b"v"]) + batch([b"w"]), 9, Code.INVALID_RECORD),
        (b"", 9, Code.INVALID_RECORD),
        (bytearray(b"\0" * 70), 9, Code.INVALID_RECORD),
        (batch([b"x" * 3000]), 9, Code.MESSAGE_TOO_LARGE),
        (zstd, 6, Code.UNSUPPORTED_COMPRESSION_TYPE),
        (zstd, 7, Code.NONE),
        (change_field(batch([b"v"]), 21, ">h", 7), 9, Code.UNSUPPORTED_COMPRESSION_TYPE),
        (change_field(batch([b"v"]), 21, ">h", 0x20), 9, Code.INVALID_RECORD),
        (change_field(batch([b"v"]), 57, ">i", 2), 9, Code.INVALID_RECORD),
        (change_field(lying, 57, ">i", 2), 9, Code.INVALID_RECORD),
        (transactional, 9, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ]
    replica = await site.create("t", max_message_bytes="2000")
    client = await site.client()
    for raw, version, expected in cases:
        before = replica.log.end_offset
        assert code(await client.ask(produce(replica, raw=raw), version, ProduceResponse)) is expected, expected
        assert (replica.log.end_offset > before) == (expected is Code.NONE)
    old = bytearray(encode_batch(two))
    old[16] = 1
    assert code(await client.ask(produce(replica, raw=old), 9, ProduceResponse)) is Code.INVALID_RECORD
    assert code(await client.ask(produce(replica, b"v", acks=2), 9, ProduceResponse)) is Code.INVALID_REQUIRED_ACKS


def test_invalid_records_are_named_from_version_8_on(tmp_path: Path) -> None:
    stamps = [NOW, NOW - 100_000, NOW, NOW - 200_000]
    for codec in (Codec.NONE, Codec.LZ4):

        async def scenario(site: KafkaBroker, codec: Codec = codec) -> None:
            replica = await site.create("t", message_timestamp_after_max_ms="0")
            client = await site.client()
            ahead = site.broker.world.clock.wall_ms() - NOW + 50_000
            raw = encode_batch([(stamp + ahead + 100_000, None, b"v", ()) for stamp in stamps], codec=codec)
            part = only(await client.ask(produce(replica, raw=raw), 8, ProduceResponse))
            assert part.error_code == Code.INVALID_TIMESTAMP.number
            assert [each.batch_index for each in part.record_errors] == [0, 1, 2]
            assert "is not within" in (part.record_errors[0].batch_index_error_message or "")
            assert only(await client.ask(produce(replica, raw=raw), 7, ProduceResponse)).record_errors == []

        run(tmp_path / codec.name, scenario)


@run_by(run, "tmp_path")
async def test_refused_batches_of_one_request_are_opened_to_one_bound(site: KafkaBroker) -> None:
    """One batch of some hundred bytes that expands to 8 MiB, or twenty of 100 KB: at most `DECODED_BYTES_MAX`
    are decompressed."""
    for partitions, size, named in ((1, 8 << 20, 0), (20, 100_000, 2)):
        name = f"t{partitions}"
        await site.create(name, partitions=partitions, message_timestamp_after_max_ms="0")
        client = await site.client()
        late = site.broker.world.clock.wall_ms() + 1_000_000
        raw = encode_batch([(late, None, bytes(size), ())], codec=Codec.ZSTD)
        parts = [PartitionProduceData(number, raw) for number in range(partitions)]
        request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name, partition_data=parts)])
        answer = await client.ask(request, 9, ProduceResponse)
        answers = answer.responses[0].partition_responses
        assert {each.error_code for each in answers} == {Code.INVALID_TIMESTAMP.number}
        assert sum(bool(each.record_errors) for each in answers) == named


@pytest.mark.parametrize("version", [3, 9, 13])
@run_by(run, "tmp_path")
async def test_repeated_partition_of_a_request_is_refused(site: KafkaBroker, *, version: int) -> None:
    replica = await site.create("t", partitions=2)
    client = await site.client()
    one, other = (bytes(batch([value])) for value in (b"v", b"w"))
    topics = [
        TopicProduceData("t", replica.topic_id, [PartitionProduceData(index, records) for index, records in parts])
        for parts in ([(0, one), (0, one)], [(1, one), (0, other)])
    ]  # fmt: skip
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics)
    answer = await client.ask(request, version, ProduceResponse)
    codes = [[each.error_code for each in topic.partition_responses] for topic in answer.responses]
    twice = Code.INVALID_REQUEST.number
    assert codes == [[0, twice], [0, twice]]
    assert replica.log.end_offset == 1


@run_by(run, "tmp_path")
async def test_invalid_record_is_named(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = await site.client()
    lying = batch([b"v", b"w"])
    lying[lying.index(b"v") + 2 + 3] = 8
    raw = change_field(lying, 57, ">i", 2)
    for version in (8, 9, 13):
        part = only(await client.ask(produce(replica, raw=raw), version, ProduceResponse))
        assert [each.batch_index for each in part.record_errors] == [1]
        assert part.error_message == part.record_errors[0].batch_index_error_message != None  # noqa: E711


@run_by(run, "tmp_path")
async def test_log_append_time_is_in_the_reply(site: KafkaBroker) -> None:
    replica = await site.create("t", message_timestamp_type="LogAppendTime")
    client = await site.client()
    before = site.broker.world.clock.wall_ms()
    for version in (3, 9, 9, 13):
        part = only(await client.ask(produce(replica, b"v"), version, ProduceResponse))
        assert before <= part.log_append_time_ms <= site.broker.world.clock.wall_ms()


@run_by(run, "tmp_path")
async def test_acks_0_gets_no_reply_and_an_error_ends_the_connection(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = await site.client()
    for version in (7, 9, 13):
        await client.send(client.frame(produce(replica, b"silent", acks=0), version))
        assert only(await client.ask(produce(replica, b"told"), version, ProduceResponse)).error_code == 0
    assert replica.log.end_offset == 6
    await client.send(
        client.frame(fetch((replica, 6), wait_ms=100), 12), client.frame(produce(replica, raw=b"", acks=0), 9)
    )
    await client.receive(FetchResponse, 12)
    assert await client.read_to_end() == b""
    assert site.count_refusals("acks_0") == 1 and site.server.pending_requests == 0


@run_by(run, "tmp_path")
async def test_produce_that_waits_for_an_fsync_delays_no_other_connection(site: KafkaBroker) -> None:
    synced = await site.create("synced", flush="ack")
    plain = await site.create("plain")
    client, other = await site.client(), await site.client()
    await client.send(
        client.frame(produce(synced, b"v"), 9),
        client.frame(produce(plain, b"behind"), 9),
        client.frame(produce(synced, b"w"), 9),
    )
    assert only(await other.ask(produce(plain, b"other"), 9, ProduceResponse)).error_code == 0
    for n, offset in enumerate((0, None, 1)):
        part = only(await client.receive(ProduceResponse, 9, n))
        assert part.error_code == 0 and offset in (None, part.base_offset)
    assert synced.log.flushed_offset == synced.high_watermark == 2


@run_by(run, "tmp_path")
async def test_recreated_topic_gets_its_records_and_the_old_one_none(site: KafkaBroker) -> None:
    old = await site.create("t")
    client = await site.client()
    for version in (9, 13):
        await client.ask(produce(old, b"v"), version, ProduceResponse)
        await client.ask(produce(old, b"v"), version, ProduceResponse)
    await site.broker.submit(DeleteTopic("t"))
    gone = await client.ask(produce(old, b"late"), 9, ProduceResponse)
    assert code(gone) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert code(await client.ask(produce(old, b"late"), 13, ProduceResponse)) is Code.UNKNOWN_TOPIC_ID
    new = await site.create("t")
    assert only(await client.ask(produce(new, b"fresh"), 9, ProduceResponse)).base_offset == 0
    assert code(await client.ask(produce(old, b"late"), 13, ProduceResponse)) is Code.UNKNOWN_TOPIC_ID
    assert only(await client.ask(produce(new, b"fresh"), 13, ProduceResponse)).base_offset == 1


@run_by(run, "tmp_path")
async def test_waiting_appends_are_cancelled_with_their_connection(site: KafkaBroker) -> None:
    replica = await site.create("t", flush="ack")
    client = await site.client()
    await client.send(*(client.frame(produce(replica, b"v"), 9) for _ in range(4)))
    await wait_until(lambda: site.server.context.requests[0] == 4)
    client.close()
    await wait_until(lambda: site.server.pending_requests == 0)
    await asyncio.sleep(0)
    assert site.count_refusals("fault") == 0


@run_by(run, "tmp_path", tiered_producer_ids_max_per_partition=4, tiered_producer_ids_max=6)
async def test_producer_state_of_a_partition_is_bounded_and_keeps_retries(site: KafkaBroker) -> None:
    """Once, 100,000 invented producer ids took 49 MB in three seconds."""
    replica = await site.create("t")
    client = await site.client()

    async def send(producer: int, sequence: int = 0) -> tuple[int, int]:
        now = site.broker.world.clock.wall_ms()
        data = encode_batch([(now, None, b"v", ())], producer_id=producer, producer_epoch=0, base_sequence=sequence)
        answer = await client.ask(produce(replica, raw=bytearray(data)), 9, ProduceResponse)
        return only(answer).error_code, only(answer).base_offset

    refused = (Code.NOT_ENOUGH_REPLICAS.number, -1)
    assert [await send(producer) for producer in (1, 2, 3, 4, 2)] == [(0, 0), (0, 1), (0, 2), refused, (0, 1)]
    assert await send(1, 1) == (0, 3)
    assert site.broker.hosted_replicas.log_store.producer_limits.producer_count == 3
    other = await site.create("u")
    replica = other
    assert await send(4) == (0, 0)
    assert await send(5) == refused, "the broker has four of six"


async def invent_producers(site: KafkaBroker, replica: LeaderReplica, address: str, first: int) -> int:
    """Sends a batch of each of a hundred new producers. Returns how many were accepted before the first refusal."""
    client, now = await site.client(address), site.broker.world.clock.wall_ms()
    for number in range(100):
        data = encode_batch([(now, None, b"v", ())], producer_id=first + number, producer_epoch=0, base_sequence=0)
        answer = only(await client.ask(produce(replica, raw=bytearray(data)), 9, ProduceResponse))
        if answer.error_code:
            assert answer.error_code == Code.NOT_ENOUGH_REPLICAS.number
            assert f"{address} has " in (answer.error_message or "")
            return number
    return 100


def send_idempotently(address: str) -> list[str]:
    """Sends one record with librdkafka. Returns what its delivery report says."""
    reports: list[str] = []
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "retry.backoff.ms": 20})
    producer.produce("t", b"v", on_delivery=lambda error, message: reports.append(str(error)))
    producer.flush(60)
    return reports


@run_by(run, "tmp_path", tiered_producer_ids_max=32)
async def test_greedy_address_leaves_producer_ids_to_others(site: KafkaBroker) -> None:
    replica = await site.create("t")
    assert await invent_producers(site, replica, "127.0.0.2", 10**9) == 24
    assert await asyncio.to_thread(send_idempotently, site.address) == ["None"]
    assert await invent_producers(site, replica, "127.0.0.3", 2 * 10**9) == 1
    found = [each for each in site.broker.health().problems if "26 of 32 producer ids are taken" in each]
    assert len(found) == 1 and "24 of them by 127.0.0.2" in found[0]


@run_by(run, "tmp_path", tiered_producer_ids_max=32)
async def test_refused_producer_of_librdkafka_loses_no_message(site: KafkaBroker) -> None:
    replica = await site.create("t")
    assert await invent_producers(site, replica, "127.0.0.1", 10**9) == 24
    refusals = site.broker.metrics.counter("tiered_pot_refusals_total", "", ("pot",))
    sending = asyncio.create_task(asyncio.to_thread(send_idempotently, site.address))
    await wait_until(lambda: refusals.value("producer-ids") >= 4)
    assert not sending.done()
    replica.log.producers.known.remove_expired(site.broker.world.clock.mono_ns() // 10**6, 0)
    assert await sending == ["None"]

"""Tests of the order of requests on one connection: each has its effect before the next one begins, as in Kafka."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.group_calls import QUICK, fetch_committed
from tests.e2e.kafka_site import KafkaBroker, fetch, produce, run, values_of, wait_until
from tests.e2e.transaction_calls import WALL_MS, TransactionalClient, read_decided, transactional_batch
from tests.scenario import run_by
from tiered.errors import Code
from tiered.records.batch import encode_batch
from tiered_api.kafka.protocol.messages import (
    add_partitions_to_txn,
    alter_configs,
    create_topics,
    delete_records,
    delete_topics,
    end_txn,
    incremental_alter_configs,
    list_offsets,
    offset_commit,
)
from tiered_api.kafka.protocol.messages.fetch import FetchResponse
from tiered_api.kafka.protocol.messages.produce import ProduceResponse
from tiered_api.kafka.protocol.schema import Message

MANY = 8_000
TOPIC = 2
"""A resource type."""


def make_commit(offset: int, rows: int = 1) -> offset_commit.OffsetCommitRequest:
    """Commits partition 0 last, after rows of partition 1."""
    others = [offset_commit.OffsetCommitRequestPartition(1, 1) for _ in range(rows - 1)]
    wanted = [*others, offset_commit.OffsetCommitRequestPartition(0, offset)]
    return offset_commit.OffsetCommitRequest(
        "g", topics=[offset_commit.OffsetCommitRequestTopic("t", partitions=wanted)]
    )


@run_by(run, "tmp_path", **QUICK)
async def test_small_offset_commit_does_not_overtake_a_large_one(site: KafkaBroker) -> None:
    await site.create("t", 2)
    client = await site.client()
    await client.send(client.frame(make_commit(5, MANY), 8), client.frame(make_commit(6), 8))
    for _ in range(2):
        await client.receive(offset_commit.OffsetCommitResponse, 8)
    assert await fetch_committed(client, "g") == 6


@pytest.mark.parametrize("begun", [4, 5, 6, 10_000])
@run_by(run, "tmp_path", **QUICK)
async def test_large_request_that_has_begun_to_arrive_waits_for_the_one_before(
    site: KafkaBroker, *, begun: int
) -> None:
    """Its first bytes come together with the request before, and the rest later."""
    await site.create("t", 2)
    client = await site.client()
    first, second = (client.frame(make_commit(offset, MANY), 8) for offset in (5, 6))
    await client.send(first + second[:begun])
    await wait_until(lambda: site.server.pending_requests == 1)
    await client.send(second[begun:], client.frame(make_commit(7), 8))
    for _ in range(3):
        await client.receive(offset_commit.OffsetCommitResponse, 8)
    assert await fetch_committed(client, "g") == 7
    assert site.server.buffers.free_bytes == site.broker.settings.queued_max_request_bytes


@run_by(run, "tmp_path")
async def test_client_that_leaves_while_its_requests_wait_leaves_its_place(site: KafkaBroker) -> None:
    """The broker has read the request that waits, and nothing more. The end of the connection is behind it."""
    replica = await site.create("t")
    client = await site.client()
    await client.send(
        client.frame(fetch((replica, 0), wait_ms=600_000), 12), client.frame(produce(replica, b"a"), 9)
    )  # fmt: skip
    await wait_until(lambda: [each.is_reading for each in site.server.connections] == [False])
    client.close()
    await wait_until(lambda: not site.server.connections)
    assert not site.server.pending_requests


NOWHERE = [f"missing-{n}" for n in range(2_000)]
"""Topics that do not exist."""


def make_edit(topics: list[str], retention_ms: str) -> incremental_alter_configs.IncrementalAlterConfigsRequest:
    messages = incremental_alter_configs
    edits = [messages.AlterableConfig("retention.ms", 0, retention_ms)]
    return messages.IncrementalAlterConfigsRequest(
        [messages.AlterConfigsResource(TOPIC, topic, edits) for topic in topics]
    )


def make_replacement(topics: list[str], retention_ms: str) -> alter_configs.AlterConfigsRequest:
    edits = [alter_configs.AlterableConfig("retention.ms", retention_ms)]
    return alter_configs.AlterConfigsRequest(
        [alter_configs.AlterConfigsResource(TOPIC, topic, edits) for topic in topics]
    )


@pytest.mark.parametrize(("make", "version"), [(make_edit, 1), (make_replacement, 2)])
@run_by(run, "tmp_path")
async def test_small_change_of_settings_does_not_overtake_a_large_one(
    site: KafkaBroker, *, make: Callable[[list[str], str], Message], version: int
) -> None:
    replica = await site.create("t")
    client = await site.client()
    await client.send(
        client.frame(make([*NOWHERE, "t"], "11"), version), client.frame(make(["t"], "22"), version)
    )  # fmt: skip
    for _ in range(2):
        await client.read_reply()
    assert replica.config.retention_ms == 22


@run_by(run, "tmp_path")
async def test_deletion_of_a_topic_does_not_overtake_its_creation(site: KafkaBroker) -> None:
    client = await site.client()
    names = [f"t{n}" for n in range(300)]
    creation = create_topics.CreateTopicsRequest([create_topics.CreatableTopic(name, 1, 1) for name in names], 60_000)
    deletion = delete_topics.DeleteTopicsRequest(topic_names=names[-1:], timeout_ms=60_000)
    await client.send(client.frame(creation, 5), client.frame(deletion, 5))
    created = await client.receive(create_topics.CreateTopicsResponse, 5)
    deleted = await client.receive(delete_topics.DeleteTopicsResponse, 5)
    assert {each.error_code for each in created.topics} == {0}
    assert [each.error_code for each in deleted.responses] == [0]
    assert names[-1] not in site.broker.image.topics


@run_by(run, "tmp_path")
async def test_later_deletion_of_records_does_not_overtake_an_earlier_one(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = await site.client()
    await client.ask(produce(replica, *[b"v%d" % n for n in range(10)]), 9, ProduceResponse)
    messages = delete_records

    def make_deletion(offset: int, others: int) -> delete_records.DeleteRecordsRequest:
        missing = [messages.DeleteRecordsPartition(n + 1, 0) for n in range(others)]
        wanted = messages.DeleteRecordsTopic("t", [*missing, messages.DeleteRecordsPartition(0, offset)])
        return messages.DeleteRecordsRequest([wanted], 10_000)

    await client.send(client.frame(make_deletion(4, MANY), 2), client.frame(make_deletion(8, 0), 2))
    ends = []
    for _ in range(2):
        reply = await client.receive(messages.DeleteRecordsResponse, 2)
        ends.append(reply.topics[0].partitions[-1].low_watermark)
    assert ends == [4, 8]


@pytest.mark.parametrize("is_idempotent", [False, True])
@run_by(run, "tmp_path")
async def test_small_produce_does_not_overtake_one_for_many_partitions(
    site: KafkaBroker, *, is_idempotent: bool
) -> None:
    count = 400
    await site.create("t", count)
    client = await site.client()
    last = site.broker.leader_replica("t", count - 1)

    def make_batch(value: bytes, sequence: int) -> bytes:
        records = [(WALL_MS, b"k", value, ())]
        if is_idempotent:
            return encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
        return encode_batch(records)

    large = produce(last, raw=make_batch(b"a", 0))
    for n in range(count - 1):
        one = produce(site.broker.leader_replica("t", n), raw=make_batch(b"a", 0))
        large.topic_data[0].partition_data.insert(n, one.topic_data[0].partition_data[0])
    await client.send(client.frame(large, 9), client.frame(produce(last, raw=make_batch(b"b", 1)), 9))
    for _ in range(2):
        reply = await client.receive(ProduceResponse, 9)
        assert {each.error_code for each in reply.responses[0].partition_responses} == {0}
    got = await client.ask(fetch((last, 0)), 12, FetchResponse)
    assert values_of(got.responses[0].partitions[0].records) == [b"a", b"b"]


@run_by(run, "tmp_path")
async def test_reads_behind_a_produce_find_its_records(site: KafkaBroker) -> None:
    """The records are committed once they are on disk. A read that began before would not find them."""
    replica = await site.create("t", flush="ack")
    client = await site.client()
    ends = list_offsets.ListOffsetsRequest(
        -1, 0, [list_offsets.ListOffsetsTopic("t", [list_offsets.ListOffsetsPartition(0, -1, -1)])]
    )
    await client.send(
        client.frame(produce(replica, b"a", b"b"), 9), client.frame(fetch((replica, 0)), 12), client.frame(ends, 6)
    )
    await client.receive(ProduceResponse, 9)
    got = await client.receive(FetchResponse, 12)
    assert values_of(got.responses[0].partitions[0].records or b"") == [b"a", b"b"]
    found = await client.receive(list_offsets.ListOffsetsResponse, 6)
    assert found.topics[0].partitions[0].offset == 2


@run_by(run, "tmp_path")
async def test_produce_behind_a_waiting_fetch_does_not_end_its_wait(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = await site.client()
    await client.send(
        client.frame(fetch((replica, 0), wait_ms=300), 12), client.frame(produce(replica, b"a"), 9),
    )  # fmt: skip
    got = await client.receive(FetchResponse, 12)
    assert not got.responses[0].partitions[0].records
    reply = await client.receive(ProduceResponse, 9)
    assert reply.responses[0].partition_responses[0].error_code == 0


@run_by(run, "tmp_path", offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)
async def test_end_of_a_transaction_does_not_overtake_its_partitions(site: KafkaBroker) -> None:
    """The partitions join, get a batch and see the commit, though nobody waited for a reply."""
    count = 300
    replica = await site.create("t", count)
    raw = await site.client()
    producer = TransactionalClient(raw)
    assert await producer.init() is Code.NONE
    messages = add_partitions_to_txn
    adding = messages.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[messages.AddPartitionsToTxnTopic("t", list(reversed(range(count))))],
    )
    writing = produce(replica, raw=transactional_batch(producer.producer_id, producer.epoch, 0, b"v"))
    writing.transactional_id = producer.name
    ending = end_txn.EndTxnRequest(producer.name, producer.producer_id, producer.epoch, True)
    await raw.send(raw.frame(adding, 3), raw.frame(writing, 11), raw.frame(ending, 3))
    added = await raw.receive(messages.AddPartitionsToTxnResponse, 3)
    codes = {each.partition_error_code for each in added.results_by_topic_v3_and_below[0].results_by_partition}
    assert codes == {0}
    written = await raw.receive(ProduceResponse, 11)
    assert written.responses[0].partition_responses[0].error_code == 0
    assert (await raw.receive(end_txn.EndTxnResponse, 3)).error_code == 0
    assert (await read_decided(raw, replica))[0] == [b"v"]

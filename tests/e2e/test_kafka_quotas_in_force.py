"""Tests of client quotas in force over real sockets: replies name the pause, and the broker reads nothing meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.kafka_site import KafkaBroker, RawClient, fetch, produce, run, wait_until
from tests.e2e.test_kafka_fetch import QUICK, create_cold_topic
from tests.scenario import run_by
from tiered.controller.change_time import MEAN_NS_MAX
from tiered.controller.requests import AlterClientQuotas, QuotaAlteration
from tiered.errors import Code
from tiered.quotas.entity import QuotaEntity
from tiered_api.kafka.protocol.apis import APIS
from tiered_api.kafka.protocol.codec import encode
from tiered_api.kafka.protocol.headers import encode_request_header
from tiered_api.kafka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from tiered_api.kafka.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tiered_api.kafka.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tiered_api.kafka.protocol.messages.fetch import FetchResponse
from tiered_api.kafka.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tiered_api.kafka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tiered_api.kafka.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tiered_api.kafka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tiered_api.kafka.protocol.messages.produce import ProduceResponse
from tiered_api.kafka.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tiered_api.kafka.protocol.messages.tiered_heard import TieredHeardRequest, TieredHeardResponse
from tiered_api.kafka.protocol.messages.tiered_quota_use import (
    QuotaUseData,
    TieredQuotaUseRequest,
    TieredQuotaUseResponse,
)
from tiered_api.kafka.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tiered_api.kafka.server import connection
from tiered_api.kafka.server.fetch.cold_reads import ColdRead


def cold_reads(site: KafkaBroker) -> list[ColdRead]:
    """Returns the cold reads of a broker."""
    return site.server.dispatch.fetch_handler.fetches.cold_reads.all()


CLIENT: QuotaEntity = (("client-id", "test"),)
"""The client id of raw clients."""


async def put(site: KafkaBroker, entity: QuotaEntity, **quotas: float | None) -> None:
    """Sets or removes quotas of an entity, without a connection."""
    alteration = QuotaAlteration(entity, tuple(quotas.items()))
    assert await site.broker.submit(AlterClientQuotas((alteration,))) == (None,)


def reading(site: KafkaBroker) -> list[bool]:
    """Returns for each connection if the broker reads from it."""
    return [each.is_reading for each in site.server.connections]


async def assert_muted_until_lifted(site: KafkaBroker, client: RawClient, removed: Mapping[str, None]) -> None:
    """Asserts that a request gets its reply only after the quota is removed."""
    assert reading(site) == [False]
    await client.send(client.frame(ListGroupsRequest(), 4))
    other = await site.client()
    await wait_until(lambda: len(site.server.connections) == 2)
    assert reading(site) == [False, True] and not site.server.pending_requests
    await put(site, CLIENT, **removed)
    assert (await client.receive(ListGroupsResponse, 4)).throttle_time_ms == 0
    other.close()


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("acks", [-1, 0])
@run_by(run, "tmp_path")
async def test_producer_over_its_quota_waits(site: KafkaBroker, *, version: int, acks: int) -> None:
    replica = await site.create("t")
    client = await site.client()
    before = await client.ask(produce(replica, b"x" * 5000), version, ProduceResponse)
    assert before.throttle_time_ms == 0
    await put(site, CLIENT, producer_byte_rate=1.0)
    request = produce(replica, b"y" * 5000, acks=acks)
    if acks:
        answer = await client.ask(request, version, ProduceResponse)
        assert answer.responses[0].partition_responses[0].base_offset == 1
        assert answer.throttle_time_ms > 400_000, "5,000 bytes at one a second"
    else:
        await client.send(client.frame(request, version))
        await wait_until(lambda: not all(reading(site)))
    await assert_muted_until_lifted(site, client, {"producer_byte_rate": None})


@run_by(run, "tmp_path")
async def test_client_that_leaves_in_its_pause_leaves_its_place(site: KafkaBroker) -> None:
    replica = await site.create("t")
    await put(site, CLIENT, producer_byte_rate=1.0)
    client = await site.client()
    reply = await client.ask(produce(replica, b"x" * 5000), 9, ProduceResponse)
    assert reply.throttle_time_ms > 400_000
    client.close()
    await wait_until(lambda: not site.server.connections)


@run_by(run, "tmp_path")
async def test_request_of_a_client_that_leaves_in_its_pause_is_served(site: KafkaBroker) -> None:
    replica = await site.create("t")
    await put(site, CLIENT, producer_byte_rate=1.0)
    client = await site.client()
    await client.ask(produce(replica, b"x" * 5000), 9, ProduceResponse)
    await client.send(client.frame(produce(replica, b"last", acks=0), 9))
    client.close()
    before = site.server.now
    await wait_until(lambda: site.server.now > before + 2)
    assert len(site.server.connections) == 1, "its request waits for the end of the pause"
    await put(site, CLIENT, producer_byte_rate=None)
    await wait_until(lambda: replica.log.end_offset == 2)
    await wait_until(lambda: not site.server.connections)


@run_by(run, "tmp_path")
async def test_records_of_a_client_that_has_left_count(site: KafkaBroker) -> None:
    replica = await site.create("t", flush="ack")
    await put(site, CLIENT, producer_byte_rate=1.0)
    limits = site.broker.client_quotas.find_limits("ANONYMOUS", "test")
    assert limits is not None and limits.produced is not None
    client = await site.client()
    await client.send(client.frame(produce(replica, b"x" * 5000), 9))
    client.close()
    await wait_until(lambda: not site.server.connections and site.server.context.produced_bytes > 0)
    assert site.broker.client_quotas.find_pause(limits.produced) > 400_000


@run_by(run, "tmp_path")
async def test_request_that_came_with_the_one_over_the_quota_waits(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = await site.client()
    await put(site, CLIENT, producer_byte_rate=1.0)
    first = client.frame(produce(replica, b"x" * 5000), 9)
    await client.send(first + client.frame(ListGroupsRequest(), 4))
    assert (await client.receive(ProduceResponse, 9)).throttle_time_ms > 400_000
    other = await site.client()
    await other.ask(ListGroupsRequest(), 4, ListGroupsResponse)
    assert site.server.context.requests[16] == 1, "that of the other connection"
    await put(site, CLIENT, producer_byte_rate=None)
    await client.receive(ListGroupsResponse, 4)


@pytest.mark.parametrize("version", [4, 12, 16])
@run_by(run, "tmp_path")
async def test_consumer_over_its_quota_gets_no_records_from_any_connection(site: KafkaBroker, *, version: int) -> None:
    replica = await site.create("t")
    client = await site.client()
    await client.ask(produce(replica, b"x" * 5000), 9, ProduceResponse)
    await put(site, CLIENT, consumer_byte_rate=1.0)
    answer = await client.ask(fetch((replica, 0)), version, FetchResponse)
    assert len(answer.responses) == 1 and answer.throttle_time_ms > 400_000
    other = await site.client()
    empty = await other.ask(fetch((replica, 0)), version, FetchResponse)
    assert not empty.responses and empty.error_code == 0 and empty.throttle_time_ms > 400_000
    assert reading(site) == [False, False]
    await put(site, CLIENT, consumer_byte_rate=None)
    for each in (client, other):
        assert (await each.ask(fetch((replica, 0)), version, FetchResponse)).throttle_time_ms == 0


@pytest.mark.parametrize("version", [4, 11, 12, 15, 17])
@run_by(run, "tmp_path")
async def test_reply_has_no_more_than_the_quota_of_a_window(site: KafkaBroker, *, version: int) -> None:
    replica = await site.create("t")
    client = await site.client()
    for _ in range(4):
        await client.ask(produce(replica, b"x" * 1000), 9, ProduceResponse)
    await put(site, CLIENT, consumer_byte_rate=250.0)
    (topic,) = (await client.ask(fetch((replica, 0)), version, FetchResponse)).responses
    assert 2000 < len(topic.partitions[0].records or b"") <= 2500, "two batches; ten seconds at 250 bytes"
    await put(site, CLIENT, consumer_byte_rate=None)
    await put(site, (("user", "ANONYMOUS"),), consumer_byte_rate=50.0)
    asked = fetch((replica, 0), wait_ms=60_000, min_bytes=1 << 20)
    (topic,) = (await client.ask(asked, version, FetchResponse)).responses
    assert 1000 < len(topic.partitions[0].records or b"") < 2000, "one batch, which is more than 500 bytes"


@run_by(run, "tmp_path")
async def test_parked_fetch_is_charged_when_its_records_leave(site: KafkaBroker) -> None:
    replica = await site.create("t")
    consumer, producer = await site.client(), await site.client()
    await put(site, CLIENT, consumer_byte_rate=1.0)
    await consumer.send(consumer.frame(fetch((replica, 0), wait_ms=60_000), 12))
    await wait_until(lambda: site.server.pending_requests == 1)
    await producer.ask(produce(replica, b"x" * 5000), 9, ProduceResponse)
    answer = await consumer.receive(FetchResponse, 12)
    assert len(answer.responses) == 1 and answer.throttle_time_ms > 400_000
    assert reading(site) == [False, True]


@run_by(run, "tmp_path", quota_window_size_seconds=3600)
async def test_time_of_requests_counts_and_the_pause_is_one_window(site: KafkaBroker) -> None:
    client = await site.client()
    await put(site, CLIENT, request_percentage=1e-9)
    answer = await client.ask(ListGroupsRequest(), 4, ListGroupsResponse)
    assert answer.throttle_time_ms == 3_600_000
    await assert_muted_until_lifted(site, client, {"request_percentage": None})


@run_by(run, "tmp_path", quota_window_size_seconds=3600)
async def test_request_of_a_client_that_goes_before_the_reply_is_charged(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = await site.client()
    await put(site, CLIENT, request_percentage=1e-9)
    await client.send(client.frame(fetch((replica, 0), wait_ms=60_000), 12))
    await wait_until(lambda: site.server.pending_requests == 1)
    client.close()
    await wait_until(lambda: not site.server.connections)
    throttled = site.broker.metrics.counter("tiered_throttled_total", "", ("quota", "entity"))
    assert throttled.value("request_percentage", "client-id test") == 1


@run_by(run, "tmp_path", quota_window_size_seconds=3600)
async def test_broker_with_its_credential_is_not_charged(site: KafkaBroker) -> None:
    client = await site.client()
    await put(site, CLIENT, request_percentage=1e-9)
    proof = site.broker.secrets.proof
    answer = await client.ask(AddPartitionsToTxnRequest(credential=proof), 5, AddPartitionsToTxnResponse)
    assert (answer.error_code, answer.throttle_time_ms, reading(site)) == (0, 0, [True])
    await client.ask(WriteTxnMarkersRequest(credential=proof), 1, WriteTxnMarkersResponse)
    assert (await client.ask(ListGroupsRequest(), 4, ListGroupsResponse)).throttle_time_ms == 0
    assert reading(site) == [True]


@pytest.mark.parametrize("credential", [b"", b"wrong"])
@run_by(run, "tmp_path", quota_window_size_seconds=3600)
async def test_unauthorized_client_is_charged_for_requests_between_brokers(
    site: KafkaBroker, *, credential: bytes
) -> None:
    await put(site, CLIENT, request_percentage=1e-9)
    refused = Code.CLUSTER_AUTHORIZATION_FAILED.number
    client = await site.client()
    added = await client.ask(AddPartitionsToTxnRequest(credential=credential), 5, AddPartitionsToTxnResponse)
    code = refused if credential else 0  # clients may send it too, but prove to be no broker
    assert (added.error_code, added.throttle_time_ms > 0, reading(site)) == (code, True, [False])
    client = await site.client()
    await client.ask(WriteTxnMarkersRequest(credential=credential), 1, WriteTxnMarkersResponse)
    client = await site.client()
    heard = await client.ask(TieredHeardRequest(site.broker.cluster_id, credential), 0, TieredHeardResponse)
    assert (heard.error_code, reading(site)) == (refused, [False] * 3)


@run_by(run, "tmp_path")
async def test_client_cannot_report_use_of_the_quota_of_another(site: KafkaBroker) -> None:
    await put(site, (("client-id", "victim"),), producer_byte_rate=1.0)
    limits = site.broker.client_quotas.find_limits("ANONYMOUS", "victim")
    assert limits is not None and limits.produced is not None
    client = await site.client()
    uses = [QuotaUseData("producer_byte_rate", "", "victim", 1e6, 1.0)]
    pauses = []
    for credential in (b"guess", site.broker.credential):
        request = TieredQuotaUseRequest(site.broker.cluster_id, credential, uses)
        code = (await client.ask(request, 0, TieredQuotaUseResponse)).error_code
        pauses.append((code, site.broker.client_quotas.find_pause(limits.produced) > 0))
    assert pauses == [(Code.CLUSTER_AUTHORIZATION_FAILED.number, False), (0, True)]


def creation(*names: str, partitions: int = 20) -> CreateTopicsRequest:
    """Returns the request that creates topics."""
    return CreateTopicsRequest([CreatableTopic(name, partitions, 1) for name in names], 60_000)


@run_by(run, "tmp_path")
async def test_client_with_a_debt_may_not_change_topics(site: KafkaBroker) -> None:
    """A bucket of eleven seconds: the first topic may overdraw it."""
    throttled = Code.THROTTLING_QUOTA_EXCEEDED.number
    await put(site, CLIENT, controller_mutation_rate=0.001)

    async def open_client() -> RawClient:
        return await site.client()

    first = await (await open_client()).ask(creation("a", "b"), 7, CreateTopicsResponse)
    assert [each.error_code for each in first.topics] == [0, throttled]
    assert first.throttle_time_ms > 10_000_000
    assert False in reading(site)
    deletion = DeleteTopicsRequest([DeleteTopicState("a")], timeout_ms=60_000)
    deleted = await (await open_client()).ask(deletion, 6, DeleteTopicsResponse)
    assert ([each.error_code for each in deleted.responses], deleted.throttle_time_ms > 0) == ([throttled], True)
    more = CreatePartitionsRequest([CreatePartitionsTopic("a", 21)], 60_000)
    added = await (await open_client()).ask(more, 3, CreatePartitionsResponse)
    assert ([each.error_code for each in added.results], added.throttle_time_ms > 0) == ([throttled], True)
    lenient = await (await open_client()).ask(creation("c"), 5, CreateTopicsResponse)
    assert [each.error_code for each in lenient.topics] == [0], "old clients do not know the error"
    assert lenient.throttle_time_ms > first.throttle_time_ms
    assert site.broker.image.topics.keys() >= {"a", "c"} and "b" not in site.broker.image.topics


def alteration(value: int) -> IncrementalAlterConfigsRequest:
    """Returns the request that sets a setting of a topic."""
    resource = AlterConfigsResource(2, "t", [AlterableConfig("retention.ms", 0, str(value))])
    return IncrementalAlterConfigsRequest([resource])


@run_by(run, "tmp_path")
async def test_changes_of_settings_cost_their_client_pauses(site: KafkaBroker) -> None:
    """Clients of these requests do not know the error: they wait. A client with a connection for each request pays."""
    await site.create("t")
    await put(site, CLIENT, controller_mutation_rate=1.0)
    codes, client = [], await site.client()
    for number in range(11):
        answer = await client.ask(alteration(1000 + number), 1, IncrementalAlterConfigsResponse)
        assert (answer.responses[0].error_code, answer.throttle_time_ms) == (0, 0), "the bucket has eleven"
    answer = await client.ask(alteration(2000), 1, IncrementalAlterConfigsResponse)
    assert answer.responses[0].error_code == 0 and answer.throttle_time_ms > 500
    assert reading(site) == [False]
    for number in range(120):
        other = await site.client()
        answer = await other.ask(alteration(3000 + number), 1, IncrementalAlterConfigsResponse)
        codes.append(answer.responses[0].error_code)
        assert answer.throttle_time_ms > 500
        other.close()
    throttled = Code.THROTTLING_QUOTA_EXCEEDED.number
    assert set(codes[:98]) == {0} and codes[-1] == throttled, "nobody owes more than a hundred"
    value = int(site.broker.image.topics["t"].configs["retention.ms"])
    assert 3098 <= value < 3119


@run_by(run, "tmp_path")
async def test_time_of_commits_and_images_counts_for_who_changes_metadata(site: KafkaBroker) -> None:
    await put(site, CLIENT, request_percentage=50.0)
    spent = site.broker.view.change_time
    before = spent.spent_ns
    client = await site.client()
    made = await client.ask(creation("cheap"), 7, CreateTopicsResponse)
    assert made.topics[0].error_code == made.throttle_time_ms == 0
    assert spent.spent_ns > before
    spent.spend(10**12)
    assert spent.mean_ns == MEAN_NS_MAX
    dear = CreateTopicsRequest([CreatableTopic("dear", 800, 1)], 60_000)
    made = await client.ask(dear, 7, CreateTopicsResponse)
    assert made.topics[0].error_code == 0 and made.throttle_time_ms > 0, "8 s, of which it has 5"
    assert reading(site) == [False]


@run_by(run, "tmp_path", **QUICK)
async def test_reader_that_costs_too_many_requests_to_the_bucket_waits(site: KafkaBroker) -> None:
    """A fetch that does not wait gets no records, and still starts a read of the bucket."""
    replica = await create_cold_topic(site, "t")
    await put(site, CLIENT, store_request_rate=0.1)
    client, gets = await site.client(), site.broker.store.count_by_verb().get("get", 0)
    pauses: list[int] = []
    while not any(pauses) and len(pauses) < 10:
        answer = await client.ask(fetch((replica, 2 * len(pauses))), 12, FetchResponse)
        pauses.append(answer.throttle_time_ms)
        await wait_until(lambda: all(load.done for load in cold_reads(site)))
    assert 1 < len(pauses) < 10 and pauses[-1] > 5_000 and reading(site) == [False]
    counted = site.broker.store.count_by_verb()["get"]
    assert counted - gets >= 2, "one in ten seconds"
    other = await site.client()
    empty = await other.ask(fetch((replica, 0)), 12, FetchResponse)
    assert not empty.responses and empty.throttle_time_ms > 5_000, "from any connection"
    assert site.broker.store.count_by_verb()["get"] == counted
    await put(site, CLIENT, store_request_rate=None)
    assert (await other.ask(fetch((replica, 0)), 12, FetchResponse)).throttle_time_ms == 0


@run_by(run, "tmp_path", tiered_store_request_rate=0.1, tiered_chunk_cache_bytes=0, **QUICK)
async def test_each_user_has_the_default_rate_of_requests_to_the_bucket(site: KafkaBroker) -> None:
    """Look-ups by time count too, and writes do not wait for them."""
    replica = await create_cold_topic(site, "t")
    client, pauses = await site.client(), list[int]()
    while not any(pauses) and len(pauses) < 10:
        wanted = [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, 1 + len(pauses))])]
        answer = await client.ask(ListOffsetsRequest(-1, 0, wanted), 7, ListOffsetsResponse)
        assert answer.topics[0].partitions[0].offset >= 0
        pauses.append(answer.throttle_time_ms)
    assert len(pauses) < 10 and pauses[-1] > 5_000
    other = await site.client()
    written = await other.ask(produce(replica, b"x"), 9, ProduceResponse)
    assert written.throttle_time_ms == 0


@run_by(run, "tmp_path")
async def test_topics_that_metadata_creates_grow_the_debt(site: KafkaBroker) -> None:
    await put(site, CLIENT, controller_mutation_rate=1.0)
    client = await site.client()
    names = [MetadataRequestTopic(name=f"t{number}") for number in range(25)]
    made = await client.ask(MetadataRequest(names, allow_auto_topic_creation=True), 8, MetadataResponse)
    assert len(site.broker.image.topics) == 25 and made.throttle_time_ms > 1_000


@run_by(run, "tmp_path")
async def test_address_over_its_rate_gets_no_more_connections(site: KafkaBroker) -> None:
    await put(site, (("ip", None),), connection_creation_rate=1.0)
    await put(site, (("ip", "127.0.0.2"),), connection_creation_rate=100.0)
    first = [await site.client() for _ in range(10)]
    refused = await site.client()
    assert await refused.read_to_end() == b""
    assert site.count_refusals("connection_rate") == 1
    named = [await site.client("127.0.0.2") for _ in range(11)]
    for client in (first[0], named[-1]):
        assert not (await client.ask(ListGroupsRequest(), 4, ListGroupsResponse)).groups


@run_by(run, "tmp_path")
async def test_cluster_without_quotas_charges_nothing(site: KafkaBroker) -> None:
    dispatch = site.server.dispatch
    assert dispatch.serve_request == dispatch.handle_request
    await put(site, (("ip", None),), connection_creation_rate=1000.0)
    assert dispatch.serve_request == dispatch.handle_request
    await put(site, (("user", "nobody"),), producer_byte_rate=1.0)
    assert dispatch.serve_request != dispatch.handle_request
    replica = await site.create("t")
    client = await site.client()
    answer = await client.ask(produce(replica, b"x" * 5000), 9, ProduceResponse)
    assert answer.throttle_time_ms == 0 and all(reading(site)), "another user's quota"
    await put(site, (("user", "nobody"),), producer_byte_rate=None)
    assert dispatch.serve_request == dispatch.handle_request


@run_by(run, "tmp_path")
async def test_tenant_that_floods_leaves_the_others_their_share(site: KafkaBroker) -> None:
    """Counts, no times: the flood gets its quota of the window and one request, and its neighbour everything."""
    flooded, quiet = await site.create("flooded"), await site.create("quiet")
    await put(site, (("client-id", "flood"),), producer_byte_rate=10_000.0)
    began = asyncio.get_running_loop().time()
    body = encode(produce(flooded, b"x" * 20_000), 9)
    head = encode_request_header(APIS[0], 9, 1, "flood")
    frame = (len(head) + len(body)).to_bytes(4, "big") + head + body
    for _ in range(3):
        client = await site.client()
        client.writer.write(frame * 20)
    tenant = await site.client()
    for count in range(300):
        answer = await tenant.ask(produce(quiet, b"y" * 1000), 9, ProduceResponse)
        assert (answer.throttle_time_ms, answer.responses[0].partition_responses[0].base_offset) == (0, count)
    seconds = asyncio.get_running_loop().time() - began
    written = flooded.reads.offset_snapshot()[0]
    assert 5 <= written <= (10_000 * (seconds + 10)) // 20_000 + 3, "one request more for each connection"


@run_by(run, "tmp_path")
async def test_producer_over_its_quota_waits_on_every_connection(site: KafkaBroker) -> None:
    """Once, each new connection of a client wrote once more: with twenty, seven times the quota."""
    replica = await site.create("t")
    await put(site, CLIENT, producer_byte_rate=1.0)
    first = await site.client()
    await first.ask(produce(replica, b"x" * 5000), 9, ProduceResponse)
    others = [await site.client() for _ in range(3)]
    for client, size in zip(others, (100, 5_000, 100_000), strict=True):
        await client.send(client.frame(produce(replica, b"y" * size), 9) + client.frame(ListGroupsRequest(), 4))
    another = await site.client()
    assert (await another.ask(ListGroupsRequest(), 4, ListGroupsResponse)).throttle_time_ms == 0, "no Produce"
    await wait_until(lambda: reading(site) == [False, False, False, False, True])
    assert replica.log.end_offset == 1, "the records of the others wait"
    others.pop(0).close()
    await put(site, CLIENT, producer_byte_rate=None)
    for client in others:
        answer = await client.receive(ProduceResponse, 9)
        assert not answer.responses[0].partition_responses[0].error_code
        await client.receive(ListGroupsResponse, 4)
    assert replica.log.end_offset >= 3


def test_request_that_waits_too_long_for_its_quota_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HELD_SECONDS_MAX", 0.05)

    async def scenario(site: KafkaBroker) -> None:
        replica = await site.create("t")
        await put(site, CLIENT, producer_byte_rate=1.0)
        first, other = await site.client(), await site.client()
        await first.ask(produce(replica, b"x" * 5000), 9, ProduceResponse)
        await other.send(other.frame(produce(replica, b"y" * 50_000), 9))
        await wait_until(lambda: len(site.server.connections) == 1)
        assert site.count_refusals("over_quota") == 1
        assert replica.log.end_offset == 1 and site.server.buffers.free_bytes == site.server.unsent_bytes_max

    run(tmp_path, scenario)


@run_by(run, "tmp_path")
async def test_crowd_of_parked_fetches_gets_no_more_than_the_quota(site: KafkaBroker) -> None:
    """Once, all of them got the records, and the client was charged afterwards: a hundred times its quota at once."""
    replica = await site.create("t")
    crowd, producer = [await site.client() for _ in range(20)], await site.client()
    await put(site, CLIENT, consumer_byte_rate=1_000.0)
    for consumer in crowd:
        await consumer.send(consumer.frame(fetch((replica, 0), wait_ms=60_000), 12))
    await wait_until(lambda: site.server.pending_requests == len(crowd))
    await producer.ask(produce(replica, b"x" * 6_000), 9, ProduceResponse)
    answers = [await consumer.receive(FetchResponse, 12) for consumer in crowd]
    assert sum(bool(answer.responses) for answer in answers) == 2, "10,000 bytes at once, and the one above"
    assert all(answer.throttle_time_ms > 0 for answer in answers if not answer.responses)
    assert reading(site).count(False) == len(crowd) - 1


@run_by(run, "tmp_path")
async def test_commits_over_the_quota_wait_on_every_connection(site: KafkaBroker) -> None:
    """Once, commits counted against no quota: 18 MB a second went to the disk."""
    replica = await site.create("t")
    client, other = await site.client(), await site.client()
    partition = OffsetCommitRequestPartition(0, 1, committed_metadata="m" * 4_000)
    commit = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", "", [partition])])
    assert (await client.ask(commit, 8, OffsetCommitResponse)).throttle_time_ms == 0
    await put(site, CLIENT, producer_byte_rate=1.0)
    assert (await client.ask(commit, 8, OffsetCommitResponse)).throttle_time_ms > 300_000
    await other.send(other.frame(commit, 8))
    await wait_until(lambda: not any(reading(site)))
    assert site.server.context.requests[8] == 2, "the third commit is held, and not handled"
    written = (await site.client()).ask(produce(replica, b"x"), 9, ProduceResponse)
    assert (await written).responses[0].partition_responses[0].error_code == 0
    await put(site, CLIENT, producer_byte_rate=None)
    assert (await other.receive(OffsetCommitResponse, 8)).topics[0].partitions[0].error_code == 0


@run_by(run, "tmp_path")
async def test_member_that_makes_a_large_group_be_written_pays_for_it(site: KafkaBroker) -> None:
    """A static member that comes back makes its coordinator write all members."""
    client = await site.client()

    def join() -> JoinGroupRequest:
        protocol = [JoinGroupRequestProtocol("range", b"")]
        return JoinGroupRequest("g", 300_000, 300_000, "", "one", "consumer", protocol)

    joined = await client.ask(join(), 5, JoinGroupResponse)
    assignment = [SyncGroupRequestAssignment(joined.member_id, bytes(100_000))]
    sync = SyncGroupRequest("g", joined.generation_id, joined.member_id, "one", assignments=assignment)
    assert (await client.ask(sync, 3, SyncGroupResponse)).error_code == 0
    await put(site, CLIENT, producer_byte_rate=1_000.0)
    again = await client.ask(join(), 5, JoinGroupResponse)
    assert not again.error_code and again.throttle_time_ms > 50_000


CONNECTIONS = 32


@run_by(run, "tmp_path")
async def test_client_with_many_connections_has_the_request_time_of_one(site: KafkaBroker) -> None:
    """A pause is one sample at most, as in Kafka. The requests of other connections wait all the same, and all are
    served after the quota is lifted."""
    await put(site, CLIENT, request_percentage=1e-6)
    clients = [await site.client() for _ in range(CONNECTIONS)]
    assert (await clients[0].ask(ListGroupsRequest(), 4, ListGroupsResponse)).throttle_time_ms == 1_000
    for client in clients[1:]:
        await client.send(client.frame(ListGroupsRequest(), 4))
    await wait_until(lambda: reading(site)[1:] == [False] * (CONNECTIONS - 1))
    before = site.server.now
    await wait_until(lambda: site.server.now > before + 2)
    assert site.server.context.requests[16] == 1 and not site.server.pending_requests
    await put(site, CLIENT, request_percentage=None)
    for client in clients[1:]:
        await client.receive(ListGroupsResponse, 4)


@run_by(run, "tmp_path", quota_window_num=2)
async def test_requests_over_the_quota_are_served_in_their_order(site: KafkaBroker) -> None:
    """The old samples end after two seconds. Then the requests follow, the one that came first before the others."""
    await put(site, CLIENT, request_percentage=0.5)
    limits = site.broker.client_quotas.find_limits("ANONYMOUS", "test")
    assert limits is not None and limits.requests is not None
    site.broker.client_quotas.charge_request_time(limits.requests, 1_000_000_000)
    clients = [await site.client() for _ in range(CONNECTIONS)]

    def is_waiting(number: int) -> bool:
        return not reading(site)[number]

    for number, client in enumerate(clients):
        await client.send(client.frame(ListGroupsRequest(), 4))
        await wait_until(partial(is_waiting, number))
    ended: list[int] = []

    async def read(number: int) -> None:
        await clients[number].receive(ListGroupsResponse, 4)
        ended.append(number)

    await asyncio.gather(*map(read, range(CONNECTIONS)))
    assert ended == sorted(ended)


@run_by(run, "tmp_path", quota_window_num=2)
async def test_flood_of_clients_that_have_left_locks_nobody_out(site: KafkaBroker) -> None:
    await put(site, CLIENT, request_percentage=1e-6)
    clients = [await site.client() for _ in range(CONNECTIONS)]
    for client in clients:
        await client.send(client.frame(ListGroupsRequest(), 4))
    await wait_until(lambda: reading(site)[1:] == [False] * (CONNECTIONS - 1))
    for client in clients:
        client.close()
    await wait_until(lambda: not site.server.connections)
    assert site.server.context.requests[16] == 1
    late = await site.client()
    await late.ask(ListGroupsRequest(), 4, ListGroupsResponse)


@run_by(run, "tmp_path")
async def test_long_request_waits_between_its_steps(site: KafkaBroker) -> None:
    """It has begun when another request takes what is left of the quota."""
    await site.create("t")
    await put(site, CLIENT, request_percentage=1e-6)
    limits = site.broker.client_quotas.find_limits("ANONYMOUS", "test")
    assert limits is not None and limits.requests is not None
    client = await site.client()
    row = OffsetCommitRequestPartition(0, 5)
    request = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=[row] * 8_000)])
    await client.send(client.frame(request, 8))
    await wait_until(lambda: site.server.pending_requests == 1)
    before = site.server.now
    await wait_until(lambda: site.server.now > before + 2)
    assert site.server.pending_requests == 1, "it waits between two steps"
    await put(site, CLIENT, request_percentage=None)
    reply = await client.receive(OffsetCommitResponse, 8)
    assert {each.error_code for each in reply.topics[0].partitions} == {0}

"""Tests of ACLs over real sockets: the APIs that change them, and their effect on requests.

All clients here are anonymous. The addresses 127.0.0.1 (the administrator) and 127.0.0.2 tell them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from uuid import uuid4

import pytest

from tests.e2e.kafka_site import KafkaBroker, RawClient, fetch, produce, run, wait_until
from tests.e2e.test_kafka_fetch import LONG_MS, QUICK, SlowBucket, create_cold_topic, fill, parts
from tests.e2e.transaction_calls import TransactionalClient
from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import AclChoice, CreateAcls, DeleteAcls
from tiered.errors import Code
from tiered.ids import KEYED_FROM, TopicPartition, decode_uuid, encode_uuid
from tiered.metadata.changes import AclAdded
from tiered.peers import TransactionPartitions
from tiered.records.batch import encode_batch
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.protocol.apis import ALL_APIS
from tiered_api.kafka.protocol.codec import encode
from tiered_api.kafka.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tiered_api.kafka.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from tiered_api.kafka.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tiered_api.kafka.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from tiered_api.kafka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
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
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.fetch.large_fetch import LARGE_FETCH_PARTITIONS

ADMIN, GUEST = "127.0.0.1", "127.0.0.2"
ME = "User:ANONYMOUS"
TOPIC, GROUP, CLUSTER, USER = 2, 3, 4, 7
ALL, READ, ALTER, DESCRIBE = 2, 3, 7, 8
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
BY_ID_FROM = {"Fetch": 13, "Produce": 13, "OffsetCommit": 10, "OffsetFetch": 10, "DeleteTopics": 6, "Metadata": 12}
EVERY_TYPE = ("TOPIC", "GROUP", "TRANSACTIONAL_ID")


async def grant(site: KafkaBroker, *acls: tuple[str, ...], host: str = GUEST) -> None:
    """Adds rules (resource type, name, operation) without the protocol, for one address."""
    added = [AclAdded(kind, "LITERAL", name, ME, host, operation, "ALLOW") for kind, name, operation in acls]
    for refused in await site.broker.submit(CreateAcls(tuple(added))):
        assert refused is None, refused


def run_with_acls(directory: Path, scenario: Callable[[KafkaBroker], Awaitable[None]]) -> None:
    """Runs a scenario against a broker whose administrator at 127.0.0.1 may do everything."""

    async def act(site: KafkaBroker) -> None:
        everything = [(kind, "*", "ALL") for kind in EVERY_TYPE]
        await grant(site, *everything, ("CLUSTER", "kafka-cluster", "ALL"), host=ADMIN)
        await scenario(site)

    run(directory, act, authorizer_class_name=STANDARD_AUTHORIZER)


async def describe(client: RawClient, version: int, *fields: object) -> DescribeAclsResponse:
    return await client.ask(DescribeAclsRequest(*fields), version, DescribeAclsResponse)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [1, 2, 3])
@run_by(run_with_acls, "tmp_path")
async def test_rules_are_created_described_and_deleted(site: KafkaBroker, *, version: int) -> None:
    client = await site.client(ADMIN)
    good = AclCreation(TOPIC, "orders", PREFIXED, "User:alice", "*", READ, ALLOW)
    bad = AclCreation(CLUSTER, "other", LITERAL, "User:alice", "*", ALTER, ALLOW)
    unknown = AclCreation(99, "orders", LITERAL, "User:alice", "*", READ, ALLOW)
    creation = CreateAclsRequest([good, bad, unknown, good])
    answer = await client.ask(creation, version, CreateAclsResponse)
    assert [each.error_code for each in answer.results] == [0, 42, 42, 0]
    assert answer.results[1].error_message == "The only valid name for the CLUSTER resource is kafka-cluster"
    described = await describe(client, version, TOPIC, "orders-1", 2, None, None, 1, ALLOW)  # 2: MATCH
    found = {
        (each.resource_name, each.pattern_type, acl.principal) for each in described.resources for acl in each.acls
    }
    assert found == {("orders", PREFIXED, "User:alice"), ("*", LITERAL, ME)}
    wanted = DeleteAclsFilter(1, None, 1, "User:alice", None, 1, 1)
    wrong = DeleteAclsFilter(1, None, 1, None, None, 99, 1)
    deleted = await client.ask(DeleteAclsRequest([wanted, wrong]), version, DeleteAclsResponse)
    first, second = deleted.filter_results
    assert [
        (each.resource_type, each.resource_name, each.pattern_type, each.operation) for each in first.matching_acls
    ] == [(TOPIC, "orders", PREFIXED, READ)]
    assert (first.error_code, second.error_code, second.error_message) == (0, 42, "Unknown entryFilter.")
    after = await describe(client, version, 1, None, 1, "User:alice", None, 1, 1)
    assert (after.error_code, after.error_message, after.resources) == (0, None, [])


@run_by(run_with_acls, "tmp_path")
async def test_rules_need_rights_on_the_cluster(site: KafkaBroker) -> None:
    await grant(site, ("CLUSTER", "kafka-cluster", "DESCRIBE"))
    client = await site.client(GUEST)
    rule = AclCreation(TOPIC, "orders", PREFIXED, "User:alice", "*", READ, ALLOW)
    created = await client.ask(CreateAclsRequest([rule]), 3, CreateAclsResponse)
    deleted = await client.ask(
        DeleteAclsRequest([DeleteAclsFilter(1, None, 1, None, None, 1, 1)]), 3, DeleteAclsResponse
    )
    codes = created.results[0].error_code, deleted.filter_results[0].error_code
    assert codes == (Code.CLUSTER_AUTHORIZATION_FAILED.number,) * 2
    before = await describe(client, 3, 1, None, 1, None, None, 1, 1)
    assert before.error_code == 0 and before.resources
    other = await site.client("127.0.0.3")
    refused = await describe(other, 3, 1, None, 1, None, None, 1, 1)
    assert (refused.error_code, refused.resources) == (Code.CLUSTER_AUTHORIZATION_FAILED.number, [])


@run_by(run, "tmp_path")
async def test_broker_without_authorizer_knows_no_rules(site: KafkaBroker) -> None:
    client = await site.client()
    described = await describe(client, 3, 1, None, 1, None, None, 1, 1)
    assert described.error_code == Code.SECURITY_DISABLED.number
    rule = AclCreation(TOPIC, "orders", PREFIXED, "User:alice", "*", READ, ALLOW)
    created = await client.ask(CreateAclsRequest([rule]), 3, CreateAclsResponse)
    assert [each.error_code for each in created.results] == [Code.SECURITY_DISABLED.number]
    assert site.broker.image.acls == frozenset()


async def produce_as(
    client: RawClient, replica: LeaderReplica, version: int, transactional_id: str | None = None
) -> int:
    """Produces one record, and returns the code of the partition."""
    request = produce(replica, b"v")
    request.transactional_id = transactional_id
    answer = await client.ask(request, version, ProduceResponse)
    return answer.responses[0].partition_responses[0].error_code


async def fetch_as(client: RawClient, replica: LeaderReplica, version: int) -> int:
    """Fetches from the start, and returns the code of the partition."""
    answer = await client.ask(fetch((replica, 0)), version, FetchResponse)
    return answer.responses[0].partitions[0].error_code


@pytest.mark.parametrize("version", [3, 9, 13])
@run_by(run_with_acls, "tmp_path")
async def test_records_are_written_and_read_only_with_the_right(site: KafkaBroker, *, version: int) -> None:
    replica = await site.create("t")
    admin, guest = await site.client(ADMIN), await site.client(GUEST)
    refused = (Code.UNKNOWN_TOPIC_ID if version >= 13 else Code.TOPIC_AUTHORIZATION_FAILED).number
    for _ in range(3):  # what the administrator's requests left behind answers nobody else
        assert await produce_as(admin, replica, version) == 0
        assert await produce_as(guest, replica, version) == refused
        assert await fetch_as(admin, replica, max(version, 4)) == 0
        assert await fetch_as(guest, replica, max(version, 4)) == refused
    await grant(site, ("TOPIC", "t", "WRITE"), ("TOPIC", "t", "READ"))
    for _ in range(3):
        assert await produce_as(guest, replica, version) == 0
        assert await fetch_as(guest, replica, max(version, 4)) == 0
    await site.broker.submit(REMOVAL)
    assert await produce_as(guest, replica, version) == refused
    assert await fetch_as(guest, replica, max(version, 4)) == refused
    assert await produce_as(admin, replica, version) == 0


@pytest.mark.parametrize("is_second", [False, True], ids=["slow path", "fast path"])
@run_by(run_with_acls, "tmp_path")
async def test_client_writes_no_batch_under_an_idempotency_key(site: KafkaBroker, *, is_second: bool) -> None:
    """Anybody can compute the id of a key of HTTP: the request of another user would find its records written."""
    replica = await site.create("t")
    await grant(site, ("TOPIC", "t", "WRITE"))
    client = await site.client(GUEST)
    if is_second:
        assert code_of(await client.ask(produce(replica, b"a"), 9, ProduceResponse)) is Code.NONE
    end, records = replica.log.end_offset, [(1_700_000_000_000, None, b"v", ())]
    for producer_id in (KEYED_FROM, (1 << 63) - 1):
        forged = encode_batch(records, producer_id=producer_id, producer_epoch=3, base_sequence=9)
        reply = await client.ask(produce(replica, raw=forged), 9, ProduceResponse)
        assert (code_of(reply), replica.log.end_offset) == (Code.INVALID_RECORD, end)
        assert "Idempotency-Key" in (reply.responses[0].partition_responses[0].error_message or "")
    last = encode_batch(records, producer_id=KEYED_FROM - 1, producer_epoch=0, base_sequence=0)
    assert code_of(await client.ask(produce(replica, raw=last), 9, ProduceResponse)) is Code.NONE


def code_of(reply: ProduceResponse) -> Code:
    """Returns the code of the one partition of a reply."""
    return code_from_number(reply.responses[0].partition_responses[0].error_code)


REMOVAL = DeleteAcls((AclChoice("TOPIC", "ANY", "t", None, None, "ANY", "ANY"),))


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("kind", ["gathered", "one of many"])
@run_by(run_with_acls, "tmp_path")
async def test_fetch_that_waits_gives_no_records_once_its_right_is_gone(
    site: KafkaBroker, *, version: int, kind: str
) -> None:
    """It has records already, but not as many as it wants."""
    replica = await site.create("t", 1 if kind == "gathered" else LARGE_FETCH_PARTITIONS + 1)
    await fill(replica, b"hidden")
    await grant(site, ("TOPIC", "t", "READ"))
    guest = await site.client(GUEST)
    wanted = [
        (site.broker.leader_replica("t", each), 0) for each in range(1, len(site.broker.image.topics["t"].partitions))
    ]
    request = fetch((replica, 0), *wanted, wait_ms=LONG_MS, min_bytes=1_000)
    await guest.send(guest.frame(request, version))
    await wait_until(lambda: len(replica.reads._listeners) == 1)
    await site.broker.submit(REMOVAL)
    await fill(replica, b"x" * 1_000)
    found = parts(await guest.receive(FetchResponse, version))[0]
    refused = (Code.UNKNOWN_TOPIC_ID if version >= 13 else Code.TOPIC_AUTHORIZATION_FAILED).number
    assert (found.error_code, found.high_watermark, bytes(found.records or b"")) == (refused, -1, b"")


def test_fetch_of_the_bucket_gives_no_records_once_its_right_is_gone(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        await grant(site, ("TOPIC", "t", "READ"))
        replica = await create_cold_topic(site, "t")
        guest = await site.client(GUEST)
        bucket.open.clear()
        await guest.send(guest.frame(fetch((replica, 0), wait_ms=LONG_MS), 12))
        await wait_until(lambda: bucket.gets > 0 and site.server.pending_requests == 1)
        await site.broker.submit(REMOVAL)
        bucket.open.set()
        found = parts(await guest.receive(FetchResponse, 12))[0]
        refused = Code.TOPIC_AUTHORIZATION_FAILED.number
        assert (found.error_code, found.high_watermark, bytes(found.records or b"")) == (refused, -1, b"")

    bucket = SlowBucket()
    bucket.open.set()
    run(tmp_path, scenario, ports=bucket.ports, authorizer_class_name=STANDARD_AUTHORIZER, **QUICK)


@run_by(run_with_acls, "tmp_path")
async def test_transactional_records_need_the_right_on_their_id(site: KafkaBroker) -> None:
    replica = await site.create("t")
    guest = await site.client(GUEST)
    await grant(site, ("TOPIC", "t", "WRITE"))
    refused = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED.number
    assert await produce_as(guest, replica, 9, "x") == refused


@run_by(run_with_acls, "tmp_path")
async def test_transactional_records_that_wait_need_the_right_on_their_id_again(
    site: KafkaBroker, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await site.create("t")
    await grant(site, ("TOPIC", "t", "WRITE"), ("TRANSACTIONAL_ID", "x", "WRITE"))
    guest = TransactionalClient(await site.client(GUEST), "x")
    assert await guest.init() is Code.NONE
    asked, removed, query = asyncio.Event(), asyncio.Event(), site.broker.transaction_verification.query

    async def query_slowly(partitions: TransactionPartitions) -> Mapping[TopicPartition, Code]:
        asked.set()
        await removed.wait()
        return await query(partitions)

    monkeypatch.setattr(site.broker.transaction_verification, "query", query_slowly)
    monkeypatch.setattr(site.broker.transaction_verification, "confirm_now", lambda _: False)
    sent = asyncio.create_task(guest.send(replica, b"hidden"))
    await asked.wait()
    await site.broker.submit(DeleteAcls((AclChoice("TRANSACTIONAL_ID", "ANY", "x", None, None, "ANY", "ANY"),)))
    removed.set()
    assert await sent is Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert replica.log.end_offset == 0


@pytest.mark.parametrize("version", [0, 1, 4, 9, 12, 13])
@run_by(run_with_acls, "tmp_path")
async def test_topics_are_hidden_from_a_caller_without_rights(site: KafkaBroker, *, version: int) -> None:
    for name in ("seen", "hidden"):
        await site.create(name)
    await grant(site, ("TOPIC", "seen", "READ"), ("TOPIC", "new", "DESCRIBE"))
    guest = await site.client(GUEST)
    everything: list[MetadataRequestTopic] | None = [] if version == 0 else None
    listed = await guest.ask(MetadataRequest(everything, False), version, MetadataResponse)
    assert [each.name for each in listed.topics] == ["seen"]
    names = [MetadataRequestTopic(name=name) for name in ("seen", "hidden", "absent", "new")]
    named = await guest.ask(MetadataRequest(names, version >= 4), version, MetadataResponse)
    codes = {each.name: each.error_code for each in named.topics}
    refused = Code.TOPIC_AUTHORIZATION_FAILED.number
    assert codes == {"seen": 0, "hidden": refused, "absent": refused, "new": refused}, "as if they did not exist"
    assert "new" not in site.broker.image.topics
    if version >= 12:
        by_id = MetadataRequestTopic(site.broker.image.topics["hidden"].topic_id, None)
        (found,) = (await guest.ask(MetadataRequest([by_id], False), version, MetadataResponse)).topics
        assert (found.error_code, found.name) == (Code.UNKNOWN_TOPIC_ID.number, None)
    await grant(site, ("TOPIC", "new", "CREATE"))
    if version >= 4:
        created = await guest.ask(MetadataRequest(names[3:], True), version, MetadataResponse)
        assert [each.error_code for each in created.topics] == [0]


@pytest.mark.parametrize("right", ["", "DESCRIBE"])
@run_by(run_with_acls, "tmp_path")
async def test_id_of_a_hidden_topic_looks_like_one_of_no_topic(site: KafkaBroker, *, right: str) -> None:
    """Every request that names a topic by its id. A caller that may describe the topic learns what it lacks."""
    await site.create("hidden")
    await grant(site, ("GROUP", "g", "READ"), *([("TOPIC", "hidden", right)] if right else []))
    guest, hidden, absent = (
        await site.client(GUEST),
        site.broker.image.topics["hidden"].topic_id,
        encode_uuid(uuid4()),
    )

    def requests(topic_id: str) -> list[tuple[Message, type[Message]]]:
        commit = OffsetCommitRequestTopic(topic_id=topic_id, partitions=[OffsetCommitRequestPartition(0, 1)])
        read = OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
        write = TopicProduceData(topic_id=topic_id, partition_data=[PartitionProduceData(0, batch([b"x"]))])
        look = FetchTopic(topic_id=topic_id, partitions=[FetchPartition(0, partition_max_bytes=1000)])
        return [
            (FetchRequest(max_wait_ms=0, topics=[look]), FetchResponse),
            (ProduceRequest(acks=1, timeout_ms=1000, topic_data=[write]), ProduceResponse),
            (OffsetCommitRequest("g", topics=[commit]), OffsetCommitResponse),
            (OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=[read])]), OffsetFetchResponse),
            (DeleteTopicsRequest(topics=[DeleteTopicState(None, topic_id)], timeout_ms=1000), DeleteTopicsResponse),
            (MetadataRequest([MetadataRequestTopic(topic_id, None)], False), MetadataResponse),
        ]

    for (named, response), (other, _) in zip(requests(hidden), requests(absent), strict=True):
        api = next(each for each in ALL_APIS.values() if each.name == type(named).__name__.removesuffix("Request"))
        for version in range(BY_ID_FROM[api.name], api.high + 1):
            one, two = await guest.ask(named, version, response), await guest.ask(other, version, response)
            seen = [bytes(encode(each, version)) for each in (one, two)]
            as_absent = seen[0].replace(decode_uuid(hidden), decode_uuid(absent))
            looks_alike = as_absent.replace(hidden.encode(), absent.encode()) == seen[1]
            assert looks_alike is not bool(right), (named, version, one, two)


@run_by(run_with_acls, "tmp_path")
async def test_authorized_operations_are_those_of_the_caller(site: KafkaBroker) -> None:
    await site.create("seen")
    await grant(site, ("TOPIC", "seen", "READ"))
    guest, admin = await site.client(GUEST), await site.client(ADMIN)
    request = MetadataRequest([MetadataRequestTopic(name="seen")], False, True, True)
    answer = await guest.ask(request, 10, MetadataResponse)
    assert answer.topics[0].topic_authorized_operations == 1 << READ | 1 << DESCRIBE
    assert answer.cluster_authorized_operations == 0
    answer = await admin.ask(request, 10, MetadataResponse)
    assert answer.topics[0].topic_authorized_operations == 0b110111111000
    assert answer.cluster_authorized_operations == 0b1111110100000


@run_by(run_with_acls, "tmp_path")
async def test_handlers_see_only_what_is_allowed(site: KafkaBroker) -> None:
    await site.create("seen")
    await site.create("hidden")
    await grant(site, ("TOPIC", "seen", "DESCRIBE"), ("TOPIC", "mine", "CREATE"))
    guest = await site.client(GUEST)
    offsets = ListOffsetsRequest(
        -1, 0, [ListOffsetsTopic(name, [ListOffsetsPartition(0, -1, -1)]) for name in ("hidden", "seen")]
    )
    listed = await guest.ask(offsets, 7, ListOffsetsResponse)
    codes = {each.name: each.partitions[0].error_code for each in listed.topics}
    assert codes == {"seen": 0, "hidden": Code.TOPIC_AUTHORIZATION_FAILED.number}
    creation = CreateTopicsRequest([CreatableTopic("mine", 1, 1), CreatableTopic("other", 1, 1)], 10_000)
    created = await guest.ask(creation, 7, CreateTopicsResponse)
    assert {each.name: each.error_code for each in created.topics} == {"mine": 0, "other": 29}
    assert {each.name: each.topic_config_error_code for each in created.topics}["mine"] == 29
    assert "other" not in site.broker.image.topics
    deleted = await guest.ask(DeleteTopicsRequest(topic_names=["hidden"]), 5, DeleteTopicsResponse)
    assert deleted.responses[0].error_code == 29 and "hidden" in site.broker.image.topics

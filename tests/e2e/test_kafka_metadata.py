"""Tests of Metadata, DescribeCluster and DescribeTopicPartitions over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.kafka_site import KafkaBroker, RawClient, run
from tests.scenario import run_by
from tiered.controller.requests import CreatePartitions
from tiered.errors import Code
from tiered_api.kafka.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tiered_api.kafka.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from tiered_api.kafka.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tiered_api.kafka.protocol.schema import ZERO_ID

ANY_VERSION = range(14)
NOT_ASKED = -(1 << 31)


async def ask(
    client: RawClient, version: int, *names: str | None, create: bool = False, **more: bool
) -> MetadataResponse:
    """Requests Metadata of these topics; None alone requests all of them."""
    topics = None if names == (None,) else [MetadataRequestTopic(name=name) for name in names]
    if version == 0 and topics is None:
        topics = []
    request = MetadataRequest(topics, create, **more)
    return await client.ask(request, version, MetadataResponse)


@pytest.mark.parametrize("version", ANY_VERSION)
@run_by(run, "tmp_path")
async def test_every_version_has_brokers_and_topics(site: KafkaBroker, *, version: int) -> None:
    await site.create("t", 3)
    client = await site.client()
    for _ in range(2):  # the second time from fragments that are kept
        answer = await ask(client, version, None)
        (broker,) = answer.brokers
        assert f"{broker.host}:{broker.port}" == site.address and broker.rack is None
        (topic,) = answer.topics
        assert (topic.error_code, topic.name, topic.is_internal) == (0, "t", False)
        assert [each.partition_index for each in topic.partitions] == [0, 1, 2]
        for each in topic.partitions:
            assert (each.error_code, each.leader_id, each.replica_nodes, each.isr_nodes) == (0, 1, [1], [1])
            assert each.offline_replicas == [] and each.leader_epoch == (0 if version >= 7 else -1)
        assert topic.topic_id == (site.broker.image.topics["t"].topic_id if version >= 10 else ZERO_ID)
        assert topic.topic_authorized_operations == NOT_ASKED and answer.cluster_authorized_operations == NOT_ASKED
        assert answer.controller_id == (1 if version >= 1 else -1)
        assert answer.cluster_id == (site.broker.cluster_id if version >= 2 else None)


@run_by(run, "tmp_path")
async def test_empty_list_means_all_topics_in_v0_and_none_later(site: KafkaBroker) -> None:
    await site.create("t")
    client = await site.client()
    assert len((await client.ask(MetadataRequest([]), 0, MetadataResponse)).topics) == 1
    for version in range(1, 14):
        assert (await ask(client, version)).topics == []
        assert len((await ask(client, version, None)).topics) == 1


@run_by(run, "tmp_path", num_partitions=2)
async def test_missing_topic_is_created_and_returned_with_its_leaders(site: KafkaBroker) -> None:
    client = await site.client()
    asked = await ask(client, 9, "no")
    assert [topic.error_code for topic in asked.topics] == [Code.UNKNOWN_TOPIC_OR_PARTITION.number]
    first, second, illegal = (await ask(client, 9, "a", "b", "c/d", create=True)).topics
    assert (illegal.error_code, illegal.name) == (Code.INVALID_TOPIC_EXCEPTION.number, "c/d")
    for topic in (first, second):
        assert topic.error_code == 0 and [each.leader_id for each in topic.partitions] == [1, 1]
    assert (await ask(client, 3, "old")).topics[0].error_code == 0, "before v4 every question may create"
    assert set(site.broker.image.topics) == {"a", "b", "old"}


@run_by(run, "tmp_path")
async def test_concurrent_requests_for_a_new_topic_all_get_it(site: KafkaBroker) -> None:
    clients = [await site.client() for _ in range(8)]
    answers = await asyncio.gather(*(ask(client, 12, "new", "other", create=True) for client in clients))
    ids = {(topic.name, topic.error_code, topic.topic_id) for answer in answers for topic in answer.topics}
    assert ids == {(name, 0, topic.topic_id) for name, topic in site.broker.image.topics.items()}
    assert len(ids) == 2


@run_by(run, "tmp_path", auto_create_topics_enable=False)
async def test_no_topic_is_created_if_the_broker_forbids_it(site: KafkaBroker) -> None:
    answer = await ask(await site.client(), 12, "new", "__consumer_offsets", create=True)
    assert [(topic.error_code, topic.is_internal) for topic in answer.topics] == [(3, False), (3, True)]
    assert not site.broker.image.topics


@run_by(run, "tmp_path")
async def test_topics_are_found_by_id(site: KafkaBroker) -> None:
    await site.create("t")
    known, unknown = site.broker.image.topics["t"].topic_id, "A" * 21 + "Q"
    client = await site.client()
    both = MetadataRequest([MetadataRequestTopic(known, None), MetadataRequestTopic(unknown, None)], False)
    for version in (12, 13):
        found, missing = (await client.ask(both, version, MetadataResponse)).topics
        assert (found.error_code, found.name) == (0, "t")
        assert missing == MetadataResponseTopic(Code.UNKNOWN_TOPIC_ID.number, None, unknown)
    neither = MetadataRequest([MetadataRequestTopic(ZERO_ID, None)], False)
    assert (await client.ask(neither, 12, MetadataResponse)).topics[0].error_code == Code.INVALID_REQUEST.number
    early = await client.ask(MetadataRequest([MetadataRequestTopic(known, "t")], False), 11, MetadataResponse)
    assert early.topics[0].error_code == Code.INVALID_REQUEST.number


@run_by(run, "tmp_path")
async def test_changed_topic_is_returned_at_once_and_others_stay_cached(site: KafkaBroker) -> None:
    await site.create("a")
    await site.create("b")
    client, fragments = await site.client(), site.server.context.topic_fragments
    image = site.broker.image

    await ask(client, 12, None)
    kept = {name: fragments.get_fragment(image.topics[name], 12, False) for name in "ab"}
    await site.broker.submit(CreatePartitions("a", 4))
    grown = await ask(client, 12, None)
    assert {topic.name: len(topic.partitions) for topic in grown.topics} == {"a": 4, "b": 1}
    now = site.broker.image.topics
    assert fragments.get_fragment(now["b"], 12, False) is kept["b"]
    assert fragments.get_fragment(now["a"], 12, False) is not kept["a"]
    asked = await ask(client, 12, "b", include_topic_authorized_operations=True)
    assert asked.topics[0].topic_authorized_operations == 0b110111111000
    assert (await ask(client, 12, "b")).topics[0].topic_authorized_operations == NOT_ASKED


@run_by(run, "tmp_path")
async def test_cluster_is_described(site: KafkaBroker) -> None:
    client = await site.client()
    for version in range(3):
        answer = await client.ask(DescribeClusterRequest(True), version, DescribeClusterResponse)
        (broker,) = answer.brokers
        assert f"{broker.host}:{broker.port}" == site.address and not broker.is_fenced
        assert (broker.broker_id, answer.controller_id, answer.cluster_id) == (1, 1, site.broker.cluster_id)
        assert answer.cluster_authorized_operations == 0b1111110100000
    for kind, code in ((2, Code.MISMATCHED_ENDPOINT_TYPE), (3, Code.UNSUPPORTED_ENDPOINT_TYPE)):
        asked = DescribeClusterRequest(endpoint_type=kind)
        assert (await client.ask(asked, 1, DescribeClusterResponse)).error_code == code.number


@run_by(run, "tmp_path")
async def test_topics_are_described_page_by_page(site: KafkaBroker) -> None:
    for name, partitions in (("c", 2), ("a", 3), ("b", 1)):
        await site.create(name, partitions)
    client = await site.client()

    async def pages(names: list[str], limit: int) -> list[list[tuple[str, int, list[int]]]]:
        found, cursor = [], None
        while True:
            request = DescribeTopicPartitionsRequest([TopicRequest(name) for name in names], limit, cursor)
            answer = await client.ask(request, 0, DescribeTopicPartitionsResponse)
            found.append(
                [
                    (topic.name or "", topic.error_code, [each.partition_index for each in topic.partitions])
                    for topic in answer.topics
                ]
            )
            cursor = answer.next_cursor
            if cursor is None:
                return found

    assert await pages([], 4) == [[("a", 0, [0, 1, 2]), ("b", 0, [0])], [("c", 0, [0, 1])]]
    assert await pages(["c", "a", "zz", "a"], 2) == [[("a", 0, [0, 1])], [("a", 0, [2]), ("c", 0, [0])],
                                                    [("c", 0, [1]), ("zz", 3, [])]]  # fmt: skip
    wrong = DescribeTopicPartitionsRequest([TopicRequest("a")], 5, Cursor("b", 0))
    answer = await client.ask(wrong, 0, DescribeTopicPartitionsResponse)
    assert [topic.error_code for topic in answer.topics] == [Code.INVALID_REQUEST.number]
    whole = await client.ask(DescribeTopicPartitionsRequest([TopicRequest("b")]), 0, DescribeTopicPartitionsResponse)
    (partition,) = whole.topics[0].partitions
    assert (partition.leader_id, partition.isr_nodes, partition.eligible_leader_replicas) == (1, [1], [])

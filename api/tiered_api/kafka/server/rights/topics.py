"""Checks of requests about topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiered.security.acls import Operation, ResourceType
from tiered_api.kafka.protocol.messages import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_producers,
    list_offsets,
    offset_for_leader_epoch,
    tiered_compact,
)
from tiered_api.kafka.protocol.messages import describe_topic_partitions as topic_pages
from tiered_api.kafka.server.rights.rights import Rights
from tiered_api.kafka.server.rights.verdict import TOPIC_REFUSED, WHY, Guard, Verdict, keep, part, split_items

BY_ID = 6


def check_topics(
    operation: Operation, response_type: Callable[[], Any], refuse: Callable[[Any], Any], results: str = "topics"
) -> Guard:
    """An operation on each topic. `refuse` returns the result of a topic; `results` names the list in the response."""

    async def check(rights: Rights, request: Any, version: int) -> Verdict:
        return await split_items(
            rights, request, "topics", response_type, results,
            lambda topic: rights.on_topic(operation, topic.name), refuse,
        )  # fmt: skip

    return check


check_list_offsets = check_topics(
    Operation.DESCRIBE,
    list_offsets.ListOffsetsResponse,
    lambda topic: list_offsets.ListOffsetsTopicResponse(
        topic.name,
        [list_offsets.ListOffsetsPartitionResponse(each.partition_index, TOPIC_REFUSED) for each in topic.partitions],
    ),
)
check_delete_records = check_topics(
    Operation.DELETE,
    delete_records.DeleteRecordsResponse,
    lambda topic: delete_records.DeleteRecordsTopicResult(
        topic.name,
        [
            delete_records.DeleteRecordsPartitionResult(each.partition_index, -1, TOPIC_REFUSED)
            for each in topic.partitions
        ],
    ),
)
check_describe_producers = check_topics(
    Operation.READ,
    describe_producers.DescribeProducersResponse,
    lambda topic: describe_producers.TopicResponse(
        topic.name,
        [describe_producers.PartitionResponse(each, TOPIC_REFUSED, WHY) for each in topic.partition_indexes],
    ),
)
check_create_partitions = check_topics(
    Operation.ALTER,
    create_partitions.CreatePartitionsResponse,
    lambda topic: create_partitions.CreatePartitionsTopicResult(topic.name, TOPIC_REFUSED, WHY),
    "results",
)


async def check_leader_epochs(
    rights: Rights, request: offset_for_leader_epoch.OffsetForLeaderEpochRequest, version: int
) -> Verdict:
    """DESCRIBE on each topic."""
    return await split_items(
        rights, request, "topics", offset_for_leader_epoch.OffsetForLeaderEpochResponse, "topics",
        lambda topic: rights.on_topic(Operation.DESCRIBE, topic.topic),
        lambda topic: offset_for_leader_epoch.OffsetForLeaderTopicResult(
            topic.topic,
            [offset_for_leader_epoch.EpochEndOffset(TOPIC_REFUSED, each.partition) for each in topic.partitions],
        ),
    )  # fmt: skip


async def check_create_topics(rights: Rights, request: create_topics.CreateTopicsRequest, version: int) -> Verdict:
    """CREATE on the cluster or on each topic. The reply has settings of topics with DESCRIBE_CONFIGS only."""
    verdict = await split_items(
        rights, request, "topics", create_topics.CreateTopicsResponse, "topics",
        lambda topic: rights.may_create(topic.name),
        lambda topic: create_topics.CreatableTopicResult(
            topic.name, error_code=TOPIC_REFUSED, error_message=WHY, configs=[]
        ),
    )  # fmt: skip
    if verdict.response is not None:
        return verdict

    async def finish(response: create_topics.CreateTopicsResponse) -> None:
        for topic in response.topics:
            if not topic.error_code and not rights.on_topic(Operation.DESCRIBE_CONFIGS, topic.name):
                topic.topic_config_error_code = TOPIC_REFUSED
                topic.num_partitions = topic.replication_factor = -1
                topic.configs = []
        if verdict.finish is not None:
            await verdict.finish(response)

    return Verdict(None, finish)


async def check_delete_topics(rights: Rights, request: delete_topics.DeleteTopicsRequest, version: int) -> Verdict:
    """DELETE on each topic. A topic that the caller may not describe is not named in the reply to its id."""
    if version < BY_ID:
        return await split_items(
            rights, request, "topic_names", delete_topics.DeleteTopicsResponse, "responses",
            lambda name: rights.on_topic(Operation.DELETE, name),
            lambda name: delete_topics.DeletableTopicResult(name, error_code=TOPIC_REFUSED, error_message=WHY),
        )  # fmt: skip
    return await split_items(
        rights, request, "topics", delete_topics.DeleteTopicsResponse, "responses",
        lambda topic: (
            rights.on_topic(Operation.DELETE, topic.name)
            if topic.name is not None
            else rights.on_topic_id(Operation.DELETE, topic.topic_id)
        ),
        lambda topic: delete_topics.DeletableTopicResult(
            topic.name, topic.topic_id,
            *(TOPIC_REFUSED, WHY) if topic.name is not None else rights.find_refusal(topic.topic_id),
        ),
    )  # fmt: skip


async def check_topic_pages(
    rights: Rights, request: topic_pages.DescribeTopicPartitionsRequest, version: int
) -> Verdict:
    """DESCRIBE on each topic. Other topics are left out of a list of all topics."""
    cursor, named = request.cursor, [topic.name for topic in request.topics]
    visible, refused = await part(rights, named, lambda name: rights.on_topic(Operation.DESCRIBE, name))
    if not named:
        first = cursor.topic_name if cursor is not None else ""
        visible = await keep(
            rights, sorted(rights.image.topics),
            lambda name: name >= first and rights.on_topic(Operation.DESCRIBE, name),
        )  # fmt: skip
        if cursor is not None and cursor.topic_name not in visible:
            request.cursor = None
    request.topics = [topic_pages.TopicRequest(name) for name in visible]

    async def finish(response: topic_pages.DescribeTopicPartitionsResponse) -> None:
        for topic in response.topics:
            topic.topic_authorized_operations = rights.mask(ResourceType.TOPIC, topic.name or "")
        if cursor is None:
            async for each in rights.each_of(refused):
                response.topics.append(topic_pages.DescribeTopicPartitionsResponseTopic(TOPIC_REFUSED, each))

    if not visible:
        response = topic_pages.DescribeTopicPartitionsResponse()
        await finish(response)
        return Verdict(response)
    return Verdict(None, finish)


async def check_compact(rights: Rights, request: tiered_compact.TieredCompactRequest, version: int) -> Verdict:
    """DESCRIBE on each topic, or ALTER if it is to be cleaned."""
    operation = Operation.ALTER if request.clean else Operation.DESCRIBE
    return await split_items(
        rights, request, "topics", tiered_compact.TieredCompactResponse, "partitions",
        lambda topic: rights.on_topic(operation, topic.topic),
        lambda topic: tiered_compact.CompactionFacts(topic.topic, -1, TOPIC_REFUSED, WHY),
    )  # fmt: skip

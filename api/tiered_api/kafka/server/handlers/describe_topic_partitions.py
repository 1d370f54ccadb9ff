"""DescribeTopicPartitions (API key 75): topics in pages of partitions, with the eligible leader replicas (KIP-966).

Topics are sorted by name, each once. No names stand for all topics. A reply ends after `response_partition_limit`
partitions (2,000 at most), with a cursor for the next page. A name without a topic counts as one partition.
"""

from __future__ import annotations

from tiered.broker.partition_troubles import PartitionTroubles
from tiered.errors import Code, Refused
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import TopicImage
from tiered.metadata.topic_names import INTERNAL, check_name
from tiered_api.kafka.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from tiered_api.kafka.server.context.advertised_brokers import live_brokers
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import TOPIC_OPERATIONS
from tiered_api.kafka.server.context.metadata_fragments import advertised_leader

LIMIT = 2_000


async def handle(context: KafkaContext, call: Call[DescribeTopicPartitionsRequest]) -> DescribeTopicPartitionsResponse:
    """Returns one page."""
    request, image = call.request, context.broker.image
    turns = context.turns
    names = {topic.name async for topic in turns.each_of(request.topics)}
    cursor = request.cursor
    if cursor is not None and (cursor.partition_index < 0 or (names and cursor.topic_name not in names)):
        wrong = Code.INVALID_REQUEST.number
        topics = [
            DescribeTopicPartitionsResponseTopic(wrong, name.name) async for name in turns.each_of(request.topics)
        ]
        return DescribeTopicPartitionsResponse(topics=topics)
    after = cursor.topic_name if cursor is not None else ""
    wanted: list[str] = []
    async for name in turns.each_of(list(names or image.topics)):
        if name >= after:
            wanted.append(name)
            if len(wanted) == 2 * LIMIT:
                wanted = sorted(wanted)[: LIMIT + 2]  # more are on later pages
    wanted = sorted(wanted)[: LIMIT + 2]
    first = cursor.partition_index if cursor is not None else 0
    return make_page(
        image, wanted, cursor.topic_name if cursor is not None else "", first, request.response_partition_limit,
        context.broker.partition_troubles,
    )  # fmt: skip


def make_page(
    image: Image, names: list[str], cursor_topic: str, first: int, limit: int, troubles: PartitionTroubles
) -> DescribeTopicPartitionsResponse:
    """Returns a page: the topics in `names` in order, `cursor_topic` from partition `first` on, up to `limit`
    partitions."""
    alive = live_brokers(image)
    response = DescribeTopicPartitionsResponse()
    room = max(1, min(limit, LIMIT))
    for name in names:
        if not room:
            response.next_cursor = Cursor(name, 0)
            break
        topic = image.topics.get(name)
        if topic is None:
            response.topics.append(_make_unknown_topic(name))
            room -= 1
            continue
        start = first if name == cursor_topic else 0
        end = min(start + room, len(topic.partitions))
        response.topics.append(_make_topic(topic, range(start, end), alive, troubles))
        room -= max(0, end - start)
        if end < len(topic.partitions):
            response.next_cursor = Cursor(name, end)
            break
    return response


def _make_topic(
    topic: TopicImage, numbers: range, live_ids: frozenset[int], troubles: PartitionTroubles
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL,
        partitions=[_make_partition(topic, number, live_ids, troubles) for number in numbers],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _make_partition(
    topic: TopicImage, number: int, live_ids: frozenset[int], troubles: PartitionTroubles
) -> DescribeTopicPartitionsResponsePartition:
    partition = topic.partitions[number]
    code, leader = advertised_leader(partition, live_ids)
    return DescribeTopicPartitionsResponsePartition(
        error_code=code.number,
        partition_index=number,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known),
        offline_replicas=[each for each in partition.replicas if each not in live_ids],
        is_in_bucket=partition.is_in_bucket,
        leaderless_since_ms=troubles.leaderless_since_ms(topic.topic_id, number),
        missing_since_ms=list(troubles.missing_since_ms(topic.topic_id, number)),
    )


def _make_unknown_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = Code.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_name(name)
    except Refused as refused:
        code = refused.code
    return DescribeTopicPartitionsResponseTopic(
        code.number, name, is_internal=name in INTERNAL, topic_authorized_operations=TOPIC_OPERATIONS
    )

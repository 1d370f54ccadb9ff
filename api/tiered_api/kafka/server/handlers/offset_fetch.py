"""OffsetFetch (API key 9): the committed offsets of groups.

In v2+ null means all partitions, and the whole reply can have an error. v5+ has leader epochs (KIP-320). v7+ can
refuse offsets that an open transaction may change (KIP-447). v8+ has many groups (KIP-709), v9+ the member that fetches
(KIP-848), v10+ topic ids. A partition without a committed offset gets offset -1 and no error.
Repeated groups and partitions get one result: a reply is thousands of times as long as its request. Offsets of more
than `FETCHED_ROWS` partitions are looked up in pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiered.errors import Code
from tiered.groups.requests import NO_OFFSET, FetchOffsets, FetchOffsetsReply, PartitionOffset
from tiered.ids import TopicId
from tiered.metadata.image import Image
from tiered.system.turns import Turns
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import call_coordinator

GROUP_ERROR_FROM, MANY_GROUPS_FROM, TOPIC_IDS_FROM = 2, 8, 10
FETCHED_ROWS = 2_000
"""Partitions that one decision of the coordinator looks up: their offsets are those of one moment."""


async def handle(context: KafkaContext, call: Call[OffsetFetchRequest]) -> OffsetFetchResponse:
    """Returns the committed offsets of each group."""
    request = call.request
    if call.version >= MANY_GROUPS_FROM:
        return OffsetFetchResponse(groups=await _fetch_groups(context, request, call.version))
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(each.name, partition_indexes=each.partition_indexes) for each in request.topics
        ]
    requested = OffsetFetchRequestGroup(request.group_id, topics=topics)
    only = await _fetch_group(context, requested, call.version, request.require_stable)
    return await _make_single_response(context.turns, only, topics or [], call.version)


async def _fetch_groups(
    context: KafkaContext, request: OffsetFetchRequest, version: int
) -> list[OffsetFetchResponseGroup]:
    once: dict[tuple[str, bool], OffsetFetchRequestGroup] = {}
    async for group in context.turns.each_of(request.groups):
        once.setdefault((group.group_id, group.topics is None), group)
    groups = context.turns.each_of(once.values())
    return [await _fetch_group(context, group, version, request.require_stable) async for group in groups]


async def _fetch_group(
    context: KafkaContext, requested: OffsetFetchRequestGroup, version: int, require_stable: bool
) -> OffsetFetchResponseGroup:
    image = context.broker.image
    if requested.topics is None:
        fetch = FetchOffsets(
            requested.group_id, None, requested.member_id, requested.member_epoch, require_stable=require_stable
        )
        reply = await call_coordinator(context, requested.group_id, fetch, FetchOffsetsReply)
        if isinstance(reply, Code) or reply.code is not Code.NONE:
            return _make_refused_group(requested, reply if isinstance(reply, Code) else reply.code)
        by_topic = await _group_by_topic(context.turns, reply, image, version)
        return OffsetFetchResponseGroup(requested.group_id, by_topic)
    merged = await _merge_duplicates(context.turns, requested.topics)
    named = [(each, _find_topic_name(image, each, version)) async for each in context.turns.each_of(merged)]
    wanted = ((name, p) for each, name in named if name is not None for p in each.partition_indexes)
    rows = [row async for row in context.turns.each_of(wanted)]
    ids = {name: each.topic_id for each, name in named if name is not None} if version >= TOPIC_IDS_FROM else {}
    places = list[OffsetFetchResponsePartitions]()
    for first in range(0, max(len(rows), 1), FETCHED_ROWS):
        piece = tuple(rows[first : first + FETCHED_ROWS])
        ids_of_piece = tuple((name, ids[name]) for name in dict.fromkeys(name for name, _ in piece) if name in ids)
        if first:
            await context.turns.wait_turn()
        fetch = FetchOffsets(
            requested.group_id, piece, requested.member_id, requested.member_epoch, ids_of_piece, require_stable
        )
        reply = await call_coordinator(context, requested.group_id, fetch, FetchOffsetsReply)
        if isinstance(reply, Code) or reply.code is not Code.NONE:
            return _make_refused_group(requested, reply if isinstance(reply, Code) else reply.code)
        places += [_make_partition(row, reply) async for row in context.turns.each_of(reply.offsets)]
    topics = [OffsetFetchResponseTopics(each.name, each.topic_id) async for each, _ in context.turns.each_of(named)]
    found = iter(places)
    wanted_rows = (
        (made, name, p) for made, (each, name) in zip(topics, named, strict=True) for p in each.partition_indexes
    )
    async for made, name, p in context.turns.each_of(wanted_rows):
        made.partitions.append(_make_error_partition(p, Code.UNKNOWN_TOPIC_ID) if name is None else next(found))
    return OffsetFetchResponseGroup(requested.group_id, topics)


async def _merge_duplicates(
    turns: Turns, requested: Iterable[OffsetFetchRequestTopics]
) -> list[OffsetFetchRequestTopics]:
    wanted: dict[tuple[str, str], dict[int, None]] = {}
    async for topic in turns.each_of(requested):
        wanted.setdefault((topic.name, topic.topic_id), {}).update(dict.fromkeys(topic.partition_indexes))
    return [OffsetFetchRequestTopics(*place, list(rows)) async for place, rows in turns.each_of(wanted.items())]


def _find_topic_name(image: Image, requested: OffsetFetchRequestTopics, version: int) -> str | None:
    if version < TOPIC_IDS_FROM:
        return requested.name
    topic = image.topics_by_id.get(TopicId(requested.topic_id))
    return topic.name if topic is not None else None


async def _group_by_topic(
    turns: Turns, reply: FetchOffsetsReply, image: Image, version: int
) -> list[OffsetFetchResponseTopics]:
    """Groups rows by topic. If topics go by id, leaves out topics that have none."""
    topics: dict[str, OffsetFetchResponseTopics] = {}
    async for row in turns.each_of(reply.offsets):
        known = image.topics.get(row.topic)
        if version >= TOPIC_IDS_FROM and (known is None or row.topic_id not in ("", known.topic_id)):
            continue
        if row.topic not in topics:
            topics[row.topic] = OffsetFetchResponseTopics(row.topic)
            if known is not None:
                topics[row.topic].topic_id = known.topic_id
        topics[row.topic].partitions.append(_make_partition(row, reply))
    return list(topics.values())


def _make_partition(row: PartitionOffset, reply: FetchOffsetsReply) -> OffsetFetchResponsePartitions:
    code = Code.UNSTABLE_OFFSET_COMMIT if (row.topic, row.partition) in reply.unstable else Code.NONE
    return OffsetFetchResponsePartitions(row.partition, row.offset, row.leader_epoch, row.metadata, code.number)


def _make_error_partition(partition: int, code: Code) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(partition, NO_OFFSET, -1, "", code.number)


def _make_refused_group(requested: OffsetFetchRequestGroup, code: Code) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(requested.group_id, [], code.number)


async def _make_single_response(
    turns: Turns, group: OffsetFetchResponseGroup, requested: Sequence[OffsetFetchRequestTopics], version: int
) -> OffsetFetchResponse:
    """Returns the reply about one group in the older form. In v1 only partitions have an error code."""
    code, is_refused = group.error_code, group.error_code != 0 and version < GROUP_ERROR_FROM
    named: Sequence[OffsetFetchRequestTopics | OffsetFetchResponseTopics] = requested if is_refused else group.topics
    topics = [OffsetFetchResponseTopic(each.name) async for each in turns.each_of(named)]
    refused = (
        (made, OffsetFetchResponsePartition(p, NO_OFFSET, -1, "", code))
        for made, topic in zip(topics, requested, strict=True)
        for p in topic.partition_indexes
    )
    found = (
        (
            made,
            OffsetFetchResponsePartition(
                each.partition_index, each.committed_offset, each.committed_leader_epoch, each.metadata, each.error_code
            ),
        )
        for made, topic in zip(topics, group.topics, strict=True)
        for each in topic.partitions
    )
    async for made, partition in turns.each_of(refused if is_refused else found):
        made.partitions.append(partition)
    return OffsetFetchResponse(topics=topics, error_code=0 if is_refused else code)

"""OffsetCommit (API key 8): the offsets that a group has consumed.

v2-4 have a retention time, v6+ the leader epoch of the consumed records (KIP-320). v7+ names static members (KIP-345).
v9+ distinguishes an unknown group from an old generation (KIP-848). v10+ names topics by their ids (KIP-848). Each
partition that does not exist is refused alone. The others are committed together, or in pieces if they are many. The
reply comes once all in-sync replicas have the commits in their log.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.requests import CommitOffsets, CommitOffsetsReply, PartitionOffset
from tiered.ids import TopicId
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import TopicImage
from tiered_api.kafka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests import group_requests
from tiered_api.kafka.server.requests.group_requests import call_coordinator, commit_in_pieces

GROUP_ID_NOT_FOUND_FROM, TOPIC_IDS_FROM = 9, 10


async def handle(context: KafkaContext, call: Call[OffsetCommitRequest]) -> OffsetCommitResponse:
    """Returns one code per partition, in the order of the request."""
    request, version, image, turns = call.request, call.version, context.broker.image, context.turns
    topics: list[OffsetCommitResponseTopic] = []
    found: list[tuple[TopicImage | None, Code]] = []
    async for requested in turns.each_of(request.topics):
        topics.append(OffsetCommitResponseTopic(requested.name, requested.topic_id))
        found.append(_find_topic(image, requested, version))
    named = zip(topics, found, request.topics, strict=True)
    rows: list[PartitionOffset] = []
    places: list[OffsetCommitResponsePartition] = []
    flat = (
        (made, topic, refusal, each) for made, (topic, refusal), named_topic in named for each in named_topic.partitions
    )
    async for made, topic, refusal, each in turns.each_of(flat):
        place = OffsetCommitResponsePartition(each.partition_index, refusal.number)
        made.partitions.append(place)
        if topic is not None and 0 <= each.partition_index < len(topic.partitions):
            places.append(place)
            rows.append(
                PartitionOffset(
                    topic.name, each.partition_index, each.committed_offset, each.committed_leader_epoch,
                    each.committed_metadata or "", topic.topic_id if version >= TOPIC_IDS_FROM else "",
                )
            )  # fmt: skip
    holder = call.caller.holder
    codes = await _commit_offsets(context, request, tuple(rows), version, holder) if rows else ()
    async for place, code in turns.each_of(zip(places, codes, strict=True)):
        place.error_code = code.number
    return OffsetCommitResponse(topics=topics)


def _find_topic(image: Image, requested: OffsetCommitRequestTopic, version: int) -> tuple[TopicImage | None, Code]:
    """Returns the topic, and the code for partitions that do not exist."""
    if version < TOPIC_IDS_FROM:
        return image.topics.get(requested.name), Code.UNKNOWN_TOPIC_OR_PARTITION
    found = image.topics_by_id.get(TopicId(requested.topic_id))
    return found, Code.UNKNOWN_TOPIC_ID if found is None else Code.UNKNOWN_TOPIC_OR_PARTITION


async def _commit_offsets(
    context: KafkaContext,
    request: OffsetCommitRequest,
    rows: tuple[PartitionOffset, ...],
    version: int,
    holder: str,
) -> tuple[Code, ...]:
    async def commit(piece: tuple[PartitionOffset, ...]) -> tuple[Code, ...]:
        requested = CommitOffsets(
            request.group_id,
            piece,
            request.generation_id_or_member_epoch,
            request.member_id,
            request.group_instance_id,
            request.retention_time_ms,
            version >= GROUP_ID_NOT_FOUND_FROM,
            holder,
        )
        reply = await call_coordinator(context, request.group_id, requested, CommitOffsetsReply)
        return reply.codes if isinstance(reply, CommitOffsetsReply) else (reply,) * len(piece)

    codes = await commit_in_pieces(context, rows, commit, group_requests.COMMIT_PIECE_PARTITIONS)
    if version >= GROUP_ID_NOT_FOUND_FROM:
        return codes
    return tuple(Code.ILLEGAL_GENERATION if code is Code.GROUP_ID_NOT_FOUND else code for code in codes)

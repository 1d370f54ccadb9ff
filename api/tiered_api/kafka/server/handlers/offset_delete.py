"""OffsetDelete (API key 47): deletes committed offsets of a group (KIP-496).

Offsets of topics to which members are subscribed stay. Each partition that does not exist is refused alone.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.requests import DeleteOffsets, DeleteReply
from tiered_api.kafka.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tiered_api.kafka.server.exchange.context import Call, KafkaContext
from tiered_api.kafka.server.exchange.group_requests import call_coordinator, has_partition


async def handle(context: KafkaContext, call: Call[OffsetDeleteRequest]) -> OffsetDeleteResponse:
    """Returns one code per partition, or one code if the whole request is refused."""
    request, image = call.request, context.broker.image
    requested = [(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
    there = tuple(row for row in requested if has_partition(image, *row))
    reply = await call_coordinator(context, request.group_id, DeleteOffsets(request.group_id, there), DeleteReply)
    code = reply.code if isinstance(reply, DeleteReply) else reply
    if isinstance(reply, Code) or code is not Code.NONE:
        return OffsetDeleteResponse(error_code=code.number)
    codes = dict(zip(there, reply.codes, strict=True))
    topics = [
        OffsetDeleteResponseTopic(
            topic.name,
            [
                OffsetDeleteResponsePartition(
                    each.partition_index,
                    codes.get((topic.name, each.partition_index), Code.UNKNOWN_TOPIC_OR_PARTITION).number,
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return OffsetDeleteResponse(topics=topics)

"""OffsetDelete (API key 47): deletes committed offsets of a group (KIP-496).

Offsets of topics to which members are subscribed stay. Each partition that does not exist is refused alone.
Offsets of more than a thousand partitions are deleted in pieces, with one decision for each. If a later one is refused,
the whole reply has its error.
"""

from __future__ import annotations

from functools import partial

from tiered.controller.change_descriptions import DELETE, GROUP, DescribedChange
from tiered.errors import Code
from tiered.groups.requests import DeleteOffsets, DeleteReply
from tiered_api.kafka.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import decide_in_pieces, has_partition


async def handle(context: KafkaContext, call: Call[OffsetDeleteRequest]) -> OffsetDeleteResponse:
    """Returns one code per partition, or one code if the whole request is refused."""
    request, image, turns = call.request, context.broker.image, context.turns
    requested = ((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    there = [row async for row in turns.each_of(requested) if has_partition(image, *row)]
    code, found = await decide_in_pieces(
        context, request.group_id, there, partial(DeleteOffsets, request.group_id), DeleteReply
    )
    if code is not Code.NONE:
        return OffsetDeleteResponse(error_code=code.number)
    codes = dict(zip(there, found, strict=True))
    topics = sorted({topic for (topic, _), outcome in codes.items() if outcome is Code.NONE})
    changes = [DescribedChange(DELETE, GROUP, request.group_id, f"offsets of {topic}") for topic in topics]
    context.broker.audit.record_changes(call.caller, changes)
    response = OffsetDeleteResponse()
    async for topic in turns.each_of(request.topics):
        response.topics.append(OffsetDeleteResponseTopic(topic.name))
    places = (
        (made, each) for topic, made in zip(request.topics, response.topics, strict=True) for each in topic.partitions
    )
    async for made, each in turns.each_of(places):
        code = codes.get((made.name, each.partition_index), Code.UNKNOWN_TOPIC_OR_PARTITION)
        made.partitions.append(OffsetDeleteResponsePartition(each.partition_index, code.number))
    return response

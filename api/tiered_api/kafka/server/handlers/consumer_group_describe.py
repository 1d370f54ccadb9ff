"""ConsumerGroupDescribe (API key 69): epochs, members and assignments of consumer groups (KIP-848).

v1+ tells which protocol a member uses (KIP-1099). A group of another type has GROUP_ID_NOT_FOUND, at which clients ask
with DescribeGroups.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.requests import DescribeConsumerGroup, DescribeConsumerGroupReply, DescribedConsumerMember
from tiered.ids import TopicId
from tiered.metadata.features import has_consumer_groups
from tiered.metadata.image import Image
from tiered_api.kafka.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMember,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import GROUP_OPERATIONS, call_coordinator

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


async def handle(context: KafkaContext, call: Call[ConsumerGroupDescribeRequest]) -> ConsumerGroupDescribeResponse:
    """Returns one description per distinct name."""
    names = dict.fromkeys(call.request.group_ids)
    if not has_consumer_groups(context.broker.image.features):
        code = Code.UNSUPPORTED_VERSION.number
        return ConsumerGroupDescribeResponse(groups=[DescribedConsumerGroup(code, group_id=name) for name in names])
    found = [await _describe(context, name) async for name in context.turns.each_of(names)]
    if call.request.include_authorized_operations:
        for group in found:
            if not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
    return ConsumerGroupDescribeResponse(groups=found)


async def _describe(context: KafkaContext, name: str) -> DescribedConsumerGroup:
    if not name:
        return DescribedConsumerGroup(Code.INVALID_GROUP_ID.number, group_id=name)
    reply = await call_coordinator(context, name, DescribeConsumerGroup(name), DescribeConsumerGroupReply)
    if isinstance(reply, Code):
        return DescribedConsumerGroup(reply.number, group_id=name)
    image = context.broker.image
    return DescribedConsumerGroup(
        reply.code.number,
        reply.message,
        name,
        reply.state,
        reply.epoch,
        reply.target_epoch,
        reply.assignor,
        [_describe_member(image, each) async for each in context.turns.each_of(reply.members)],
    )


def _describe_member(image: Image, member: DescribedConsumerMember) -> ConsumerGroupMember:
    metadata = member.metadata
    return ConsumerGroupMember(
        member.member_id,
        metadata.instance_id,
        metadata.rack_id,
        member.current.epoch,
        metadata.client_id,
        metadata.client_host,
        sorted(metadata.topics),
        metadata.regex or None,
        _name_topics(image, member.current.assigned),
        _name_topics(image, member.target),
        CONSUMER_MEMBER if metadata.classic is None else CLASSIC_MEMBER,
    )


def _name_topics(image: Image, assignment: Assignment) -> DescribedAssignment:
    """Returns an assignment with the names of its topics. Topics that are gone are left out."""
    named = [(topic_id, image.topics_by_id.get(TopicId(topic_id))) for topic_id in assignment]
    return DescribedAssignment(
        [
            DescribedTopicPartitions(topic_id, topic.name, sorted(assignment[topic_id]))
            for topic_id, topic in named
            if topic is not None
        ]
    )

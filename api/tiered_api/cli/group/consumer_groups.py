"""Consumer groups (KIP-848) in the form of classic groups, which `tiered group` shows."""

from __future__ import annotations

from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.group_member import write_assignment, write_subscription
from tiered_api.kafka.client.leader_routing import send_to_coordinator
from tiered_api.kafka.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMember,
)
from tiered_api.kafka.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember


class GroupEpochs(NamedTuple):
    """Epochs of a consumer group: that of the group, and that for which its assignment was computed."""

    group: int
    assignment: int


async def describe_consumer_group(client: KafkaClient, name: str) -> tuple[DescribedGroup, GroupEpochs] | None:
    """Describes a consumer group; None if the cluster has none of this name, or no consumer groups at all."""
    try:
        got = await send_to_coordinator(
            client,
            name,
            ConsumerGroupDescribeRequest([name]),
            ConsumerGroupDescribeResponse,
            lambda got: got.groups[0].error_code,
        )
    except Refused as no:
        if no.code is not Code.UNSUPPORTED_VERSION:
            raise
        return None
    group = got.groups[0]
    if group.error_code in (Code.GROUP_ID_NOT_FOUND.number, Code.UNSUPPORTED_VERSION.number):
        return None
    described = DescribedGroup(
        group.error_code,
        group.error_message,
        name,
        group.group_state,
        "consumer",
        group.assignor_name if group.members else "",
        [_to_classic(each) for each in group.members],
    )
    return described, GroupEpochs(group.group_epoch, group.assignment_epoch)


def _to_classic(member: ConsumerGroupMember) -> DescribedGroupMember:
    owned = [
        TopicPartition(row.topic_name, number)
        for row in member.assignment.topic_partitions
        for number in row.partitions
    ]
    return DescribedGroupMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        write_subscription(member.subscribed_topic_names),
        write_assignment(owned),
    )

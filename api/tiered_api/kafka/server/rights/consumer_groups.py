"""Checks of requests about consumer groups (KIP-848)."""

from __future__ import annotations

from tiered.security.acls import Operation, ResourceType
from tiered_api.kafka.protocol.messages import consumer_group_describe, consumer_group_heartbeat
from tiered_api.kafka.server.rights.rights import Rights
from tiered_api.kafka.server.rights.verdict import ALLOWED, GROUP_REFUSED, TOPIC_REFUSED, Verdict, split_items


async def check_consumer_heartbeat(
    rights: Rights, request: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest, version: int
) -> Verdict:
    """READ on the group, DESCRIBE on each topic that the request names."""
    if not rights.on_group(Operation.READ, request.group_id):
        return Verdict(consumer_group_heartbeat.ConsumerGroupHeartbeatResponse(error_code=GROUP_REFUSED))
    async for name in rights.each_of(request.subscribed_topic_names or ()):
        if not rights.on_topic(Operation.DESCRIBE, name):
            return Verdict(consumer_group_heartbeat.ConsumerGroupHeartbeatResponse(error_code=TOPIC_REFUSED))
    return ALLOWED


async def check_describe_consumer_groups(
    rights: Rights, request: consumer_group_describe.ConsumerGroupDescribeRequest, version: int
) -> Verdict:
    """DESCRIBE on each group, and on each topic that its members have or get."""
    verdict = await split_items(
        rights, request, "group_ids", consumer_group_describe.ConsumerGroupDescribeResponse, "groups",
        lambda name: rights.on_group(Operation.DESCRIBE, name),
        lambda name: consumer_group_describe.DescribedConsumerGroup(GROUP_REFUSED, group_id=name),
    )  # fmt: skip
    if verdict.response is not None:
        return verdict

    async def finish(response: consumer_group_describe.ConsumerGroupDescribeResponse) -> None:
        for place, group in enumerate(response.groups):
            if await _has_hidden_topic(rights, group):
                response.groups[place] = consumer_group_describe.DescribedConsumerGroup(
                    TOPIC_REFUSED, "The group has topics that the client may not describe.", group.group_id
                )
            elif request.include_authorized_operations and not group.error_code:
                group.authorized_operations = rights.mask(ResourceType.GROUP, group.group_id)
        if verdict.finish is not None:
            await verdict.finish(response)

    return Verdict(None, finish)


async def _has_hidden_topic(rights: Rights, group: consumer_group_describe.DescribedConsumerGroup) -> bool:
    names: set[str] = set()
    async for member in rights.each_of(group.members):
        for assignment in (member.assignment, member.target_assignment):
            names.update(row.topic_name for row in assignment.topic_partitions)
    return not all(rights.on_topic(Operation.DESCRIBE, name) for name in names)

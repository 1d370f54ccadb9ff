"""ConsumerGroupHeartbeat (API key 68): a member of a consumer group joins, follows its assignment, or leaves (KIP-848).

In v1+ the client makes the member id (KIP-1082), and may subscribe to a regular expression. While `group.version` is 0
the reply is UNSUPPORTED_VERSION, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tiered.errors import Code
from tiered.groups.requests import ConsumerHeartbeat, ConsumerHeartbeatReply
from tiered.metadata.features import has_consumer_groups
from tiered.security.acls import Operation
from tiered_api.kafka.protocol.messages.consumer_group_heartbeat import (
    ConsumerAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerTopicPartitions,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import call_coordinator
from tiered_api.kafka.server.rights.rights import find_rights

CLIENT_ID_FROM = 1


async def handle(context: KafkaContext, call: Call[ConsumerGroupHeartbeatRequest]) -> ConsumerGroupHeartbeatResponse:
    """Returns the member's epoch, and its assignment if that changed."""
    request = call.request
    if not has_consumer_groups(context.broker.image.features):
        return ConsumerGroupHeartbeatResponse(error_code=Code.UNSUPPORTED_VERSION.number)
    if call.version >= CLIENT_ID_FROM and not request.member_id:
        why = "MemberId can't be empty."
        return ConsumerGroupHeartbeatResponse(error_code=Code.INVALID_REQUEST.number, error_message=why)
    heartbeat = ConsumerHeartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if request.subscribed_topic_names is None else tuple(request.subscribed_topic_names),
        request.subscribed_topic_regex,
        request.server_assignor,
        await _read_owned(context, request.topic_partitions),
        call.client_id,
        f"/{call.client_host}",
        call.caller.holder,
        _may_describe(context, call),
    )
    reply = await call_coordinator(context, request.group_id, heartbeat, ConsumerHeartbeatReply)
    if isinstance(reply, Code):
        return ConsumerGroupHeartbeatResponse(error_code=reply.number)
    if reply.code is not Code.NONE:
        return ConsumerGroupHeartbeatResponse(error_code=reply.code.number, error_message=reply.message)
    assignment = None
    if reply.assignment is not None:
        rows = [ConsumerTopicPartitions(topic_id, sorted(each)) for topic_id, each in reply.assignment.items()]
        assignment = ConsumerAssignment(rows)
    return ConsumerGroupHeartbeatResponse(
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assignment=assignment,
    )


def _may_describe(context: KafkaContext, call: Call[ConsumerGroupHeartbeatRequest]) -> Callable[[str], bool]:
    rights = find_rights(context, call)
    return partial(rights.on_topic, Operation.DESCRIBE) if rights is not None else lambda topic: True


async def _read_owned(
    context: KafkaContext, rows: list[ConsumerTopicPartitions] | None
) -> dict[str, frozenset[int]] | None:
    if rows is None:
        return None
    owned: dict[str, frozenset[int]] = {}
    async for row in context.turns.each_of(rows):
        if row.partitions:
            owned[row.topic_id] = owned.get(row.topic_id, frozenset()) | frozenset(row.partitions)
    return owned

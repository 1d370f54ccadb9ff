"""SyncGroup (API key 14): a member requests its assignment. The reply comes once the group leader has sent all
assignments.

v3+ names static members (KIP-345). v5+ must name the protocol of the member (KIP-559).
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.requests import SyncGroup, SyncGroupReply
from tiered_api.kafka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import call_coordinator, rebalance_wait_seconds

PROTOCOL_NAMED = 5
WAIT_MAX_MS = 30 * 60_000
"""Longest wait for the group leader. Its rebalance timeout is not in this request: the group ends the wait by
itself."""


async def handle(context: KafkaContext, call: Call[SyncGroupRequest]) -> SyncGroupResponse:
    """Waits for the group leader. If the client disconnects meanwhile, the handler is cancelled."""
    request = call.request
    if call.version >= PROTOCOL_NAMED and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=Code.INCONSISTENT_GROUP_PROTOCOL.number)
    sync = SyncGroup(
        request.group_id,
        request.generation_id,
        request.member_id,
        request.group_instance_id,
        request.protocol_type,
        request.protocol_name,
        tuple((each.member_id, bytes(each.assignment)) for each in request.assignments),
    )
    reply = await call_coordinator(context, request.group_id, sync, SyncGroupReply, rebalance_wait_seconds(WAIT_MAX_MS))
    synced = reply if isinstance(reply, SyncGroupReply) else SyncGroupReply(reply)
    return SyncGroupResponse(
        error_code=synced.code.number,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )

"""JoinGroup (API key 11): a member comes, or comes back; answered when all have.

v1+ has a rebalance timeout of its own, v4+ is given a member id first and comes again with it (KIP-394), v5+ names
static members (KIP-345), v7+ tells the protocol type and knows no protocol as null, v8+ gives a reason (KIP-800),
v9+ tells a returning static leader to leave assignments as they are (KIP-814).
"""

from __future__ import annotations

from tiered.groups.requests import JoinGroup, JoinGroupReply
from tiered_api.kafka.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from tiered_api.kafka.server.context import Call, KafkaContext
from tiered_api.kafka.server.group_requests import call_coordinator, rebalance_wait_seconds

REBALANCE_TIMEOUT, ID_REQUIRED, NULL_PROTOCOL, SKIP_ASSIGNMENT = 1, 4, 7, 9


async def handle(context: KafkaContext, call: Call[JoinGroupRequest]) -> JoinGroupResponse:
    """Waits for the others; who goes meanwhile is forgotten."""
    request, version = call.request, call.version
    rebalance_ms = request.rebalance_timeout_ms if version >= REBALANCE_TIMEOUT else request.session_timeout_ms
    join = JoinGroup(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        call.client_id,
        f"/{call.client_host}",
        request.session_timeout_ms,
        rebalance_ms,
        request.protocol_type,
        tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        request.reason,
        member_id_required=version >= ID_REQUIRED,
        supports_skip_assignment=version >= SKIP_ASSIGNMENT,
    )
    reply = await call_coordinator(
        context, request.group_id, join, JoinGroupReply, rebalance_wait_seconds(rebalance_ms)
    )
    joined = reply if isinstance(reply, JoinGroupReply) else JoinGroupReply(reply, request.member_id)
    return JoinGroupResponse(
        error_code=joined.code.number,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol if version >= NULL_PROTOCOL else joined.protocol or "",
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[JoinGroupResponseMember(*each) for each in joined.members],
    )

"""JoinGroup (API key 11): a member joins or rejoins a group. The reply comes once all members have joined.

v1+ has its own rebalance timeout. v4+ gives a new member an id first, with which the member joins again (KIP-394). v5+
names static members (KIP-345). v7+ returns the protocol type, and null for no protocol. v8+ has a reason (KIP-800). v9+
tells a returning static leader to keep the assignments (KIP-814).
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.requests import JoinGroup, JoinGroupReply
from tiered_api.kafka.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import call_coordinator, rebalance_wait_seconds

REBALANCE_TIMEOUT, ID_REQUIRED, NULL_PROTOCOL, SKIP_ASSIGNMENT = 1, 4, 7, 9
PROTOCOLS_MAX = 1_000
"""Most protocols of one member. Other clients wait while they are read."""


async def handle(context: KafkaContext, call: Call[JoinGroupRequest]) -> JoinGroupResponse:
    """Waits for the other members. If the client disconnects meanwhile, the handler is cancelled."""
    request, version = call.request, call.version
    if len(request.protocols) > PROTOCOLS_MAX:
        return _make_response(JoinGroupReply(Code.INVALID_REQUEST, request.member_id), version)
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
        holder=call.caller.holder,
    )
    reply = await call_coordinator(
        context, request.group_id, join, JoinGroupReply, rebalance_wait_seconds(rebalance_ms)
    )
    return _make_response(
        reply if isinstance(reply, JoinGroupReply) else JoinGroupReply(reply, request.member_id), version
    )


def _make_response(joined: JoinGroupReply, version: int) -> JoinGroupResponse:
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

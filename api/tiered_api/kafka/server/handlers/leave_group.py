"""LeaveGroup (API key 13): members leave at once, before their session times out.

v0-2 have one member, whose code is that of the reply. v3+ has many members, static ones by their instance id too
(KIP-345). v5+ has a reason (KIP-800).
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.requests import LeaveGroup, LeaveGroupReply, LeavingMember
from tiered_api.kafka.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from tiered_api.kafka.server.exchange.context import Call, KafkaContext
from tiered_api.kafka.server.exchange.group_requests import call_coordinator

MANY_MEMBERS_FROM = 3


async def handle(context: KafkaContext, call: Call[LeaveGroupRequest]) -> LeaveGroupResponse:
    """Returns one code per member, or one code if the whole request is refused."""
    request = call.request
    if call.version < MANY_MEMBERS_FROM:
        leavers: tuple[LeavingMember, ...] = (LeavingMember(request.member_id),)
    else:
        leavers = tuple(LeavingMember(each.member_id, each.group_instance_id, each.reason) for each in request.members)
    reply = await call_coordinator(context, request.group_id, LeaveGroup(request.group_id, leavers), LeaveGroupReply)
    left = reply if isinstance(reply, LeaveGroupReply) else LeaveGroupReply(reply)
    if call.version < MANY_MEMBERS_FROM:
        code = left.codes[0] if left.code is Code.NONE and left.codes else left.code
        return LeaveGroupResponse(error_code=code.number)
    members = [
        MemberResponse(leaver.member_id, leaver.instance_id, code.number)
        for leaver, code in zip(leavers, left.codes, strict=False)
    ]
    return LeaveGroupResponse(error_code=left.code.number, members=members)

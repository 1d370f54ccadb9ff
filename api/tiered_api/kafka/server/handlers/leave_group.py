"""LeaveGroup (API key 13): members leave at once, before their session times out.

v0-2 have one member, whose code is that of the reply. v3+ has many members, static ones by their instance id too
(KIP-345). v5+ has a reason (KIP-800). More than a thousand members leave in pieces, with one decision for each.
"""

from __future__ import annotations

from functools import partial

from tiered.groups.requests import LeaveGroup, LeaveGroupReply, LeavingMember
from tiered_api.kafka.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import decide_in_pieces

MANY_MEMBERS_FROM = 3


async def handle(context: KafkaContext, call: Call[LeaveGroupRequest]) -> LeaveGroupResponse:
    """Returns one code per member, or one code if the whole request is refused."""
    request, turns = call.request, context.turns
    if call.version < MANY_MEMBERS_FROM:
        leavers = [LeavingMember(request.member_id)]
    else:
        leavers = [
            LeavingMember(each.member_id, each.group_instance_id, each.reason)
            async for each in turns.each_of(request.members)
        ]
    code, codes = await decide_in_pieces(
        context, request.group_id, leavers, partial(LeaveGroup, request.group_id), LeaveGroupReply
    )
    if call.version < MANY_MEMBERS_FROM:
        return LeaveGroupResponse(error_code=(codes[0] if codes else code).number)
    members = [
        MemberResponse(leaver.member_id, leaver.instance_id, left.number)
        async for leaver, left in turns.each_of(zip(leavers, codes, strict=False))
    ]
    return LeaveGroupResponse(error_code=code.number, members=members)

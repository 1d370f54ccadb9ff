"""DescribeGroups (API key 15): the state and members of groups.

v3+ can include the allowed operations (KIP-430). v4+ names static members (KIP-345). v6+ has an error for a group that
does not exist (KIP-1043), which older versions show as Dead.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.requests import DescribeGroup, DescribeGroupReply
from tiered_api.kafka.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import GROUP_OPERATIONS, call_coordinator

NOT_FOUND = 6


async def handle(context: KafkaContext, call: Call[DescribeGroupsRequest]) -> DescribeGroupsResponse:
    """Returns one description per distinct name: a description is thousands of times as long as a name."""
    names = context.turns.each_of(dict.fromkeys(call.request.groups))
    found = [await _describe(context, name, call.version) async for name in names]
    if call.request.include_authorized_operations:
        for group in found:
            if not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
    return DescribeGroupsResponse(groups=found)


async def _describe(context: KafkaContext, name: str, version: int) -> DescribedGroup:
    reply = await call_coordinator(context, name, DescribeGroup(name), DescribeGroupReply)
    if isinstance(reply, Code):
        return DescribedGroup(error_code=reply.number, group_id=name)
    code, message = reply.code, None
    if code is Code.GROUP_ID_NOT_FOUND:
        code, message = (code, f"Group {name} not found.") if version >= NOT_FOUND else (Code.NONE, None)
    return DescribedGroup(
        error_code=code.number,
        error_message=message,
        group_id=name,
        group_state=reply.state,
        protocol_type=reply.protocol_type,
        protocol_data=reply.protocol,
        members=[DescribedGroupMember(*each) for each in reply.members],
    )

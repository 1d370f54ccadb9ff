"""DescribeGroups (API key 15): the state and members of groups.

v3+ can include the allowed operations (KIP-430). v4+ names static members (KIP-345). v6+ has an error for a group that
does not exist (KIP-1043), which older versions show as Dead. If the request asks for it, a tagged field of our own
(v5+) tells since when a group is in its state, and which members a rebalance waits for. By another one, consumer groups
(KIP-848) are described as if they were classic.
"""

from __future__ import annotations

from dataclasses import replace

from tiered.errors import Code
from tiered.groups.requests import DescribeGroup, DescribeGroupReply, GroupProgress
from tiered_api.kafka.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ReportedProgress,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import GROUP_OPERATIONS, call_coordinator

NOT_FOUND = 6


async def handle(context: KafkaContext, call: Call[DescribeGroupsRequest]) -> DescribeGroupsResponse:
    """Returns one description per distinct name: a description is thousands of times as long as a name."""
    names = context.turns.each_of(dict.fromkeys(call.request.groups))
    request = call.request
    asked = DescribeGroup(
        "", with_progress=request.include_progress, with_consumer_groups=request.include_consumer_groups
    )
    found = [await _describe(context, replace(asked, group=name), call.version) async for name in names]
    if request.include_authorized_operations:
        for group in found:
            if not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
    return DescribeGroupsResponse(groups=found)


async def _describe(context: KafkaContext, request: DescribeGroup, version: int) -> DescribedGroup:
    name = request.group
    reply = await call_coordinator(context, name, request, DescribeGroupReply)
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
        progress=None if reply.progress is None else [_report_progress(reply.progress)],
        group_type=reply.type if request.with_consumer_groups else "",
    )


def _report_progress(progress: GroupProgress) -> ReportedProgress:
    return ReportedProgress(
        progress.since_ms, progress.reason, progress.rebalance_timeout_ms, list(progress.awaited), progress.pending
    )

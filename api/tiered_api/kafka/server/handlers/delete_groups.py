"""DeleteGroups (API key 42): deletes groups without members, with their offsets (KIP-229)."""

from __future__ import annotations

from tiered.controller.change_descriptions import DELETE, GROUP, DescribedChange
from tiered.errors import Code
from tiered.groups.requests import DeleteGroup, DeleteReply
from tiered_api.kafka.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import call_coordinator


async def handle(context: KafkaContext, call: Call[DeleteGroupsRequest]) -> DeleteGroupsResponse:
    """Returns one code per name."""
    results = []
    async for name in context.turns.each_of(dict.fromkeys(call.request.groups_names)):
        reply = await call_coordinator(context, name, DeleteGroup(name), DeleteReply)
        code = reply.code if isinstance(reply, DeleteReply) else reply
        if code is Code.NONE:
            context.broker.audit.record_changes(call.caller, [DescribedChange(DELETE, GROUP, name)])
        results.append(DeletableGroupResult(name, code.number))
    return DeleteGroupsResponse(results=results)

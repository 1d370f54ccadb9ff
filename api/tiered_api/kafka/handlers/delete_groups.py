"""DeleteGroups (API key 42): groups without members go, offsets and all (KIP-229)."""

from __future__ import annotations

from tiered.metadata.groups.requests import Deleted, DeleteGroup
from tiered_api.kafka.groups import ask
from tiered_api.kafka.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from tiered_api.kafka.site import Call, Site


async def handle(site: Site, call: Call[DeleteGroupsRequest]) -> DeleteGroupsResponse:
    """One code for each name."""
    results = []
    for name in dict.fromkeys(call.request.groups_names):
        reply = await ask(site, name, DeleteGroup(name), Deleted)
        code = reply.code if isinstance(reply, Deleted) else reply
        results.append(DeletableGroupResult(name, code.number))
    return DeleteGroupsResponse(results=results)

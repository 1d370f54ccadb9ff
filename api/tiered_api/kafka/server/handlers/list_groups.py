"""ListGroups (API key 16): the groups that this broker coordinates.

v4+ can filter by state (KIP-518), v5+ by type (KIP-848). Without `__consumer_offsets` there are no groups, and the
request does not create that topic.
"""

from __future__ import annotations

from tiered.errors import Refused
from tiered_api.kafka.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import coordinator_code


async def handle(context: KafkaContext, call: Call[ListGroupsRequest]) -> ListGroupsResponse:
    """Returns all groups, or an error while some groups are loading."""
    request = call.request
    try:
        found = await context.broker.group_coordinators.list_groups(
            request.states_filter, request.types_filter, context.turns.wait_turn
        )
    except Refused as refused:
        return ListGroupsResponse(error_code=coordinator_code(refused).number)
    return ListGroupsResponse(groups=[ListedGroup(*each) async for each in context.turns.each_of(found)])

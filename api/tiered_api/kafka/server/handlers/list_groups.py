"""ListGroups (API key 16): the groups that this broker coordinates.

v4+ may ask for states only (KIP-518), v5+ for types (KIP-848). Without `__consumer_offsets` there is none, and none is
made for the question.
"""

from __future__ import annotations

from tiered.errors import Refused
from tiered_api.kafka.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tiered_api.kafka.server.context import Call, KafkaContext
from tiered_api.kafka.server.group_requests import coordinator_code


async def handle(context: KafkaContext, call: Call[ListGroupsRequest]) -> ListGroupsResponse:
    """All of them, or an error while some are being loaded."""
    request = call.request
    try:
        found = await context.broker.group_coordinators.list_groups(request.states_filter, request.types_filter)
    except Refused as refused:
        return ListGroupsResponse(error_code=coordinator_code(refused).number)
    return ListGroupsResponse(groups=[ListedGroup(*each) for each in found])

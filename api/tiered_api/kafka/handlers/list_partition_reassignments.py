"""ListPartitionReassignments (API key 46): partitions that are moving to other brokers (KIP-455): none, for nothing can
move them yet."""

from __future__ import annotations

from tiered_api.kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tiered_api.kafka.site import Call, Site


async def handle(site: Site, call: Call[ListPartitionReassignmentsRequest]) -> ListPartitionReassignmentsResponse:
    """Nothing, whatever was asked for."""
    return ListPartitionReassignmentsResponse(error_message=None)

"""ListPartitionReassignments (API key 46): reassignments under way, of the requested partitions or of all (KIP-455).
Any broker knows them from its metadata image."""

from __future__ import annotations

from collections.abc import Sequence

from tiered.metadata.parts.topics import PartitionImage
from tiered_api.kafka.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext


async def handle(
    context: KafkaContext, call: Call[ListPartitionReassignmentsRequest]
) -> ListPartitionReassignmentsResponse:
    """Returns reassignments only: leaves out partitions that do not move or do not exist."""
    topics, named = context.broker.image.topics, call.request.topics
    wanted: dict[str, Sequence[int]] = {name: range(len(topic.partitions)) for name, topic in topics.items()}
    if named is not None:
        wanted = {each.name: each.partition_indexes for each in named if each.name in topics}
    found = []
    for name, numbers in wanted.items():
        partitions = topics[name].partitions
        moving = [p for p in numbers if 0 <= p < len(partitions) and partitions[p].is_reassigning]
        if moving:
            found.append(OngoingTopicReassignment(name, [_row(p, partitions[p]) for p in moving]))
    return ListPartitionReassignmentsResponse(error_message=None, topics=found)


def _row(number: int, partition: PartitionImage) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        number, list(partition.replicas), list(partition.adding), list(partition.removing)
    )

"""AlterPartitionReassignments (API key 45): starts or cancels the reassignment of partitions to other replicas
(KIP-455). The reply says only that a reassignment has started. ListPartitionReassignments says when it is complete."""

from __future__ import annotations

from collections.abc import Iterator

from tiered.controller.requests import Move, Reassign
from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered_api.kafka.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import clamp_timeout_ms
from tiered_api.kafka.server.context.mutation_charges import MutationCharges


async def handle(
    context: KafkaContext, call: Call[AlterPartitionReassignmentsRequest]
) -> AlterPartitionReassignmentsResponse:
    """Returns one result per requested partition."""
    request = call.request
    response = AlterPartitionReassignmentsResponse(0, request.allow_replication_factor_change, error_message=None)
    topics = context.broker.image.topics
    named = ((each.name, one) for each in request.topics for one in each.partitions)
    moves = [
        Move(
            topics[name].topic_id if name in topics else TopicId(""),
            one.partition_index,
            None if one.replicas is None else tuple(one.replicas),
        )
        async for name, one in context.turns.each_of(named)
    ]
    try:
        reassign = Reassign(tuple(moves), request.allow_replication_factor_change)
        judged: tuple[Refused | None, ...] = ()
        if moves:
            judged = await context.broker.submit(
                reassign, clamp_timeout_ms(request.timeout_ms) / 1000, by=MutationCharges(context, call)
            )
    except Refused as refused:
        response.error_code, response.error_message = refused.code.number, refused.why
        return response
    outcomes = iter(judged)
    async for each in context.turns.each_of(request.topics):
        response.responses.append(ReassignableTopicResponse(each.name))
    places = zip(response.responses, request.topics, strict=True)
    async for made, one in context.turns.each_of((made, one) for made, each in places for one in each.partitions):
        made.partitions.append(_row(one.partition_index, outcomes))
    return response


def _row(number: int, outcomes: Iterator[Refused | None]) -> ReassignablePartitionResponse:
    refused = next(outcomes)
    if refused is None:
        return ReassignablePartitionResponse(number, Code.NONE.number, None)
    return ReassignablePartitionResponse(number, refused.code.number, refused.why)

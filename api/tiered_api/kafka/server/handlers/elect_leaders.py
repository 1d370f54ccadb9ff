"""ElectLeaders (API key 43): elects the preferred leader of partitions (KIP-460), or (v1+) any live replica of
leaderless partitions, even if it lacks committed records.

Null means all partitions. The reply then leaves out partitions that need no election. v0 has no error for the whole
reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tiered.controller.requests import ElectLeaders
from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered.metadata.parts.topics import TopicImage
from tiered_api.kafka.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import clamp_timeout_ms
from tiered_api.kafka.server.context.mutation_charges import MutationCharges

PREFERRED, UNCLEAN = 0, 1
WHY = {
    Code.ELECTION_NOT_NEEDED: "no election was needed",
    Code.PREFERRED_LEADER_NOT_AVAILABLE: "the preferred leader is away or not in sync",
    Code.ELIGIBLE_LEADERS_NOT_AVAILABLE: "no replica that could lead is there",
    Code.INVALID_REQUEST: "unknown type of election",
}

Outcomes = Mapping[tuple[TopicId, int], Code]


async def handle(context: KafkaContext, call: Call[ElectLeadersRequest]) -> ElectLeadersResponse:
    """Returns one result per requested partition."""
    request = call.request
    if request.election_type not in (PREFERRED, UNCLEAN):
        return await _make_refused_response(context, request, Refused(Code.INVALID_REQUEST, WHY[Code.INVALID_REQUEST]))
    topics, requested = context.broker.image.topics, request.topic_partitions
    wanted: tuple[tuple[TopicId, int], ...] | None = None
    if requested is not None:
        named = ((topics[each.topic], each.partitions) for each in requested if each.topic in topics)
        rows = ((topic.topic_id, number) for topic, numbers in named for number in numbers)
        wanted = tuple([row async for row in context.turns.each_of(rows)])
    try:
        done: Outcomes = {}
        if wanted or wanted is None:
            election = ElectLeaders(request.election_type == PREFERRED, wanted)
            outcomes = await context.broker.submit(
                election, clamp_timeout_ms(request.timeout_ms) / 1000, by=MutationCharges(context, call)
            )
            done = {(topic_id, number): code for topic_id, number, code in outcomes}
    except Refused as refused:
        return await _make_refused_response(context, request, refused)
    if requested is None:
        return ElectLeadersResponse(0, 0, _make_needed_results(done, topics.values()))
    response = ElectLeadersResponse(0, 0, [])
    async for row, number in context.turns.each_of(_place_results(response, requested)):
        topic_id = topics[row.topic].topic_id if row.topic in topics else TopicId("")
        row.partition_result.append(_make_result(row.topic, number, done.get((topic_id, number))))
    return response


def _place_results(
    response: ElectLeadersResponse, requested: Iterable[TopicPartitions]
) -> Iterator[tuple[ReplicaElectionResult, int]]:
    """Adds a result for each topic to the response, and yields it with each partition that was requested."""
    for each in requested:
        response.replica_election_results.append(ReplicaElectionResult(each.topic))
        for number in each.partitions:
            yield response.replica_election_results[-1], number


def _make_needed_results(done: Outcomes, topics: Iterable[TopicImage]) -> list[ReplicaElectionResult]:
    results = {topic.topic_id: ReplicaElectionResult(topic.name) for topic in topics}
    for (topic_id, number), code in done.items():
        if topic_id in results and code is not Code.ELECTION_NOT_NEEDED:
            result = results[topic_id]
            result.partition_result.append(_make_result(result.topic, number, code))
    return list(results.values())


def _make_result(name: str, number: int, code: Code | None) -> PartitionResult:
    if code is None or code in (Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION):
        why = f"there is no partition {number} of topic {name[:249]!r}"
        return PartitionResult(number, Code.UNKNOWN_TOPIC_OR_PARTITION.number, why)
    return PartitionResult(number, code.number, None if code is Code.NONE else WHY.get(code, code.name))


async def _make_refused_response(
    context: KafkaContext, request: ElectLeadersRequest, refused: Refused
) -> ElectLeadersResponse:
    code, why = refused.code.number, refused.why
    response = ElectLeadersResponse(0, code, [])
    async for row, number in context.turns.each_of(_place_results(response, request.topic_partitions or ())):
        row.partition_result.append(PartitionResult(number, code, why))
    return response

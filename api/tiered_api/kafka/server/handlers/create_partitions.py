"""CreatePartitions (API key 37): raises the number of partitions of topics, with manual replica assignments if the
request has them."""

from __future__ import annotations

from functools import partial

from tiered.controller.requests import CreatePartitions
from tiered.errors import Code, Refused
from tiered_api.kafka.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import (
    CONCURRENT_CHANGES_MAX,
    PARTITIONS_PER_REQUEST_MAX,
    clamp_timeout_ms,
)
from tiered_api.kafka.server.context.mutation_charges import MutationCharges
from tiered_api.kafka.server.slots.bounded_tasks import run_bounded

TOO_MANY = Refused(Code.POLICY_VIOLATION, f"a request creates {PARTITIONS_PER_REQUEST_MAX} partitions at most")
TIMED_OUT = Refused(Code.REQUEST_TIMED_OUT, "it is not done within the timeout, and may still be done")


async def handle(context: KafkaContext, call: Call[CreatePartitionsRequest]) -> CreatePartitionsResponse:
    """Returns one result per topic. A topic that the request names twice is refused once."""
    request = call.request
    turns, timeout_ms = context.turns, clamp_timeout_ms(request.timeout_ms)
    wanted: dict[str, CreatePartitionsTopic] = {}
    doubled, added = set[str](), 0
    async for topic in turns.each_of(request.topics):
        if topic.name in wanted:
            doubled.add(topic.name)
        wanted[topic.name] = topic
    async for topic in turns.each_of(wanted.values()):
        added += _count_added_partitions(context, topic)
    if added > PARTITIONS_PER_REQUEST_MAX:
        refused = [_make_refused_result(name, TOO_MANY) async for name in turns.each_of(wanted)]
        return CreatePartitionsResponse(results=refused)
    charges = MutationCharges(context, call)
    works = [
        partial(_create_partitions, context, charges, topic, name in doubled, request.validate_only, timeout_ms)
        async for name, topic in turns.each_of(wanted.items())
    ]
    names = list(wanted)
    results = await run_bounded(
        works,
        timeout_ms,
        lambda number: _make_refused_result(names[number], TIMED_OUT),
        turns,
        concurrency=CONCURRENT_CHANGES_MAX,
    )
    return CreatePartitionsResponse(0, results)


def _count_added_partitions(context: KafkaContext, topic: CreatePartitionsTopic) -> int:
    known = context.broker.image.topics.get(topic.name)
    return max(0, topic.count - len(known.partitions)) if known is not None else 0


async def _create_partitions(
    context: KafkaContext,
    charges: MutationCharges,
    topic: CreatePartitionsTopic,
    is_duplicate: bool,
    validate_only: bool,
    timeout: int,
) -> CreatePartitionsTopicResult:
    try:
        if is_duplicate:
            raise Refused(Code.INVALID_REQUEST, "the request names the topic twice")
        given = topic.assignments
        assignments = None if given is None else [each.broker_ids for each in given]
        create = CreatePartitions(topic.name, topic.count, validate_only, assignments)
        await context.broker.submit(create, timeout / 1000, by=charges)
    except Refused as refused:
        return _make_refused_result(topic.name, refused)
    return CreatePartitionsTopicResult(topic.name)


def _make_refused_result(name: str, refused: Refused) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name, refused.code.number, refused.why)

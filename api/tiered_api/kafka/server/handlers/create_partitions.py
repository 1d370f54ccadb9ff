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
from tiered_api.kafka.server.exchange.bounded_tasks import run_bounded
from tiered_api.kafka.server.exchange.context import Call, KafkaContext
from tiered_api.kafka.server.exchange.error_codes import (
    CONCURRENT_CHANGES_MAX,
    PARTITIONS_PER_REQUEST_MAX,
    clamp_timeout_ms,
    find_duplicates,
)
from tiered_api.kafka.server.exchange.mutation_charges import MutationCharges

TOO_MANY = Refused(Code.POLICY_VIOLATION, f"a request creates {PARTITIONS_PER_REQUEST_MAX} partitions at most")
STRICT_FROM = 3
"""Version from which clients know THROTTLING_QUOTA_EXCEEDED."""
TIMED_OUT = Refused(Code.REQUEST_TIMED_OUT, "it is not done within the timeout, and may still be done")


async def handle(context: KafkaContext, call: Call[CreatePartitionsRequest]) -> CreatePartitionsResponse:
    """Returns one result per topic. A topic that the request names twice is refused once."""
    request = call.request
    doubled = find_duplicates(topic.name for topic in request.topics)
    wanted = {topic.name: topic for topic in request.topics}
    if sum(_count_added_partitions(context, topic) for topic in wanted.values()) > PARTITIONS_PER_REQUEST_MAX:
        return CreatePartitionsResponse(results=[_make_refused_result(name, TOO_MANY) for name in wanted])
    charges = MutationCharges(context, call, STRICT_FROM)
    works = [
        partial(
            _create_partitions,
            context,
            charges,
            topic,
            name in doubled,
            request.validate_only,
            clamp_timeout_ms(request.timeout_ms),
        )
        for name, topic in wanted.items()
    ]
    names = list(wanted)
    results = await run_bounded(
        works,
        clamp_timeout_ms(request.timeout_ms),
        lambda number: _make_refused_result(names[number], TIMED_OUT),
        context.turns,
        concurrency=CONCURRENT_CHANGES_MAX,
    )
    return CreatePartitionsResponse(charges.pause_ms, results)


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
        if not validate_only:
            charges.add(_count_added_partitions(context, topic))
        given = topic.assignments
        assignments = None if given is None else [each.broker_ids for each in given]
        create = CreatePartitions(topic.name, topic.count, validate_only, assignments)
        await context.broker.submit(create, timeout / 1000)
    except Refused as refused:
        return _make_refused_result(topic.name, refused)
    return CreatePartitionsTopicResult(topic.name)


def _make_refused_result(name: str, refused: Refused) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name, refused.code.number, refused.why)

"""CreatePartitions (API key 37): topics grow to a new total, with replicas by hand when they are given."""

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
from tiered_api.kafka.server.bounded_tasks import in_time
from tiered_api.kafka.server.context import Call, Site
from tiered_api.kafka.server.error_codes import MANY, PARTITIONS_AT_ONCE, timeout_ms, twice

TOO_MANY = Refused(Code.POLICY_VIOLATION, f"a request creates {PARTITIONS_AT_ONCE} partitions at most")
LATE = Refused(Code.REQUEST_TIMED_OUT, "it is not done yet; it may be")


async def handle(site: Site, call: Call[CreatePartitionsRequest]) -> CreatePartitionsResponse:
    """One result per topic; one that is there twice is refused once."""
    request = call.request
    doubled = twice(topic.name for topic in request.topics)
    wanted = {topic.name: topic for topic in request.topics}
    if sum(_added(site, topic) for topic in wanted.values()) > PARTITIONS_AT_ONCE:
        return CreatePartitionsResponse(results=[_result(name, TOO_MANY) for name in wanted])
    works = [
        partial(_grow, site, topic, name in doubled, request.validate_only, timeout_ms(request.timeout_ms))
        for name, topic in wanted.items()
    ]
    names = list(wanted)
    results = await in_time(
        works, timeout_ms(request.timeout_ms), lambda number: _result(names[number], LATE), at_once=MANY
    )
    return CreatePartitionsResponse(results=results)


def _added(site: Site, topic: CreatePartitionsTopic) -> int:
    known = site.node.image.topics.get(topic.name)
    return max(0, topic.count - len(known.partitions)) if known is not None else 0


async def _grow(
    site: Site, topic: CreatePartitionsTopic, doubled: bool, validate_only: bool, timeout: int
) -> CreatePartitionsTopicResult:
    try:
        if doubled:
            raise Refused(Code.INVALID_REQUEST, "the topic is there twice in this request")
        given = topic.assignments
        assignments = None if given is None else [each.broker_ids for each in given]
        grown = CreatePartitions(topic.name, topic.count, validate_only, assignments)
        await site.node.submit(grown, timeout / 1000)
    except Refused as refused:
        return _result(topic.name, refused)
    return CreatePartitionsTopicResult(topic.name)


def _result(name: str, refused: Refused) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name, refused.code.number, refused.why)

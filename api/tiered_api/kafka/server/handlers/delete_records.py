"""DeleteRecords (API key 21): moves the log start offset forward; -1 stands for the high watermark.

The reply comes once the new log start offset is in the manifest and all in-sync replicas know it. For a topic that is
not tiered, it must be on the disk of each in-sync replica instead. From then on, no consumer and no later leader sees
the deleted records again. After REQUEST_TIMED_OUT, the deletion may still complete.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import islice

from tiered.access.audit_log import DONE, REFUSED
from tiered.access.audit_log import UNKNOWN as UNKNOWN_OUTCOME
from tiered.controller.change_descriptions import DELETE, TOPIC, DescribedChange
from tiered.errors import Code
from tiered.metadata.internal_topics import check_changeable
from tiered.security.principal import Caller
from tiered_api.kafka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import ENGINE_ERRORS, clamp_timeout_ms, error_code_of
from tiered_api.kafka.server.context.led_partitions import find_leader_replica
from tiered_api.kafka.server.slots.bounded_tasks import run_bounded

UNKNOWN = -1
DELETIONS_AT_ONCE = 500
"""Partitions that wait for the disk or for followers together. They share one write of the offsets of all logs, which
takes longer the more logs there are: with few at a time, a request for all partitions takes quadratic time."""
MANIFESTS_AT_ONCE = 32
"""Manifests that are changed at once: other work needs the bucket too."""


async def handle(context: KafkaContext, call: Call[DeleteRecordsRequest]) -> DeleteRecordsResponse:
    """Returns one result per partition."""
    request = call.request
    turns = context.turns
    named = ((topic.name, each) for topic in request.topics for each in topic.partitions)
    wanted = [each async for each in turns.each_of(named)]
    late = Code.REQUEST_TIMED_OUT.number
    manifests = asyncio.Semaphore(MANIFESTS_AT_ONCE)
    results = await run_bounded(
        [partial(_delete, context, call.caller, name, each, manifests) async for name, each in turns.each_of(wanted)],
        clamp_timeout_ms(request.timeout_ms),
        lambda number: DeleteRecordsPartitionResult(wanted[number][1].partition_index, UNKNOWN, late),
        turns,
        concurrency=DELETIONS_AT_ONCE,
    )
    rest = iter(results)
    topics = [
        DeleteRecordsTopicResult(topic.name, list(islice(rest, len(topic.partitions))))
        async for topic in turns.each_of(request.topics)
    ]
    return DeleteRecordsResponse(topics=topics)


async def _delete(
    context: KafkaContext,
    caller: Caller,
    topic: str,
    requested: DeleteRecordsPartition,
    manifests: asyncio.Semaphore,
) -> DeleteRecordsPartitionResult:
    outcome, start = UNKNOWN_OUTCOME, requested.offset  # also if the client leaves, or the time is over
    try:
        check_changeable(topic)
        async with manifests:
            replica = find_leader_replica(context, topic, requested.partition_index)
            before = await replica.deletion.start(requested.offset)
        start = await replica.deletion.finish(before)
        outcome = DONE
    except ENGINE_ERRORS as fault:
        outcome = REFUSED
        return DeleteRecordsPartitionResult(requested.partition_index, UNKNOWN, error_code_of(fault).number)
    finally:
        if outcome != REFUSED:
            name, below = f"{topic}-{requested.partition_index}", f"records below {start}"
            context.broker.audit.record_changes(caller, [DescribedChange(DELETE, TOPIC, name, below)], outcome)
    return DeleteRecordsPartitionResult(requested.partition_index, start, Code.NONE.number)

"""ListOffsets (API key 2): offsets by name or timestamp.

-1 is the end (the last stable offset for read_committed, v2+), -2 the log start offset, -3 the newest record (v7+,
KIP-734), -4 the local start offset (v8+, KIP-405), -5 the last cold offset (v9+, KIP-1005), -6 the first offset that is
not yet cold (v11+, KIP-1023). If no record is that young, offset and timestamp are -1 without an error. v4+ checks the
leader epoch. A look-up in the bucket takes at most the client's timeout (v10+), and at most
`remote.list.offsets.request.timeout.ms`. v0 has another meaning and is not offered. A new leader that does not know yet
which records are committed returns no end: OFFSET_NOT_AVAILABLE in v5+, LEADER_NOT_AVAILABLE before (KIP-207).

Our brokers add the topic id in a tagged field of their own. A leader that has another topic of that name refuses with
UNKNOWN_TOPIC_ID: both topics may have the same leader epoch.

-3 includes cold records; Kafka looks at the local log only. Our brokers never send this request, so a sender that
claims to be a broker is refused. Replica id -2 is Kafka's tool that reads the whole log.
"""

from __future__ import annotations

from functools import partial

from tiered.errors import Code, Refused
from tiered.hot.time_lookup import TimeLookups
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.offset_lookup import OFFSET_NOT_FOUND, OffsetSpec, find_by_spec, find_by_timestamp
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import ENGINE_ERRORS, error_code_of, has_id
from tiered_api.kafka.server.context.led_partitions import find_leader_replica
from tiered_api.kafka.server.rights.inter_broker_auth import is_impostor
from tiered_api.kafka.server.slots.bounded_tasks import run_bounded

CONSUMER = -1
READ_COMMITTED = 1
TIMEOUT_FROM = 10
OFFSET_NOT_AVAILABLE_FROM = 5
END_TIMESTAMPS = (OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP)
SINCE_VERSION = {
    OffsetSpec.LATEST: 1,
    OffsetSpec.EARLIEST: 1,
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}


async def handle(context: KafkaContext, call: Call[ListOffsetsRequest]) -> ListOffsetsResponse:
    """Returns one result per partition. A partition that the request names twice is refused."""
    request, turns = call.request, context.turns
    wanted: dict[tuple[str, int], tuple[str, ListOffsetsPartition] | None] = {}
    named = ((topic, each) for topic in request.topics for each in topic.partitions)
    async for of_topic, each in turns.each_of(named):
        place = of_topic.name, each.partition_index
        wanted[place] = None if place in wanted else (of_topic.topic_id, each)
    work = _refuse if is_impostor(context, call, request.replica_id) else _look_up_offset
    lookups = TimeLookups(call.client_host, call.peer)
    works = [
        partial(work, context, call, name, number, requested, lookups)
        async for (name, number), requested in turns.each_of(wanted.items())
    ]
    timed_out = Code.REQUEST_TIMED_OUT.number
    places = list(wanted)
    results = await run_bounded(
        works,
        _lookup_timeout_ms(context, call),
        lambda number: ListOffsetsPartitionResponse(places[number][1], timed_out),
        turns,
    )
    topics: dict[str, ListOffsetsTopicResponse] = {}
    async for (name, _), result in turns.each_of(zip(wanted, results, strict=True)):
        topics.setdefault(name, ListOffsetsTopicResponse(name)).partitions.append(result)
    return ListOffsetsResponse(topics=list(topics.values()))


def _lookup_timeout_ms(context: KafkaContext, call: Call[ListOffsetsRequest]) -> int:
    ceiling = context.broker.settings.remote_list_offsets_request_timeout_ms
    requested = call.request.timeout_ms
    return min(requested, ceiling) if call.version >= TIMEOUT_FROM and requested > 0 else ceiling


async def _look_up_offset(
    context: KafkaContext,
    call: Call[ListOffsetsRequest],
    topic: str,
    number: int,
    wanted: tuple[str, ListOffsetsPartition] | None,
    lookups: TimeLookups,
) -> ListOffsetsPartitionResponse:
    if wanted is None:
        return ListOffsetsPartitionResponse(number, Code.INVALID_REQUEST.number)
    topic_id, requested = wanted
    try:
        name = _parse_named_timestamp(requested.timestamp, call.version) if requested.timestamp < 0 else None
        replica = find_leader_replica(context, topic, number, requested.current_leader_epoch)
        if has_id(topic_id) and topic_id != replica.topic_id:
            raise Refused(Code.UNKNOWN_TOPIC_ID, f"{replica.tp} is of topic {replica.topic_id}, not {topic_id}")
        end = partial(_end_offset, call.request, replica)
        if name in END_TIMESTAMPS and call.request.replica_id == CONSUMER:
            _check_epoch_committed(replica, call.version)  # not later: the end may move during a look-up
        if name is None:
            found = await find_by_timestamp(replica, requested.timestamp, end, lookups)
        else:
            found = await find_by_spec(replica, name, end, lookups)
        replica.reads.check_not_stopped()
        if name is None and found == OFFSET_NOT_FOUND and call.request.replica_id == CONSUMER:
            _check_epoch_committed(replica, call.version)
    except ENGINE_ERRORS as fault:
        return ListOffsetsPartitionResponse(number, error_code_of(fault).number)
    return ListOffsetsPartitionResponse(number, Code.NONE.number, found.timestamp, found.offset, found.leader_epoch)


async def _refuse(
    context: KafkaContext,
    call: Call[ListOffsetsRequest],
    topic: str,
    number: int,
    wanted: tuple[str, ListOffsetsPartition] | None,
    lookups: TimeLookups,
) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(number, Code.CLUSTER_AUTHORIZATION_FAILED.number)


def _end_offset(request: ListOffsetsRequest, replica: LeaderReplica) -> int:
    """Returns the end of what the sender may see now."""
    if request.replica_id != CONSUMER:
        return replica.log.end_offset
    return replica.last_stable_offset if request.isolation_level == READ_COMMITTED else replica.high_watermark


def _check_epoch_committed(replica: LeaderReplica, version: int) -> None:
    """Refuses while a new leader may not know the latest high watermark: the end offset would go backwards
    (KIP-207)."""
    if replica.high_watermark < replica.epoch_start:
        code = Code.OFFSET_NOT_AVAILABLE if version >= OFFSET_NOT_AVAILABLE_FROM else Code.LEADER_NOT_AVAILABLE
        raise Refused(code, f"{replica.tp} has a new leader, which does not know yet what is committed")


def _parse_named_timestamp(timestamp: int, version: int) -> OffsetSpec:
    if timestamp not in SINCE_VERSION or version < SINCE_VERSION[OffsetSpec(timestamp)]:
        raise Refused(Code.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning in version {version}")
    return OffsetSpec(timestamp)

"""ListOffsets (API key 2): offsets by name or by time.

-1 is the end (the last stable offset for read_committed, v2+), -2 the log's start, -3 the newest record (v7+, KIP-734),
-4 the local start (v8+, KIP-405), -5 the last cold offset (v9+, KIP-1005), -6 the first that is not yet cold (v11+,
KIP-1023). Where no record is that young, offset and timestamp are -1 without an error. v4+ fences by leader epoch. What
has to be asked of the bucket has the client's time (v10+), at most `remote.list.offsets.request.timeout.ms`. v0 has
another meaning and is not offered. A new leader that does not know yet what is committed names no end: v5+
OFFSET_NOT_AVAILABLE, before LEADER_NOT_AVAILABLE (KIP-207).

-3 counts cold records too; Kafka looks at the local log only. Our brokers do not ask this way: who says to be one is
refused; -2 for a replica is Kafka's tool that looks at the whole log.
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
from tiered_api.kafka.server.bounded_tasks import in_time
from tiered_api.kafka.server.context import Call, Site
from tiered_api.kafka.server.error_codes import FAULTS, code_of
from tiered_api.kafka.server.inter_broker_auth import only_pretends
from tiered_api.kafka.server.led_partitions import led_here

CONSUMER = -1
READ_COMMITTED = 1
TIMED = 10
UNSURE_VERSION = 5
OF_THE_END = (OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP)
SINCE_VERSION = {
    OffsetSpec.LATEST: 1,
    OffsetSpec.EARLIEST: 1,
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}


async def handle(site: Site, call: Call[ListOffsetsRequest]) -> ListOffsetsResponse:
    """One answer per partition; one that is asked for twice is refused."""
    request = call.request
    wanted: dict[tuple[str, int], ListOffsetsPartition | None] = {}
    for topic in request.topics:
        for each in topic.partitions:
            place = topic.name, each.partition_index
            wanted[place] = None if place in wanted else each
    work = _refuse if only_pretends(site, call, request.replica_id) else _answer
    lookups = TimeLookups()
    works = [partial(work, site, call, name, number, each, lookups) for (name, number), each in wanted.items()]
    timed_out = Code.REQUEST_TIMED_OUT.number
    places = list(wanted)
    answers = await in_time(
        works, _patience(site, call), lambda number: ListOffsetsPartitionResponse(places[number][1], timed_out)
    )
    topics: dict[str, ListOffsetsTopicResponse] = {}
    for (name, _), answer in zip(wanted, answers, strict=True):
        topics.setdefault(name, ListOffsetsTopicResponse(name)).partitions.append(answer)
    return ListOffsetsResponse(topics=list(topics.values()))


def _patience(site: Site, call: Call[ListOffsetsRequest]) -> int:
    ceiling = site.node.settings.remote_list_offsets_request_timeout_ms
    asked = call.request.timeout_ms
    return min(asked, ceiling) if call.version >= TIMED and asked > 0 else ceiling


async def _answer(
    site: Site,
    call: Call[ListOffsetsRequest],
    topic: str,
    number: int,
    asked: ListOffsetsPartition | None,
    lookups: TimeLookups,
) -> ListOffsetsPartitionResponse:
    if asked is None:
        return ListOffsetsPartitionResponse(number, Code.INVALID_REQUEST.number)
    try:
        name = _name(asked.timestamp, call.version) if asked.timestamp < 0 else None
        replica = led_here(site, topic, number, asked.current_leader_epoch)
        end = replica.high_watermark
        if call.request.replica_id != CONSUMER:
            end = replica.log.end_offset
        elif call.request.isolation_level == READ_COMMITTED:
            end = replica.last_stable_offset
        if name is None:
            found = await find_by_timestamp(replica, asked.timestamp, end, lookups)
        else:
            found = await find_by_spec(replica, name, end, lookups)
        if (found == OFFSET_NOT_FOUND if name is None else name in OF_THE_END) and call.request.replica_id == CONSUMER:
            _refuse_while_unsure(replica, call.version)
    except FAULTS as fault:
        return ListOffsetsPartitionResponse(number, code_of(fault).number)
    return ListOffsetsPartitionResponse(number, Code.NONE.number, found.timestamp, found.offset, found.leader_epoch)


async def _refuse(
    site: Site,
    call: Call[ListOffsetsRequest],
    topic: str,
    number: int,
    asked: ListOffsetsPartition | None,
    lookups: TimeLookups,
) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(number, Code.CLUSTER_AUTHORIZATION_FAILED.number)


def _refuse_while_unsure(replica: LeaderReplica, version: int) -> None:
    """A new leader may have more that is committed than it knows of: its end would go back (KIP-207)."""
    if replica.high_watermark < replica.epoch_start:
        code = Code.OFFSET_NOT_AVAILABLE if version >= UNSURE_VERSION else Code.LEADER_NOT_AVAILABLE
        raise Refused(code, f"{replica.at} has a new leader, which does not know yet what is committed")


def _name(timestamp: int, version: int) -> OffsetSpec:
    if timestamp not in SINCE_VERSION or version < SINCE_VERSION[OffsetSpec(timestamp)]:
        raise Refused(Code.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning in version {version}")
    return OffsetSpec(timestamp)

"""Acts on a topic that REST v3 lacks: records are deleted, logs cleaned, leaders elected, replicas moved.

Each is shown with `validate_only` before it is made, partition by partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

from tiered.compaction.cleanable_range import is_compacted
from tiered.errors import Code, Refused
from tiered.hot.time_lookup import TimeLookups
from tiered.metadata.effective_config import topic_config
from tiered.metadata.parts.topics import PartitionImage, TopicImage
from tiered_api.http.admin.requests import check_code, explain, send_as_caller
from tiered_api.http.exchange.errors import BAD_REQUEST, PARTITION_NOT_FOUND, HttpError
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.exchange.schemas import (
    COMPACTION,
    ELECTION,
    PARTITION_OFFSET,
    PARTITION_REPLICAS,
    REASSIGNMENT,
    RECORDS_DELETION,
    names,
)
from tiered_api.http.partitions.produce import find_partition, find_topic
from tiered_api.http.partitions.remote_partition import fetch_bounds, offset_for_timestamp
from tiered_api.http.v3.topics import boolean_field
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tiered_api.kafka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tiered_api.kafka.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from tiered_api.kafka.protocol.messages.tiered_compact import (
    CompactedTopic,
    TieredCompactRequest,
    TieredCompactResponse,
)

DELETE_RECORDS, ELECT_LEADERS, ALTER_REASSIGNMENTS, COMPACT = 2, 2, 1, 0
ACT_SECONDS = 30.0
"""Time that the other brokers have for an act. It may yet be done after it."""
TIMEOUT_MS = int(ACT_SECONDS * 1000)
AT_ONCE = 16
"""Partitions whose offsets are looked up at the same time."""
OFFSET_MAX = (1 << 63) - 1
ELECTIONS = {"PREFERRED": 0, "UNCLEAN": 1}
NOT_NEEDED = Code.ELECTION_NOT_NEEDED

Row = dict[str, Any]


def _reply(request: HttpRequest, topic: TopicImage, only: bool, rows: list[Row]) -> web.StreamResponse:
    return json_response({"topic": topic.name, "validate_only": only, "partitions": rows})


def _check_partition(topic: TopicImage, number: Any) -> int:
    """Returns the number of a partition. Raises `HttpError` 422 if it is no number, 404 if there is no such
    partition."""
    if type(number) is not int:
        raise HttpError(422, "a partition has to be an integer")
    if not 0 <= number < len(topic.partitions):
        raise HttpError(PARTITION_NOT_FOUND, f"topic {topic.name!r} has no partition {number}")
    return number


def _parse_each(topic: TopicImage, listed: Any, what: str, fields: Iterable[str]) -> dict[int, Mapping[str, Any]]:
    """Returns the objects of an array by their partitions, each of which is named once. Raises `HttpError`."""
    if not isinstance(listed, list) or not listed:
        raise HttpError(422, f"{what} has to be an array that is not empty")
    found: dict[int, Mapping[str, Any]] = {}
    for each in listed:
        if not isinstance(each, dict):
            raise HttpError(422, f"each of {what} has to be an object")
        check_fields(each, set(fields), f"an entry of {what}")
        number = _check_partition(topic, each.get("partition"))
        if number in found:
            raise HttpError(BAD_REQUEST, f"partition {number} appears twice")
        found[number] = each
    return found


async def _ask_leaders(
    topic: TopicImage, numbers: Iterable[int], ask: Callable[[int, list[int]], Awaitable[Mapping[int, Row]]]
) -> dict[int, Row]:
    """Returns what the leaders reply for these partitions. A partition without a leader, or whose leader does not
    reply, has an `error`."""
    shares: dict[int, list[int]] = {}
    found: dict[int, Row] = {}
    for number in numbers:
        shares.setdefault(topic.partitions[number].leader, []).append(number)
    for number in shares.pop(-1, ()):
        found[number] = {"error": "no broker leads it now"}

    async def one(leader: int, share: list[int]) -> Mapping[int, Row]:
        try:
            return await ask(leader, share)
        except (HttpError, Refused) as fault:
            why = fault.message if isinstance(fault, HttpError) else fault.why
            return {number: {"error": why} for number in share}

    for each in await asyncio.gather(*(one(*share) for share in shares.items())):
        found.update(each)
    return found


# -- records ----------------------------------------------------------------------------------------------------------


async def delete_records(request: HttpRequest) -> web.StreamResponse:
    """Deletes the records of partitions before an offset or a time; with `validate_only` it only tells how many."""
    topic = find_topic(request.context, request.args["topic"])
    body = await request.read_json_object()
    check_fields(body, names(RECORDS_DELETION), "the body")
    only = boolean_field(body, "validate_only")
    if ("offsets" in body) == ("before_timestamp" in body):
        raise HttpError(422, "the body needs offsets or before_timestamp, and not both")
    if "offsets" in body:
        entries = _parse_each(topic, body["offsets"], "offsets", names(PARTITION_OFFSET))
        wanted: dict[int, int | None] = {number: _parse_offset(each) for number, each in entries.items()}
    elif type(body["before_timestamp"]) is not int:
        raise HttpError(422, "before_timestamp has to be an integer")
    else:
        wanted = dict.fromkeys(range(len(topic.partitions)))
    slots, lookups = asyncio.Semaphore(AT_ONCE), TimeLookups(request.peer, request.connection_name)

    async def preview(number: int, offset: int | None) -> Row:
        async with slots:
            source = find_partition(request.context, topic, number, request)
            start, end = await fetch_bounds(source)
            if offset is None:
                found = await offset_for_timestamp(source, body["before_timestamp"], lookups)
                offset = end if found is None else found[0]
        if offset > end:
            raise HttpError(BAD_REQUEST, f"offset {offset} of partition {number} is behind its end {end}")
        kept = max(start, offset)
        return {
            "partition": number, "log_start_offset": start, "new_start_offset": kept, "log_end_offset": end,
            "deleted": kept - start, "error": None,
        }  # fmt: skip

    rows = list(await asyncio.gather(*(preview(*each) for each in sorted(wanted.items()))))
    if not only:
        starts = {row["partition"]: row["new_start_offset"] for row in rows if row["deleted"]}

        async def ask(leader: int, share: list[int]) -> dict[int, Row]:
            parts = [DeleteRecordsPartition(number, starts[number]) for number in share]
            message = DeleteRecordsRequest([DeleteRecordsTopic(topic.name, parts)], TIMEOUT_MS)
            reply = await send_as_caller(request, message, DeleteRecordsResponse, DELETE_RECORDS, leader, ACT_SECONDS)
            [found] = reply.topics
            return {each.partition_index: {"error": explain(each.error_code)} for each in found.partitions}

        outcomes = await _ask_leaders(topic, starts, ask)
        rows = [row | outcomes.get(row["partition"], {}) for row in rows]
    return _reply(request, topic, only, rows)


def _parse_offset(entry: Mapping[str, Any]) -> int:
    offset = entry.get("offset")
    if type(offset) is not int:
        raise HttpError(422, "each of offsets needs an offset that is an integer")
    if not 0 <= offset <= OFFSET_MAX:
        raise HttpError(BAD_REQUEST, f"{offset} is no offset")
    return offset


async def compact_topic(request: HttpRequest) -> web.StreamResponse:
    """Has a compacted topic cleaned as soon as possible; with `validate_only` it only tells what is dirty."""
    topic = find_topic(request.context, request.args["topic"])
    body = await request.read_json_object()
    check_fields(body, names(COMPACTION), "the body")
    only = boolean_field(body, "validate_only")

    async def ask(leader: int, share: list[int]) -> dict[int, Row]:
        message = TieredCompactRequest([CompactedTopic(topic.name, share)], not only)
        reply = await send_as_caller(request, message, TieredCompactResponse, COMPACT, leader)
        return {
            each.partition: {
                "in_bucket": each.is_in_bucket,
                "clean_to": each.clean_to,
                "cleaned_ms": each.cleaned_ms if each.cleaned_ms >= 0 else None,
                "clean_bytes": each.clean_bytes,
                "dirty_bytes": each.dirty_bytes,
                "problem": each.problem,
                "error": explain(each.error_code, each.error_message),
            }
            for each in reply.partitions
        }

    numbers = range(len(topic.partitions))
    outcomes = await _ask_leaders(topic, numbers, ask)
    config = topic_config(topic, request.context.broker.settings.topic_defaults())
    policy = ",".join(config.cleanup_policy)
    why = "its leader does not say" if is_compacted(config) else f"cleanup.policy is {policy}, and not compact"
    rows = [{"partition": number, **outcomes.get(number, {"error": why})} for number in numbers]
    return _reply(request, topic, only, rows)


# -- replicas ---------------------------------------------------------------------------------------------------------


async def elect_leaders(request: HttpRequest) -> web.StreamResponse:
    """Elects the preferred leaders, or with UNCLEAN a leader out of sync for partitions that have none; with
    `validate_only` it only tells which leaders change."""
    topic = find_topic(request.context, request.args["topic"])
    body = await request.read_json_object()
    check_fields(body, names(ELECTION), "the body")
    only, kind = boolean_field(body, "validate_only"), body.get("election_type")
    if not isinstance(kind, str) or kind not in ELECTIONS:
        raise HttpError(422, f"election_type has to be one of {', '.join(ELECTIONS)}")
    listed = body.get("partitions", list(range(len(topic.partitions))))
    if not isinstance(listed, list) or not listed:
        raise HttpError(422, "partitions has to be an array that is not empty")
    numbers = sorted({_check_partition(topic, each) for each in listed})
    live = request.context.broker.image.live_ids()
    rows = [_describe_election(topic.partitions[number], number, kind, live) for number in numbers]
    if not only:
        message = ElectLeadersRequest(ELECTIONS[kind], [TopicPartitions(topic.name, numbers)], TIMEOUT_MS)
        reply = await send_as_caller(request, message, ElectLeadersResponse, ELECT_LEADERS, wait_seconds=ACT_SECONDS)
        check_code(reply.error_code, f"election of leaders of {topic.name!r}")
        errors = {
            each.partition_id: explain(each.error_code, each.error_message)
            for found in reply.replica_election_results
            for each in found.partition_result
            if code_from_number(each.error_code) is not NOT_NEEDED
        }
        rows = [row | {"error": errors.get(row["partition"])} for row in rows]
    return _reply(request, topic, only, rows)


def _describe_election(part: PartitionImage, number: int, kind: str, live: frozenset[int]) -> Row:
    preferred = part.replicas[0]
    if kind == "PREFERRED":
        changes = part.leader != preferred and preferred in part.isr and preferred in live
    else:
        changes = part.leader not in live and any(each in live for each in part.replicas)
    return {
        "partition": number, "leader": part.leader, "preferred_leader": preferred, "isr": list(part.isr),
        "changes": changes, "error": None,
    }  # fmt: skip


async def reassign_partitions(request: HttpRequest) -> web.StreamResponse:
    """Moves partitions to other brokers, or cancels moves (null replicas); with `validate_only` it only tells which
    replicas are copied and removed."""
    topic = find_topic(request.context, request.args["topic"])
    body = await request.read_json_object()
    check_fields(body, names(REASSIGNMENT), "the body")
    only = boolean_field(body, "validate_only")
    entries = _parse_each(topic, body.get("partitions"), "partitions", names(PARTITION_REPLICAS))
    known = request.context.broker.image.brokers.keys()
    wanted = {number: _parse_replicas(number, each, known) for number, each in sorted(entries.items())}
    rows = [_describe_move(topic.partitions[number], number, to) for number, to in wanted.items()]
    if not only:
        parts = [ReassignablePartition(number, to) for number, to in wanted.items()]
        message = AlterPartitionReassignmentsRequest(
            timeout_ms=TIMEOUT_MS, topics=[ReassignableTopic(topic.name, parts)]
        )
        reply = await send_as_caller(
            request, message, AlterPartitionReassignmentsResponse, ALTER_REASSIGNMENTS, wait_seconds=ACT_SECONDS
        )
        check_code(reply.error_code, f"moves of {topic.name!r}", reply.error_message)
        errors = {
            each.partition_index: explain(each.error_code, each.error_message)
            for found in reply.responses
            for each in found.partitions
        }
        rows = [row | {"error": errors.get(row["partition"])} for row in rows]
    return _reply(request, topic, only, rows)


def _parse_replicas(number: int, entry: Mapping[str, Any], known: Iterable[int]) -> list[int] | None:
    """Returns the brokers of a partition, None to cancel its move. Raises `HttpError`."""
    if "replicas" not in entry:
        raise HttpError(422, f"partition {number} needs replicas; null cancels its move")
    to = entry["replicas"]
    if to is None:
        return None
    if not isinstance(to, list) or not to or any(type(each) is not int for each in to):
        raise HttpError(422, f"replicas of partition {number} has to be an array of broker ids, or null")
    unknown = sorted(set(to) - set(known))
    if unknown or len(set(to)) < len(to):
        why = f"there is no broker {unknown[0]}" if unknown else "a broker appears twice"
        raise HttpError(BAD_REQUEST, f"replicas of partition {number}: {why}")
    return to


def _describe_move(part: PartitionImage, number: int, to: list[int] | None) -> Row:
    stay = [each for each in part.replicas if each not in part.adding]
    target = stay if to is None else to
    return {
        "partition": number,
        "leader": part.leader,
        "replicas": list(part.replicas),
        "target": target,
        "adding": [each for each in target if each not in part.replicas],
        "removing": [each for each in part.replicas if each not in target],
        "error": None,
    }

"""Acts on groups: reset of the committed offsets, and deletion.

A reset is shown before it is made (`validate_only`): for each partition, how many records the group reads again or
skips. A caller that confirms sends the offsets that it was shown, so that nothing else is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from tiered.errors import Code, Refused
from tiered.hot.time_lookup import TimeLookups
from tiered.ids import TopicPartition
from tiered.security.acls import Operation, ResourceType
from tiered_api.http.admin.requests import check_code, explain, send_as_caller
from tiered_api.http.consumers.coordinator_calls import MOVED_CODES, find_coordinator, retry_while_loading
from tiered_api.http.exchange.errors import BAD_REQUEST, GROUP_NOT_FOUND, ILLEGAL_STATE, HttpError
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response, no_content
from tiered_api.http.exchange.schemas import OFFSETS_RESET, RESET_OFFSET, names
from tiered_api.http.groups import describe_group, fetch_committed_offsets
from tiered_api.http.partitions.produce import find_partition, find_topic
from tiered_api.http.partitions.remote_partition import fetch_bounds, offset_for_timestamp
from tiered_api.http.v3.topics import boolean_field
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tiered_api.kafka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

OFFSET_COMMIT, DELETE_GROUPS = 8, 2
PARTITIONS_MAX = 10_000
"""Most partitions of one reset."""
AT_ONCE = 16
"""Partitions whose offsets are looked up at the same time."""
OFFSET_MAX = (1 << 63) - 1
TARGETS = ("earliest", "latest", "timestamp")
EMPTY = ("Empty", "Dead")
RESET_FIELDS, OFFSET_FIELDS = names(OFFSETS_RESET), names(RESET_OFFSET)

Rows = list[dict[str, Any]]


async def reset_group_offsets(request: HttpRequest) -> web.StreamResponse:
    """Commits other offsets for a group without members; with `validate_only` it only tells which, and how many records
    the group reads again or skips."""
    group = request.args["group"]
    body = await request.read_json_object()
    check_fields(body, RESET_FIELDS, "the body")
    only = boolean_field(body, "validate_only")
    described = (await describe_group(request.context, group)).description
    committed = {
        TopicPartition(row.topic, row.partition): row.offset
        for row in await fetch_committed_offsets(request.context, group)
    }
    if described.state == "Dead" and not committed:
        raise HttpError(GROUP_NOT_FOUND, f"consumer group {group[:249]!r} not found")
    targets = _parse_offsets(body) if "offsets" in body else _choose_partitions(request, body, committed)
    for topic in sorted({tp.topic for tp in targets}):
        request.require(Operation.READ, ResourceType.TOPIC, topic)
    rows = await _preview(request, body, targets, committed)
    if not only:
        if described.state not in EMPTY:
            raise HttpError(ILLEGAL_STATE, f"group {group[:249]!r} is {described.state}: stop its members first")
        await _commit(request, group, rows)
    return json_response(
        {
            "group": group,
            "state": described.state,
            "validate_only": only,
            "again": sum(row["again"] for row in rows),
            "skipped": sum(row["skipped"] for row in rows),
            "partitions": rows,
        }
    )


def _parse_offsets(body: Mapping[str, Any]) -> dict[TopicPartition, int | None]:
    """Parses `offsets`, which name each partition with its offset. Raises `HttpError` 400 or 422."""
    listed = body["offsets"]
    if not isinstance(listed, list) or not listed or len(listed) > PARTITIONS_MAX or "to" in body:
        raise HttpError(422, f"offsets has to be an array of 1 to {PARTITIONS_MAX} objects, without the field to")
    found: dict[TopicPartition, int | None] = {}
    for each in listed:
        if not isinstance(each, dict):
            raise HttpError(422, "each of offsets has to be an object")
        check_fields(each, OFFSET_FIELDS, "an entry of offsets")
        topic, partition, offset = (each.get(name) for name in ("topic", "partition", "offset"))
        if not isinstance(topic, str) or type(partition) is not int or type(offset) is not int:
            raise HttpError(422, "each of offsets needs topic, partition and offset")
        if not 0 <= offset <= OFFSET_MAX:
            raise HttpError(BAD_REQUEST, f"offset {offset} of {topic[:249]!r} partition {partition} is no offset")
        if TopicPartition(topic, partition) in found:
            raise HttpError(BAD_REQUEST, f"{topic[:249]!r} partition {partition} appears twice")
        found[TopicPartition(topic, partition)] = offset
    return found


def _choose_partitions(
    request: HttpRequest, body: Mapping[str, Any], committed: Iterable[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """Returns the partitions that `to` is for: those of `topics`, or of all topics of the group. They have no offset
    yet."""
    if body.get("to") not in TARGETS:
        raise HttpError(422, f"to has to be one of {', '.join(TARGETS)}, or offsets has to name the offsets")
    if (body["to"] == "timestamp") != (type(body.get("timestamp")) is int):
        raise HttpError(422, "timestamp has to be an integer, with to=timestamp and not else")
    known = request.context.broker.image.topics
    topics = body["topics"] if "topics" in body else sorted({tp.topic for tp in committed if tp.topic in known})
    if not isinstance(topics, list) or not all(isinstance(each, str) for each in topics):
        raise HttpError(422, "topics has to be an array of names")
    for topic in topics:
        request.require(Operation.READ, ResourceType.TOPIC, topic)
    found = [
        TopicPartition(topic, number)
        for topic in dict.fromkeys(topics)
        for number in range(len(find_topic(request.context, topic).partitions))
    ]
    if not 0 < len(found) <= PARTITIONS_MAX:
        raise HttpError(BAD_REQUEST, f"a reset is for 1 to {PARTITIONS_MAX} partitions, this one for {len(found)}")
    return dict.fromkeys(found)


async def _preview(
    request: HttpRequest,
    body: Mapping[str, Any],
    targets: Mapping[TopicPartition, int | None],
    committed: Mapping[TopicPartition, int],
) -> Rows:
    """Returns the row of each partition. Raises `HttpError` 400 for an offset that is not in the log."""
    slots, lookups = asyncio.Semaphore(AT_ONCE), TimeLookups(request.peer, request.connection_name)

    async def row(tp: TopicPartition, offset: int | None) -> dict[str, Any]:
        async with slots:
            source = find_partition(request.context, find_topic(request.context, tp.topic), tp.partition, request)
            start, end = await fetch_bounds(source)
            if offset is None and body["to"] == "timestamp":
                found = await offset_for_timestamp(source, body["timestamp"], lookups)
                offset = end if found is None else found[0]
        chosen = offset if offset is not None else start if body["to"] == "earliest" else end
        if not start <= chosen <= end:
            raise HttpError(BAD_REQUEST, f"offset {chosen} of {tp} is not in {start} to {end}")
        return _describe_move(tp, committed.get(tp), chosen, start, end)

    return list(await asyncio.gather(*(row(tp, offset) for tp, offset in sorted(targets.items()))))


def _describe_move(tp: TopicPartition, current: int | None, chosen: int, start: int, end: int) -> dict[str, Any]:
    """Returns a row of a preview. Only records that exist are read again or skipped."""
    here = chosen if current is None else min(max(current, start), end)
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "current_offset": current,
        "new_offset": chosen,
        "log_start_offset": start,
        "log_end_offset": end,
        "again": max(0, here - chosen),
        "skipped": max(0, chosen - here),
        "error": None,
    }


async def _commit(request: HttpRequest, group: str, rows: Rows) -> None:
    """Commits the offsets of the rows, and tells in each row why it was refused."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for row in rows:
        wanted = OffsetCommitRequestPartition(row["partition"], row["new_offset"])
        topics.setdefault(row["topic"], OffsetCommitRequestTopic(row["topic"])).partitions.append(wanted)
    message = OffsetCommitRequest(group, topics=list(topics.values()))

    async def send() -> dict[tuple[str, int], int]:
        broker = await find_coordinator(request.context, group)
        reply = await send_as_caller(request, message, OffsetCommitResponse, OFFSET_COMMIT, broker)
        codes = {
            (topic.name, each.partition_index): each.error_code for topic in reply.topics for each in topic.partitions
        }
        for number in codes.values():
            if code_from_number(number) in MOVED_CODES:
                raise Refused(code_from_number(number), f"the coordinator of group {group[:249]!r} is moving")
        return codes

    codes = await retry_while_loading(request.context, send, MOVED_CODES)
    for row in rows:
        row["error"] = explain(codes[row["topic"], row["partition"]])


async def delete_group(request: HttpRequest) -> web.StreamResponse:
    """Deletes a group without members, with its committed offsets."""
    group = request.args["group"]

    async def send() -> None:
        broker = await find_coordinator(request.context, group)
        message = DeleteGroupsRequest([group])
        [result] = (await send_as_caller(request, message, DeleteGroupsResponse, DELETE_GROUPS, broker)).results
        if code_from_number(result.error_code) is Code.GROUP_ID_NOT_FOUND:
            raise HttpError(GROUP_NOT_FOUND, f"consumer group {group[:249]!r} not found")
        check_code(result.error_code, f"group {group[:249]!r}")

    await retry_while_loading(request.context, send, MOVED_CODES)
    return no_content()

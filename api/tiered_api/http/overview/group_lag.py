"""How far groups are behind: in records, and in seconds since the oldest unread record was written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from aiohttp import web

from tiered.errors import Code, Refused
from tiered.groups.requests import DescribedMember
from tiered.ids import TopicPartition
from tiered.security.acls import CLUSTER_NAME, Operation, ResourceType
from tiered.system.turns import each_of
from tiered_api.http.exchange.errors import GROUP_NOT_FOUND, HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.groups import describe_group, fetch_committed_offsets, fetch_end_offsets, list_all_groups
from tiered_api.http.overview.unread import Position, UnreadTimes
from tiered_api.kafka.client.group_member import read_assignment

GROUPS_MAX = 200
"""Most groups whose lag one request looks up, in order of their names."""
AT_ONCE = 16
"""Groups whose offsets are looked up at the same time."""

Offsets = dict[TopicPartition, int]


class GroupLag(NamedTuple):
    """The lag of a group: records behind the committed offsets, and the time of the oldest of them, None if it is not
    known."""

    records: int
    oldest_unread_ms: int | None


async def list_group_lags(request: HttpRequest) -> web.StreamResponse:
    """Lists the groups with their lag in records, and since when they are behind."""
    sees_all = request.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    wanted = request.query_parameters().get("contains", "").lower()
    groups = [
        each
        for each in await list_all_groups(request.context)
        if wanted in each.description.group.lower()
        and (sees_all or request.may(Operation.DESCRIBE, ResourceType.GROUP, each.description.group))
    ]
    slots = asyncio.Semaphore(AT_ONCE)

    async def committed(group: str) -> Offsets:
        async with slots:
            try:
                return await _fetch_committed(request, group)
            except Refused:
                return {}  # its coordinator is moving: the next request shows it

    looked_up = [each.description.group for each in groups[:GROUPS_MAX]]
    offsets = dict(zip(looked_up, await asyncio.gather(*map(committed, looked_up)), strict=True))
    ends = await fetch_end_offsets(request.context, {tp for each in offsets.values() for tp in each})
    times = await request.context.service(UnreadTimes).find(
        request, dict.fromkeys(each for positions in offsets.values() for each in _list_behind(positions, ends))
    )
    rows = []
    async for each in each_of(groups):
        name = each.description.group
        lag = _sum_lag(offsets[name], ends, times) if name in offsets else None
        rows.append(
            {
                "group": name,
                "state": each.description.state,
                "coordinator": each.coordinator,
                "topics": sorted({tp.topic for tp in offsets.get(name, ())}),
                "lag": None if lag is None else lag.records,
                **_describe_age(request, None if lag is None else lag.oldest_unread_ms),
            }
        )
    return json_response({"groups": rows, "groups_left_out": len(groups) - len(looked_up)})


async def get_group_lag(request: HttpRequest) -> web.StreamResponse:
    """Returns a group with its members, and its lag by partition in records and in seconds."""
    found = (await describe_group(request.context, request.args["group"])).description
    if found.code is not Code.NONE:
        raise HttpError(GROUP_NOT_FOUND, f"consumer group {found.group[:249]!r} not found")
    committed = await _fetch_committed(request, found.group)
    owners = {
        tp: member
        for member in (found.members if found.protocol_type == "consumer" else ())
        for tp in read_assignment(member.assignment)
    }
    visible = {
        tp: owner for tp, owner in owners.items() if request.may(Operation.DESCRIBE, ResourceType.TOPIC, tp.topic)
    }
    ends = await fetch_end_offsets(request.context, {*committed, *visible})
    behind = _list_behind(committed, ends)
    times = await request.context.service(UnreadTimes).find(request, behind)
    lag = _sum_lag(committed, ends, times)
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "current_offset": committed.get(tp),
            "log_end_offset": ends.get(tp),
            "lag": ends[tp] - committed[tp] if tp in ends and tp in committed else None,
            **_describe_age(request, times.get((tp, committed.get(tp, -1)))),
            "member_id": owners[tp].member_id if tp in owners else None,
            "client_id": owners[tp].client_id if tp in owners else None,
        }
        for tp in sorted({*committed, *visible})
    ]
    return json_response(
        {
            "group": found.group,
            "state": found.state,
            "lag": lag.records,
            **_describe_age(request, lag.oldest_unread_ms),
            "times_missing": len(behind) - len(times),
            "members": [_describe_member(each, visible) for each in found.members],
            "partitions": rows,
        }
    )


async def _fetch_committed(request: HttpRequest, group: str) -> Offsets:
    """Returns the committed offsets of topics that the caller may describe."""
    rows = await fetch_committed_offsets(request.context, group)
    return {
        TopicPartition(row.topic, row.partition): row.offset
        async for row in each_of(rows)
        if request.may(Operation.DESCRIBE, ResourceType.TOPIC, row.topic)
    }


def _list_behind(committed: Offsets, ends: Mapping[TopicPartition, int]) -> list[Position]:
    return [(tp, offset) for tp, offset in committed.items() if offset < ends.get(tp, 0)]


def _sum_lag(committed: Offsets, ends: Mapping[TopicPartition, int], times: Mapping[Position, int]) -> GroupLag:
    records = sum(max(0, ends.get(tp, offset) - offset) for tp, offset in committed.items())
    return GroupLag(records, min((times[each] for each in committed.items() if each in times), default=None))


def _describe_age(request: HttpRequest, oldest_ms: int | None) -> dict[str, Any]:
    """Returns the time of the oldest unread record, and how many seconds ago that was. A producer chooses the time, so
    it may lie ahead."""
    if oldest_ms is None:
        return {"oldest_unread_ms": None, "seconds": None}
    age_ms = request.context.clock.wall_ms() - oldest_ms
    return {"oldest_unread_ms": oldest_ms, "seconds": max(0, age_ms) / 1000}


def _describe_member(member: DescribedMember, visible: Iterable[TopicPartition]) -> dict[str, Any]:
    mine = sorted(set(read_assignment(member.assignment)) & set(visible)) if member.assignment else []
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.client_host,
        "partitions": [f"{tp.topic}/{tp.partition}" for tp in mine],
    }

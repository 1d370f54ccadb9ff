"""How far groups are behind: in records, and in seconds since the oldest unread record was written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from aiohttp import web

from tiered.errors import Code
from tiered.groups.requests import DescribedMember
from tiered.ids import TopicPartition
from tiered.security.acls import Operation, ResourceType
from tiered.system.turns import each_of
from tiered_api.http.exchange.errors import GROUP_NOT_FOUND, HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.groups import describe_group, fetch_end_offsets
from tiered_api.http.overview.groups import (
    Offsets,
    fetch_committed,
    fetch_committed_of_groups,
    list_visible_groups,
    sum_lag,
)
from tiered_api.http.overview.unread import Position, UnreadTimes
from tiered_api.kafka.client.group_member import read_assignment


async def list_group_lags(request: HttpRequest) -> web.StreamResponse:
    """Lists the groups with their lag in records, and since when they are behind."""
    wanted = request.query_parameters().get("contains", "").lower()
    groups = [each for each in await list_visible_groups(request) if wanted in each.description.group.lower()]
    offsets = await fetch_committed_of_groups(request, groups, partial(_may_describe, request))
    ends = await fetch_end_offsets(request.context, {tp for each in offsets.values() for tp in each})
    times = await request.context.service(UnreadTimes).find(
        request, dict.fromkeys(each for positions in offsets.values() for each in _list_behind(positions, ends))
    )
    rows = []
    async for each in each_of(groups):
        name = each.description.group
        committed = offsets.get(name)
        rows.append(
            {
                "group": name,
                "state": each.description.state,
                "coordinator": each.coordinator,
                "topics": sorted({tp.topic for tp in committed or ()}),
                "lag": None if committed is None else sum_lag(committed, ends),
                **_describe_age(request, _find_oldest(committed or {}, times)),
            }
        )
    return json_response({"groups": rows, "groups_left_out": len(groups) - len(offsets)})


async def get_group_lag(request: HttpRequest) -> web.StreamResponse:
    """Returns a group with its members, and its lag by partition in records and in seconds."""
    found = (await describe_group(request.context, request.args["group"])).description
    if found.code is not Code.NONE:
        raise HttpError(GROUP_NOT_FOUND, f"consumer group {found.group[:249]!r} not found")
    committed = await fetch_committed(request, found.group, partial(_may_describe, request))
    owners = {
        tp: member
        for member in (found.members if found.protocol_type == "consumer" else ())
        for tp in read_assignment(member.assignment)
    }
    visible = {tp for tp in owners if _may_describe(request, tp.topic)}
    ends = await fetch_end_offsets(request.context, {*committed, *visible})
    behind = _list_behind(committed, ends)
    times = await request.context.service(UnreadTimes).find(request, behind)
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
            "lag": sum_lag(committed, ends),
            **_describe_age(request, _find_oldest(committed, times)),
            "times_missing": len(behind) - len(times),
            "members": [_describe_member(each, visible) for each in found.members],
            "partitions": rows,
        }
    )


def _may_describe(request: HttpRequest, topic: str) -> bool:
    return request.may(Operation.DESCRIBE, ResourceType.TOPIC, topic)


def _list_behind(committed: Offsets, ends: Offsets) -> list[Position]:
    return [(tp, offset) for tp, offset in committed.items() if offset < ends.get(tp, 0)]


def _find_oldest(committed: Offsets, times: Mapping[Position, int]) -> int | None:
    """Returns the time of the oldest record behind the committed offsets, None if it is not known."""
    return min((times[each] for each in committed.items() if each in times), default=None)


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

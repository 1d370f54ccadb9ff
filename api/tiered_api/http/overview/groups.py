"""The groups that read a topic: the offsets that they have committed, and how far behind they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from aiohttp import web

from tiered.errors import Refused
from tiered.ids import TopicPartition
from tiered.security.acls import CLUSTER_NAME, Operation, ResourceType
from tiered.system.turns import each_of
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.groups import GroupDescription, fetch_committed_offsets, fetch_end_offsets, list_all_groups
from tiered_api.http.partitions.produce import find_topic

GROUPS_MAX = 200
"""Most groups whose offsets one request looks up, in order of their names."""
AT_ONCE = 16
"""Groups whose offsets are looked up at the same time."""


Offsets = dict[TopicPartition, int]
"""Committed offsets, or log ends."""


async def list_visible_groups(request: HttpRequest) -> list[GroupDescription]:
    """Returns the groups that the caller may describe, by name."""
    sees_all = request.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    return [
        each
        async for each in each_of(await list_all_groups(request.context))
        if sees_all or request.may(Operation.DESCRIBE, ResourceType.GROUP, each.description.group)
    ]


async def fetch_committed(request: HttpRequest, group: str, is_wanted: Callable[[str], bool]) -> Offsets:
    """Returns the offsets that a group has committed of the wanted topics."""
    return {
        TopicPartition(row.topic, row.partition): row.offset
        async for row in each_of(await fetch_committed_offsets(request.context, group))
        if is_wanted(row.topic)
    }


async def fetch_committed_of_groups(
    request: HttpRequest, groups: Iterable[GroupDescription], is_wanted: Callable[[str], bool]
) -> dict[str, Offsets]:
    """Returns the same of the first `GROUPS_MAX` groups. One whose coordinator is moving has none: the next request
    shows them."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def committed(group: str) -> Offsets:
        async with slots:
            try:
                return await fetch_committed(request, group, is_wanted)
            except Refused:
                return {}

    names = [each.description.group for each in islice(groups, GROUPS_MAX)]
    return dict(zip(names, await asyncio.gather(*map(committed, names)), strict=True))


def sum_lag(committed: Offsets, ends: Offsets) -> int:
    """Returns how many records are behind the committed offsets."""
    return sum(max(0, ends.get(tp, offset) - offset) for tp, offset in committed.items())


async def get_topic_groups(request: HttpRequest) -> web.StreamResponse:
    """Lists the groups that have committed offsets of a topic, with the offsets and the lag."""
    topic = find_topic(request.context, request.args["topic"])
    groups = await list_visible_groups(request)
    committed = await fetch_committed_of_groups(request, groups, lambda name: name == topic.name)
    ends = await fetch_end_offsets(request.context, sorted({tp for each in committed.values() for tp in each}))
    found = list[dict[str, Any]]()
    for each in groups[: len(committed)]:
        positions = committed[each.description.group]
        if positions:
            found.append(
                {
                    "group": each.description.group,
                    "state": each.description.state,
                    "lag": sum_lag(positions, ends),
                    "offsets": {str(tp.partition): offset for tp, offset in sorted(positions.items())},
                }
            )
    return json_response({"topic": topic.name, "groups": found, "groups_left_out": len(groups) - len(committed)})

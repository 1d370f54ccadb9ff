"""The groups that read a topic: the offsets that they have committed, and how far behind they are."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from tiered.errors import Refused
from tiered.ids import TopicPartition
from tiered.security.acls import CLUSTER_NAME, Operation, ResourceType
from tiered.system.turns import each_of
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.groups import fetch_committed_offsets, fetch_end_offsets, list_all_groups
from tiered_api.http.partitions.produce import find_topic

GROUPS_MAX = 200
"""Most groups whose offsets one request looks up, in order of their names."""
AT_ONCE = 16
"""Groups whose offsets are looked up at the same time."""


async def get_topic_groups(request: HttpRequest) -> web.StreamResponse:
    """Lists the groups that have committed offsets of a topic, with the offsets and the lag."""
    topic = find_topic(request.context, request.args["topic"])
    sees_all = request.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    names = {
        each.description.group: each.description.state
        for each in await list_all_groups(request.context)
        if sees_all or request.may(Operation.DESCRIBE, ResourceType.GROUP, each.description.group)
    }
    looked_up, found, slots = sorted(names)[:GROUPS_MAX], list[dict[str, Any]](), asyncio.Semaphore(AT_ONCE)

    async def committed(group: str) -> dict[int, int]:
        async with slots:
            try:
                rows = await fetch_committed_offsets(request.context, group)
            except Refused:
                return {}  # its coordinator is moving: the next request shows it
            return {row.partition: row.offset async for row in each_of(rows) if row.topic == topic.name}

    offsets = dict(zip(looked_up, await asyncio.gather(*map(committed, looked_up)), strict=True))
    partitions = {number for each in offsets.values() for number in each}
    ends = await fetch_end_offsets(request.context, [(topic.name, number) for number in sorted(partitions)])
    for group, positions in offsets.items():
        if positions:
            lags = [
                ends.get(TopicPartition(topic.name, number), offset) - offset for number, offset in positions.items()
            ]
            found.append(
                {
                    "group": group,
                    "state": names[group],
                    "lag": sum(max(0, each) for each in lags),
                    "offsets": {str(number): offset for number, offset in sorted(positions.items())},
                }
            )
    return json_response({"topic": topic.name, "groups": found, "groups_left_out": len(names) - len(looked_up)})

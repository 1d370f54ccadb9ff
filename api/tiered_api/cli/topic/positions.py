"""The positions of groups in topics: the offsets that they have committed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from tiered.errors import Refused
from tiered.ids import TopicPartition
from tiered_api.cli.group.groups import list_all_groups
from tiered_api.cli.output import print_error
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.group_offsets import fetch_committed_offsets

GROUPS_MAX = 200
"""Groups whose offsets are looked up, in order of their names."""
AT_ONCE = 8

Positions = Mapping[TopicPartition, Mapping[str, int]]
"""Committed offsets by group, of each partition."""


async def fetch_positions(client: KafkaClient, topics: Collection[str]) -> Positions:
    """Returns the positions of the groups that the login may describe. Says so if groups are left out."""
    names = sorted({group.group_id for _, group in await list_all_groups(client)})
    if len(names) > GROUPS_MAX:
        print_error(f"the positions of {len(names) - GROUPS_MAX:,} groups are left out")
    slots = asyncio.Semaphore(AT_ONCE)

    async def fetch(group: str) -> dict[TopicPartition, int]:
        async with slots:
            try:
                return await fetch_committed_offsets(client, group)
            except Refused:
                return {}  # the group is gone, or the login may not describe it

    shown = names[:GROUPS_MAX]
    found: dict[TopicPartition, dict[str, int]] = {}
    for group, offsets in zip(shown, await asyncio.gather(*map(fetch, shown)), strict=True):
        for tp, offset in offsets.items():
            if tp.topic in topics:
                found.setdefault(tp, {})[group] = offset
    return found

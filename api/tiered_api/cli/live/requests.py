"""The requests of `tiered top`: rounds, in each of which each broker gets one request at most.

A round asks for one kind of facts. The kinds take turns, the quick ones more often. A list that is too long for one
request goes on in the next round of its kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum, auto
from itertools import cycle
from typing import Any

from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.cli.live.top_state import TopState
from tiered_api.health.view import build_report
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.client.leader_routing import LATEST
from tiered_api.kafka.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tiered_api.kafka.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

REPLY_SECONDS = 5.0
PARTITIONS_MAX = 2_000
"""Partitions whose ends one request asks for."""
GROUPS_MAX = 50
"""Groups whose offsets one request asks for."""
NAMES_VERSION = 9
"""The last version of OffsetFetch that names topics; later ones have their ids."""


class Round(Enum):
    """The kind of facts that a round asks for."""

    METADATA = auto()
    ENDS = auto()
    GROUPS = auto()
    COMMITS = auto()
    REPORTS = auto()


TURNS = (
    Round.METADATA, Round.ENDS, Round.GROUPS, Round.COMMITS, Round.REPORTS, Round.ENDS, Round.COMMITS, Round.REPORTS,
    Round.ENDS, Round.COMMITS, Round.REPORTS,
)  # fmt: skip


class TopRequests:
    """Rounds of requests whose replies go to a state."""

    def __init__(self, client: KafkaClient, state: TopState, now: Callable[[], float]) -> None:
        self._client = client
        self._state = state
        self._now = now
        self._turns = cycle(TURNS)
        self._cursors: dict[tuple[Round, int], int] = {}

    async def run_round(self) -> None:
        """Sends the next round, one request to each broker at most. Raises `Unavailable` if no broker replies."""
        turn = next(self._turns)
        if turn is Round.METADATA or not self._state.brokers:
            self._state.on_metadata(await self._client.fetch_metadata(None))
            return
        ask = {
            Round.ENDS: self._ask_ends,
            Round.GROUPS: self._ask_groups,
            Round.COMMITS: self._ask_commits,
            Round.REPORTS: self._ask_report,
        }[turn]
        await asyncio.gather(*(self._try(node, ask(node)) for node in list(self._state.brokers)))

    async def _try(self, node: int, asking: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                await asking
        except (Refused, Unavailable, TimeoutError) as fault:
            if isinstance(fault, Refused) and fault.code is Code.UNSUPPORTED_VERSION:
                return
            self._state.on_fault(node, str(fault) or f"no reply within {REPLY_SECONDS:g} s")

    def _take_turn(self, kind: Round, node: int, count: int, most: int) -> tuple[int, int]:
        """Returns the range of a list that the next request is about."""
        start = self._cursors.get((kind, node), 0)
        start = 0 if start >= count else start
        self._cursors[kind, node] = start + most
        return start, start + most

    async def _ask_ends(self, node: int) -> None:
        led = sorted(tp for tp, leader in self._state.leaders.items() if leader == node)
        first, behind = self._take_turn(Round.ENDS, node, len(led), PARTITIONS_MAX)
        topics: dict[str, ListOffsetsTopic] = {}
        for tp in led[first:behind]:
            each = topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic))
            each.partitions.append(ListOffsetsPartition(partition_index=tp.partition, timestamp=LATEST))
        if not topics:
            return
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=list(topics.values()), timeout_ms=int(REPLY_SECONDS * 900)
        )
        got = await self._client.send(request, ListOffsetsResponse, node_id=node, connects_once=True)
        ends = {
            TopicPartition(topic.name, part.partition_index): part.offset
            for topic in got.topics
            for part in topic.partitions
            if not part.error_code
        }
        self._state.on_ends(self._now(), ends)
        self._state.on_reply(node)

    async def _ask_groups(self, node: int) -> None:
        got = await self._client.send(ListGroupsRequest(), ListGroupsResponse, node_id=node, connects_once=True)
        if got.error_code:
            raise to_refused(got.error_code, f"groups of broker {node}")
        self._state.on_groups(node, got.groups)
        self._state.on_reply(node)

    async def _ask_commits(self, node: int) -> None:
        names = sorted(name for name, each in self._state.groups.items() if each.coordinator == node)
        first, behind = self._take_turn(Round.COMMITS, node, len(names), GROUPS_MAX)
        asked = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names[first:behind]]
        if not asked:
            return
        request = OffsetFetchRequest(groups=asked)
        got = await self._client.send(
            request, OffsetFetchResponse, node_id=node, connects_once=True, version_max=NAMES_VERSION
        )
        for group in got.groups:
            if not group.error_code:
                found: Mapping[TopicPartition, int] = {
                    TopicPartition(topic.name, part.partition_index): part.committed_offset
                    for topic in group.topics
                    for part in topic.partitions
                    if not part.error_code and part.committed_offset >= 0
                }
                self._state.on_commits(self._now(), group.group_id, found)
        self._state.on_reply(node)

    async def _ask_report(self, node: int) -> None:
        request = DescribeClusterRequest(include_health=True)
        got = await self._client.send(request, DescribeClusterResponse, node_id=node, connects_once=True)
        self._state.on_report(self._now(), build_report(node, got))

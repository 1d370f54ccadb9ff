"""Committers of offsets in a run, and their replies: I18.

A committed offset is the last acknowledged one, or a later one without a reply. The run says what a power cut or a lost
disk may take: then any value counts that was committed since the oldest image that may be the newest left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tiered.broker.broker import Broker
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.groups.requests import CommitOffsets, CommitOffsetsReply, FetchOffsets, FetchOffsetsReply, PartitionOffset

TOPIC = "read"
RETRY = (Refused, Unavailable, Corrupt)


class OffsetHistory:
    """The growing offsets of one group: the requested ones, and (time, value) of the acknowledged ones."""

    def __init__(self) -> None:
        self.requested: set[int] = {-1}
        self.acked: list[tuple[float, int]] = []

    def is_possible(self, value: int, safe_until: float) -> bool:
        """True if the group may have this offset when only commits acknowledged before `safe_until` are certain."""
        least = max((acked for at, acked in self.acked if at <= safe_until), default=-1)
        return value >= least and value in self.requested

    def reset_to(self, value: int, now: float) -> None:
        """Accepts a loss: `value` is the truth from now on. (A pending commit may still restore a later one.)"""
        self.acked = [(now, value)]


class GroupClients:
    """`groups` committers, each of which commits growing offsets of its own group."""

    def __init__(self, seed: int, groups: int, node: Callable[[], Broker | None], now: Callable[[], float]) -> None:
        self._rng = random.Random(f"{seed}/groups")
        self._node = node
        self._now = now
        self.histories = {f"group-{number}": OffsetHistory() for number in range(groups)}
        self.working = True
        self.acked = 0

    async def work(self, group: str) -> None:
        """Commits until told to stop."""
        history, value = self.histories[group], 0
        while self.working:
            await asyncio.sleep(self._rng.uniform(0.01, 2.0))
            node, value = self._node(), value + 1
            if node is None:
                continue
            requested_at = self._now()
            history.requested.add(value)
            try:
                reply = await node.group_coordinators.submit(
                    group, CommitOffsets(group, (PartitionOffset(TOPIC, 0, value),)), 20.0
                )
            except RETRY:
                continue
            assert isinstance(reply, CommitOffsetsReply)
            if reply.codes[0] is Code.NONE:
                history.acked.append((requested_at, value))
                self.acked += 1

    async def check(self, node: Broker, safe_until: Callable[[str], float]) -> None:
        """I18 after a start: all commits that were acknowledged before `safe_until` are there, and none that was not
        requested."""
        for group, history in self.histories.items():
            value, safe = (await self._fetch(node, group)).offsets[0].offset, safe_until(group)
            assert history.is_possible(value, safe), (
                f"I18: {group} is at {value}, acknowledged was {history.acked[-5:]}, sure is what came before {safe}"
            )
            history.reset_to(value, self._now())

    async def _fetch(self, node: Broker, group: str) -> FetchOffsetsReply:
        for _ in range(600):
            try:
                reply = await node.group_coordinators.submit(group, FetchOffsets(group, ((TOPIC, 0),)))
            except Refused as refused:
                assert refused.code.retriable, refused
                await asyncio.sleep(0.5)
                continue
            assert isinstance(reply, FetchOffsetsReply)
            return reply
        raise AssertionError(f"liveness: {group} is not served: {node.health().problems}")

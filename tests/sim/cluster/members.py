"""Members of a consumer group over the wire: they read what is theirs, commit it, and note since when and how long they
owned it (until they give it up, or their session must have ended at the coordinator)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from tests.sim.cluster.history import Commit, History, Owned, Places
from tests.sim.cluster.world import Listening
from tests.sim.harness.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client import group_member
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.consumer import KafkaConsumer
from tiered_api.kafka.client.group_member import ConsumerGroupMember
from tiered_api.kafka.client.group_offsets import commit_offsets, fetch_committed_offsets
from tiered_api.kafka.client.leader_routing import LATEST, list_offsets_at
from tiered_api.kafka.protocol.messages.heartbeat import HeartbeatRequest
from tiered_api.kafka.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tiered_api.kafka.protocol.messages.leave_group import LeaveGroupRequest
from tiered_api.kafka.protocol.messages.offset_commit import OffsetCommitRequest
from tiered_api.kafka.protocol.messages.sync_group import SyncGroupRequest
from tiered_api.kafka.protocol.schema import Message

GROUP = "group"
"""The one group of a run."""
CANNOT = (Refused, Unavailable, Corrupt)
SESSION_MS = 6_000
REBALANCE_MS = 8_000
"""Longer than a session: who misses a rebalance is put out at its end, though it commits until it hears of it."""
HEARTBEAT_SECONDS = 1.0


@contextmanager
def short_sessions() -> Iterator[None]:
    """Members that are missed within a run's time."""
    names = {"SESSION_MS": SESSION_MS, "REBALANCE_MS": REBALANCE_MS, "HEARTBEAT_SECONDS": HEARTBEAT_SECONDS}
    before = {name: getattr(group_member, name) for name in names}
    for name, value in names.items():
        setattr(group_member, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(group_member, name, value)


A = TypeVar("A", bound=Message)


class InstanceClient(Listening):
    """The client of a member that is static (KIP-345): it says so with all it asks of its coordinator. None: it is
    not."""

    instance: str | None = None

    async def ask(
        self, request: Message, answer: type[A], *, node: int | None = None, timeout: float | None = None
    ) -> A:
        if self.instance is not None:
            if isinstance(request, LeaveGroupRequest):
                for each in request.members:
                    each.group_instance_id = self.instance
            elif isinstance(request, (JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, OffsetCommitRequest)):
                request.group_instance_id = self.instance
        return await super().ask(request, answer, node=node, timeout=timeout)


class Timed(ConsumerGroupMember):
    """Notes when it asked for its assignment: the answer may be long on its way, and its session began before."""

    asked_ns = 0

    def __init__(self, client: KafkaClient, group: str, topics: Sequence[str], loop: SimLoop) -> None:
        super().__init__(client, group, topics)
        self._loop = loop

    async def begin_anew(self) -> None:
        """As its process does that was gone without a word: it knows nothing of who it was."""
        await self._stop_heartbeats()
        self._id, self._generation = "", -1

    async def _sync(self, joined: JoinGroupResponse) -> tuple[Code, list[TopicPartition]]:
        self.asked_ns = self._loop.now_ns
        return await super()._sync(joined)


class GroupMember:
    """One member, which joins, reads, commits, and joins again, until `working` is unset."""

    def __init__(
        self, name: str, group: str, client: InstanceClient, loop: SimLoop, history: History, topic: str
    ) -> None:
        self.name = name
        self.returned = 0
        """How often it came back to the place that it had, as a static one does."""
        self.working = True
        self.steady = False
        """Whether it stays, as long as the group lets it."""
        self._group = group
        self._client = client
        self._loop = loop
        self._history = history
        self._topic = topic
        self._draw = random.Random(f"{loop.seed}/{name}")
        self._comes_back = random.Random(f"{loop.seed}/{name}/comes-back")
        self._heard_ns = 0
        self._before: tuple[str, int] | None = None
        """Who it was in the generation before."""
        self._reads: tuple[Timed, KafkaConsumer] | None = None
        """Who it is in this generation."""
        self._astray = False

    def positions(self) -> dict[TopicPartition, int]:
        """How far it has read what is its own now; nothing while it has no place."""
        if self._reads is None or self._reads[0].must_rejoin.is_set():
            return {}
        return self._reads[1].positions()

    async def work(self) -> None:
        member = Timed(self._client, self._group, [self._topic], self._loop)
        while self.working:
            try:
                await self._take_part(member)
                await self._come_back(member)
            except (TimeoutError, *CANNOT) as error:
                if isinstance(error, Refused) and error.code is Code.FENCED_INSTANCE_ID:
                    await member.begin_anew()  # an answer was lost that told it who it is now
                self._astray = isinstance(error, Refused) and error.code is Code.OFFSET_OUT_OF_RANGE
                await asyncio.sleep(0.5)
        try:
            async with asyncio.timeout(5):
                await member.leave()
        except (TimeoutError, *CANNOT):
            await member._stop_heartbeats()
        await self._client.close()

    async def _come_back(self, member: Timed) -> None:
        if self._client.instance is not None and not self.steady and self._comes_back.random() < 0.5:
            known = member._generation
            await member.begin_anew()
            await asyncio.sleep(self._comes_back.choice((0.0, 0.5, 3.0)))
            self.returned += known >= 0

    async def _take_part(self, member: Timed) -> None:
        """One generation."""
        began_ns = self._loop.now_ns
        async with asyncio.timeout(20):
            mine = await member.join()
        since_ns, self._heard_ns = self._loop.now_ns, member.asked_ns
        name, generation = member._id, member._generation
        owner = self._client.instance or name
        if self._before is not None and self._draw.random() < 0.5:
            await self._commit_late(*self._before, mine)
        self._before = (name, generation)
        consumer = KafkaConsumer(self._client, max_wait_ms=500)
        try:
            offsets = await fetch_committed_offsets(self._client, self._group)
            self._history.places.append(Places(self._group, dict(offsets), since_ns, self._loop.now_ns))
            if self._astray:  # what was committed is lost: it reads on from the end, as clients are told to
                ends = await list_offsets_at(self._client, mine, LATEST)
                offsets = {where: min(offset, ends.get(where, offset)) for where, offset in offsets.items()}
            consumer.assign({where: offsets.get(where, 0) for where in mine})
            self._reads = (member, consumer)
            while self.working and not member.must_rejoin.is_set() and (self._draw.random() > 0.02 or self.steady):
                await consumer.poll()
                if self._draw.random() < 0.3:
                    await self._commit(member, consumer.positions())
        finally:
            self._reads = None
            await consumer.close()
            # Whether its session lasted longer is not known here: it was heard last when it committed or joined.
            until_ns = min(self._loop.now_ns, self._heard_ns + SESSION_MS * 1_000_000)
            if mine:
                own = Owned(self._group, owner, generation, tuple(mine), since_ns, until_ns, began_ns)
                self._history.owned.append(own)

    async def _commit(self, member: ConsumerGroupMember, offsets: dict[TopicPartition, int]) -> None:
        asked_ns, generation = self._loop.now_ns, member._generation
        code: Code | None = None
        try:
            await member.commit(offsets)
            if not member.must_rejoin.is_set():
                code, self._heard_ns = Code.NONE, asked_ns
        except Refused as refused:
            code = refused.code
            raise
        finally:
            for where, offset in offsets.items():
                self._history.commits.append(
                    Commit(self._group, where, offset, asked_ns, self._loop.now_ns, code, generation)
                )

    async def _commit_late(self, name: str, generation: int, mine: list[TopicPartition]) -> None:
        """A commit of the generation before, as if it had been long on its way: to be refused."""
        offsets, asked_ns = dict.fromkeys(mine, 0), self._loop.now_ns
        codes: dict[TopicPartition, Code] = {}
        try:
            got = await commit_offsets(self._client, self._group, offsets, generation_id=generation, member_id=name)
            codes = {where: each.code if isinstance(each, Refused) else Code.NONE for where, each in got.items()}
        finally:  # what has no answer may be in all the same
            self._history.commits += [
                Commit(self._group, where, 0, asked_ns, self._loop.now_ns, codes.get(where), generation)
                for where in offsets
            ]

"""Members of a consumer group over the wire: they read and commit their partitions, and record the time spans in which
they own them (until they give them up, or until their session must have ended at the coordinator)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from tests.sim.cluster.history import ClientHistory, CommitAttempt, GroupOffsets, Ownership
from tests.sim.cluster.world import ObservedClient
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
REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
SESSION_MS = 6_000
REBALANCE_MS = 8_000
"""Longer than a session: a member that misses a rebalance is removed at its end, though it commits until it learns of
its removal."""
HEARTBEAT_SECONDS = 1.0


@contextmanager
def short_sessions() -> Iterator[None]:
    """Returns a client whose members time out within a run."""
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


class InstanceClient(ObservedClient):
    """The client of a static member (KIP-345): it sends its instance id with every request to the coordinator. None:
    the member is not static."""

    instance: str | None = None

    async def send(
        self,
        request: Message,
        response_type: type[A],
        *,
        node_id: int | None = None,
        timeout: float | None = None,
        version_max: int | None = None,
        connects_once: bool = False,
    ) -> A:
        if self.instance is not None:
            if isinstance(request, LeaveGroupRequest):
                for each in request.members:
                    each.group_instance_id = self.instance
            elif isinstance(request, (JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, OffsetCommitRequest)):
                request.group_instance_id = self.instance
        return await super().send(
            request, response_type, node_id=node_id, timeout=timeout, version_max=version_max,
            connects_once=connects_once,
        )  # fmt: skip


class TimedMember(ConsumerGroupMember):
    """Records when it requested its assignment: the reply may take long, and its session began before."""

    requested_ns = 0

    def __init__(self, client: KafkaClient, group: str, topics: Sequence[str], loop: SimLoop) -> None:
        super().__init__(client, group, topics)
        self._loop = loop

    async def forget_identity(self) -> None:
        """Forgets the member id and generation, like a new process after a crash."""
        await self._stop_heartbeats()
        self._id, self._generation = "", -1

    async def _sync(self, joined: JoinGroupResponse) -> tuple[Code, list[TopicPartition]]:
        self.requested_ns = self._loop.now_ns
        return await super()._sync(joined)


class GroupMember:
    """One member that joins, reads, commits, and joins again, until `working` is unset."""

    def __init__(
        self,
        name: str,
        group: str,
        client: InstanceClient,
        loop: SimLoop,
        history: ClientHistory,
        topics: Sequence[str],
    ) -> None:
        self.name = name
        self.returns = 0
        """Number of returns as the same static member."""
        self.working = True
        self.stays = False
        """True if the member stays for as long as the group lets it."""
        self._group = group
        self._client = client
        self._loop = loop
        self._history = history
        self._topics = topics
        self._rng = random.Random(f"{loop.seed}/{name}")
        self._return_rng = random.Random(f"{loop.seed}/{name}/comes-back")
        self._last_reply_ns = 0
        self._previous: tuple[str, int] | None = None
        """Member id and generation id of the previous generation."""
        self._current: tuple[TimedMember, KafkaConsumer] | None = None
        """Member and consumer of the current generation."""
        self._is_out_of_range = False

    def positions(self) -> dict[TopicPartition, int]:
        """Returns its read positions in the partitions that it owns; none while it owns none."""
        if self._current is None or self._current[0].must_rejoin.is_set():
            return {}
        return self._current[1].positions()

    async def work(self) -> None:
        member = TimedMember(self._client, self._group, self._topics, self._loop)
        while self.working:
            try:
                await self._run_generation(member)
                await self._rejoin_statically(member)
            except (TimeoutError, *REQUEST_ERRORS) as error:
                if isinstance(error, Refused) and error.code is Code.FENCED_INSTANCE_ID:
                    await member.forget_identity()  # an answer was lost that told it who it is now
                self._is_out_of_range = isinstance(error, Refused) and error.code is Code.OFFSET_OUT_OF_RANGE
                await asyncio.sleep(0.5)
        try:
            async with asyncio.timeout(5):
                await member.leave()
        except (TimeoutError, *REQUEST_ERRORS):
            await member._stop_heartbeats()
        await self._client.close()

    async def _rejoin_statically(self, member: TimedMember) -> None:
        if self._client.instance is not None and not self.stays and self._return_rng.random() < 0.5:
            known = member._generation
            await member.forget_identity()
            await asyncio.sleep(self._return_rng.choice((0.0, 0.5, 3.0)))
            self.returns += known >= 0

    async def _run_generation(self, member: TimedMember) -> None:
        """Runs one generation of the group."""
        began_ns = self._loop.now_ns
        async with asyncio.timeout(20):
            assigned = await member.join()
        since_ns, self._last_reply_ns = self._loop.now_ns, member.requested_ns
        name, generation = member._id, member._generation
        owner = self._client.instance or name
        if self._previous is not None and self._rng.random() < 0.5:
            await self._commit_late(*self._previous, assigned)
        self._previous = (name, generation)
        consumer = KafkaConsumer(self._client, max_wait_ms=500)
        try:
            offsets = await fetch_committed_offsets(self._client, self._group)
            self._history.group_offsets.append(GroupOffsets(self._group, dict(offsets), since_ns, self._loop.now_ns))
            if self._is_out_of_range:  # what was committed is lost: it reads on from the end, as clients are told to
                ends = await list_offsets_at(self._client, assigned, LATEST)
                offsets = {tp: min(offset, ends.get(tp, offset)) for tp, offset in offsets.items()}
            consumer.assign({tp: offsets.get(tp, 0) for tp in assigned})
            self._current = (member, consumer)
            while self.working and not member.must_rejoin.is_set() and (self._rng.random() > 0.02 or self.stays):
                await consumer.poll()
                if self._rng.random() < 0.3:
                    await self._commit(member, consumer.positions())
        finally:
            self._current = None
            await consumer.close()
            # It is not known here if its session lasted longer: its last contact was its commit or its join.
            until_ns = min(self._loop.now_ns, self._last_reply_ns + SESSION_MS * 1_000_000)
            if assigned:
                own = Ownership(self._group, owner, generation, tuple(assigned), since_ns, until_ns, began_ns)
                self._history.ownerships.append(own)

    async def _commit(self, member: ConsumerGroupMember, offsets: dict[TopicPartition, int]) -> None:
        asked_ns, generation = self._loop.now_ns, member._generation
        code: Code | None = None
        try:
            await member.commit(offsets)
            if not member.must_rejoin.is_set():
                code, self._last_reply_ns = Code.NONE, asked_ns
        except Refused as refused:
            code = refused.code
            raise
        finally:
            for tp, offset in offsets.items():
                self._history.commits.append(
                    CommitAttempt(self._group, tp, offset, asked_ns, self._loop.now_ns, code, generation)
                )

    async def _commit_late(self, name: str, generation: int, assigned: list[TopicPartition]) -> None:
        """Sends a commit of the previous generation, as if it had been delayed: the coordinator must refuse it."""
        offsets, asked_ns = dict.fromkeys(assigned, 0), self._loop.now_ns
        codes: dict[TopicPartition, Code] = {}
        try:
            got = await commit_offsets(self._client, self._group, offsets, generation_id=generation, member_id=name)
            codes = {tp: each.code if isinstance(each, Refused) else Code.NONE for tp, each in got.items()}
        finally:  # what has no answer may be in all the same
            self._history.commits += [
                CommitAttempt(self._group, tp, 0, asked_ns, self._loop.now_ns, codes.get(tp), generation)
                for tp in offsets
            ]

"""A member of a consumer group, by the classic protocol: joins, keeps its place with heartbeats, commits, leaves.

It offers the range assignor, which every client knows. As leader of a generation it assigns for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import Client, code_of, refused
from tiered_api.kafka.client.group_offsets import commit
from tiered_api.kafka.client.leader_routing import Answered, ask_coordinator
from tiered_api.kafka.protocol.codec import Malformed, decode, encode
from tiered_api.kafka.protocol.messages.consumer_protocol import (
    AssignedTopic,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from tiered_api.kafka.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tiered_api.kafka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tiered_api.kafka.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tiered_api.kafka.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

SESSION_MS = 45_000
REBALANCE_MS = 60_000
HEARTBEAT_SECONDS = 3.0
PROTOCOL = "range"
VERSION = 0
"""Version of subscription and assignment that is written: all that the range assignor needs, and all read it."""
LOST_PLACE = {Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.REBALANCE_IN_PROGRESS}


class Member:
    """One member. After `join` the partitions are its own until `must_rejoin`."""

    def __init__(self, client: Client, group: str, topics: Sequence[str]) -> None:
        self.must_rejoin = asyncio.Event()
        self._client = client
        self._group = group
        self._topics = sorted(topics)
        self._id = ""
        self._generation = -1
        self._heart: asyncio.Task[None] | None = None

    async def join(self) -> list[TopicPartition]:
        """Takes part in a generation and gives the partitions that are this member's in it."""
        await self._stop_heart()
        while True:
            joined = await self._join()
            code, mine = await self._sync(joined)
            if code is Code.NONE:
                break
            if code not in LOST_PLACE:
                raise refused(code.number, f"group {self._group}")
            self._forget(code)
        self.must_rejoin.clear()
        self._heart = asyncio.get_running_loop().create_task(self._beat(), name="heartbeats")
        return mine

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits. Nothing is committed when this member lost its place: another one reads on from the last commit."""
        if not offsets or self._generation < 0:
            return
        got: Answered[int] = await commit(
            self._client, self._group, offsets, generation=self._generation, member=self._id
        )
        for outcome in got.values():
            if isinstance(outcome, Refused):
                if outcome.code not in LOST_PLACE:
                    raise outcome
                self._forget(outcome.code)
                self.must_rejoin.set()

    async def leave(self) -> None:
        """Gives the place up, so that the others need not wait for the session to end."""
        await self._stop_heart()
        if self._id:
            identity = [MemberIdentity(member_id=self._id)]
            request = LeaveGroupRequest(group_id=self._group, member_id=self._id, members=identity)
            await ask_coordinator(self._client, self._group, request, LeaveGroupResponse, lambda got: got.error_code)
            self._id, self._generation = "", -1

    # -- a generation -------------------------------------------------------------------------------------------------

    async def _join(self) -> JoinGroupResponse:
        subscription = encode(ConsumerProtocolSubscription(topics=self._topics), VERSION)
        while True:
            request = JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self._id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=VERSION.to_bytes(2, "big") + subscription)],
            )
            got = await ask_coordinator(
                self._client,
                self._group,
                request,
                JoinGroupResponse,
                lambda got: got.error_code,
                REBALANCE_MS / 1000 + self._client.timeout,
            )
            code = code_of(got.error_code)
            if code is Code.NONE:
                self._id, self._generation = got.member_id, got.generation_id
                return got
            if code is Code.MEMBER_ID_REQUIRED:
                self._id = got.member_id
            elif code in LOST_PLACE:
                self._forget(code)
            else:
                raise refused(got.error_code, f"group {self._group}")

    async def _sync(self, joined: JoinGroupResponse) -> tuple[Code, list[TopicPartition]]:
        assignments = await self._assign(joined) if joined.leader == self._id else []
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._id,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=assignments,
        )
        timeout = REBALANCE_MS / 1000 + self._client.timeout
        got = await ask_coordinator(
            self._client, self._group, request, SyncGroupResponse, lambda got: got.error_code, timeout
        )
        return code_of(got.error_code), read_assignment(got.assignment)

    async def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """The leader's part: shares for all members."""
        wishes = {member.member_id: read_topics(member.metadata) for member in joined.members}
        names = sorted({topic for topics in wishes.values() for topic in topics})
        got = await self._client.metadata(names)
        counts = {topic.name or "": len(topic.partitions) for topic in got.topics if not topic.error_code}
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=write_assignment(partitions))
            for member, partitions in by_range(wishes, counts).items()
        ]

    def _forget(self, code: Code) -> None:
        """The coordinator does not know this member in this generation."""
        self._generation = -1
        if code is Code.UNKNOWN_MEMBER_ID:
            self._id = ""

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Ends when the place is lost; whoever reads then joins anew."""
        code = Code.NONE
        while code not in LOST_PLACE:
            await self._client.clock.sleep(HEARTBEAT_SECONDS)
            request = HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self._id)
            try:
                got = await ask_coordinator(
                    self._client, self._group, request, HeartbeatResponse, lambda got: got.error_code
                )
            except (Unavailable, Refused):
                continue  # the session may last until there is a coordinator again
            code = code_of(got.error_code)
        if code is not Code.REBALANCE_IN_PROGRESS:
            self._forget(code)
        self.must_rejoin.set()

    async def _stop_heart(self) -> None:
        heart, self._heart = self._heart, None
        if heart is not None:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)


def by_range(wishes: Mapping[str, Iterable[str]], counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """Each topic's partitions in order, cut into as many runs as members want it; the first ones may be one longer."""
    out: dict[str, list[TopicPartition]] = {member: [] for member in wishes}
    for topic, count in sorted(counts.items()):
        members = sorted(member for member, topics in wishes.items() if topic in topics)
        if not members:
            continue
        short, longer = divmod(count, len(members))
        edges = [number * short + min(number, longer) for number in range(len(members) + 1)]
        for member, (first, last) in zip(members, pairwise(edges), strict=True):
            out[member] += [TopicPartition(topic, number) for number in range(first, last)]
    return out


def read_assignment(data: bytes) -> list[TopicPartition]:
    """The partitions of an assignment in the form of Kafka's consumers; none when it is in another form."""
    try:
        version = min(int.from_bytes(data[:2], "big"), ConsumerProtocolAssignment.spec.versions.high)
        got = decode(ConsumerProtocolAssignment, version, data, 2)
    except Malformed:
        return []
    return [TopicPartition(topic.topic, number) for topic in got.assigned_partitions for number in topic.partitions]


def read_topics(data: bytes) -> list[str]:
    try:
        version = min(int.from_bytes(data[:2], "big"), ConsumerProtocolSubscription.spec.versions.high)
        return decode(ConsumerProtocolSubscription, version, data, 2).topics
    except Malformed:
        return []


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """The reverse of `read_assignment`."""
    topics: dict[str, AssignedTopic] = {}
    for name, number in partitions:
        topics.setdefault(name, AssignedTopic(topic=name)).partitions.append(number)
    body = encode(ConsumerProtocolAssignment(assigned_partitions=list(topics.values())), VERSION)
    return VERSION.to_bytes(2, "big") + body

"""A member of a consumer group, by the classic protocol: joins, sends heartbeats, commits, leaves.

The member offers the range assignor, which every client knows. The leader of a generation assigns for all members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient, code_from_number, to_refused
from tiered_api.kafka.client.group_offsets import commit_offsets
from tiered_api.kafka.client.leader_routing import PartitionOutcomes, send_to_coordinator
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
ASSIGNOR = "range"
CONSUMER_PROTOCOL_VERSION = 0
"""Version of written subscriptions and assignments: enough for the range assignor, and known to all clients."""
REJOIN_CODES = {Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.REBALANCE_IN_PROGRESS}


class ConsumerGroupMember:
    """One member. After `join` the partitions are its own until `must_rejoin`."""

    def __init__(self, client: KafkaClient, group: str, topics: Sequence[str]) -> None:
        self.must_rejoin = asyncio.Event()
        self._client = client
        self._group = group
        self._topics = sorted(topics)
        self._id = ""
        self._generation = -1
        self._heartbeat_task: asyncio.Task[None] | None = None

    async def join(self) -> list[TopicPartition]:
        """Joins a generation and returns the partitions that are assigned to this member in it."""
        await self._stop_heartbeats()
        while True:
            joined = await self._join()
            code, mine = await self._sync(joined)
            if code is Code.NONE:
                break
            if code not in REJOIN_CODES:
                raise to_refused(code.number, f"group {self._group}")
            self._reset_generation(code)
        self.must_rejoin.clear()
        self._heartbeat_task = asyncio.get_running_loop().create_task(self._send_heartbeats(), name="heartbeats")
        return mine

    async def commit(self, offsets: Mapping[TopicPartition, int], deadline: int | None = None) -> None:
        """Commits offsets. Commits nothing if this member lost its membership: the next owner continues at the last
        commit. The coordinator is looked up again until the deadline: by default for the client's retry time."""
        if not offsets or self._generation < 0:
            return
        got: PartitionOutcomes[int] = await commit_offsets(
            self._client, self._group, offsets, generation_id=self._generation, member_id=self._id, deadline=deadline
        )
        for outcome in got.values():
            if isinstance(outcome, Refused):
                if outcome.code not in REJOIN_CODES:
                    raise outcome
                self._reset_generation(outcome.code)
                self.must_rejoin.set()

    async def leave(self) -> None:
        """Leaves the group, so that the other members need not wait for the session to end."""
        await self._stop_heartbeats()
        if self._id:
            identity = [MemberIdentity(member_id=self._id)]
            request = LeaveGroupRequest(group_id=self._group, member_id=self._id, members=identity)
            await send_to_coordinator(
                self._client, self._group, request, LeaveGroupResponse, lambda got: got.error_code
            )
            self._id, self._generation = "", -1

    # -- a generation -------------------------------------------------------------------------------------------------

    async def _join(self) -> JoinGroupResponse:
        subscription = write_subscription(self._topics)
        while True:
            request = JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self._id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name=ASSIGNOR, metadata=subscription)],
            )
            got = await send_to_coordinator(
                self._client,
                self._group,
                request,
                JoinGroupResponse,
                lambda got: got.error_code,
                REBALANCE_MS / 1000 + self._client.timeout,
            )
            code = code_from_number(got.error_code)
            if code is Code.NONE:
                self._id, self._generation = got.member_id, got.generation_id
                return got
            if code is Code.MEMBER_ID_REQUIRED:
                self._id = got.member_id
            elif code in REJOIN_CODES:
                self._reset_generation(code)
            else:
                raise to_refused(got.error_code, f"group {self._group}")

    async def _sync(self, joined: JoinGroupResponse) -> tuple[Code, list[TopicPartition]]:
        assignments = await self._assign(joined) if joined.leader == self._id else []
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._id,
            protocol_type="consumer",
            protocol_name=ASSIGNOR,
            assignments=assignments,
        )
        timeout = REBALANCE_MS / 1000 + self._client.timeout
        got = await send_to_coordinator(
            self._client, self._group, request, SyncGroupResponse, lambda got: got.error_code, timeout
        )
        return code_from_number(got.error_code), read_assignment(got.assignment)

    async def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """Returns the shares of all members, if this member is the leader."""
        subscriptions = {member.member_id: read_subscription(member.metadata) for member in joined.members}
        names = sorted({topic for topics in subscriptions.values() for topic in topics})
        got = await self._client.fetch_metadata(names)
        counts = {topic.name or "": len(topic.partitions) for topic in got.topics if not topic.error_code}
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=write_assignment(partitions))
            for member, partitions in assign_range(subscriptions, counts).items()
        ]

    def _reset_generation(self, code: Code) -> None:
        """Resets the generation: the coordinator does not know this member in it."""
        self._generation = -1
        if code is Code.UNKNOWN_MEMBER_ID:
            self._id = ""

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    async def _send_heartbeats(self) -> None:
        """Sends heartbeats until the membership is lost; the reader then joins anew."""
        code = Code.NONE
        while code not in REJOIN_CODES:
            await self._client.clock.sleep(HEARTBEAT_SECONDS)
            request = HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self._id)
            try:
                got = await send_to_coordinator(
                    self._client, self._group, request, HeartbeatResponse, lambda got: got.error_code
                )
            except (Unavailable, Refused):
                continue  # the session may last until there is a coordinator again
            code = code_from_number(got.error_code)
        if code is not Code.REBALANCE_IN_PROGRESS:
            self._reset_generation(code)
        self.must_rejoin.set()

    async def _stop_heartbeats(self) -> None:
        task, self._heartbeat_task = self._heartbeat_task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def assign_range(
    subscriptions: Mapping[str, Iterable[str]], counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Assigns each topic's partitions in order, as one run for each subscribed member; the first runs may be longer by
    one."""
    out: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    for topic, count in sorted(counts.items()):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        if not members:
            continue
        short, longer = divmod(count, len(members))
        edges = [number * short + min(number, longer) for number in range(len(members) + 1)]
        for member, (first, last) in zip(members, pairwise(edges), strict=True):
            out[member] += [TopicPartition(topic, number) for number in range(first, last)]
    return out


def read_assignment(data: bytes) -> list[TopicPartition]:
    """Returns the partitions of an assignment in the form of Kafka's consumers; none for another form."""
    try:
        version = min(int.from_bytes(data[:2], "big"), ConsumerProtocolAssignment.spec.versions.high)
        got = decode(ConsumerProtocolAssignment, version, data, 2)
    except Malformed:
        return []
    return [TopicPartition(topic.topic, number) for topic in got.assigned_partitions for number in topic.partitions]


def read_subscription(data: bytes) -> list[str]:
    try:
        version = min(int.from_bytes(data[:2], "big"), ConsumerProtocolSubscription.spec.versions.high)
        return decode(ConsumerProtocolSubscription, version, data, 2).topics
    except Malformed:
        return []


def write_subscription(topics: Iterable[str]) -> bytes:
    """Reverses `read_subscription`."""
    body = encode(ConsumerProtocolSubscription(topics=list(topics)), CONSUMER_PROTOCOL_VERSION)
    return CONSUMER_PROTOCOL_VERSION.to_bytes(2, "big") + body


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Reverses `read_assignment`."""
    topics: dict[str, AssignedTopic] = {}
    for name, number in partitions:
        topics.setdefault(name, AssignedTopic(topic=name)).partitions.append(number)
    body = encode(ConsumerProtocolAssignment(assigned_partitions=list(topics.values())), CONSUMER_PROTOCOL_VERSION)
    return CONSUMER_PROTOCOL_VERSION.to_bytes(2, "big") + body

"""The membership of a REST consumer in its group: a static member that joins, sends heartbeats and leaves.

The member runs on the broker that coordinates the group, and calls the coordinator directly. The consumer's settings
are in the member's metadata, which the coordinator keeps. So the instance can be restored from them after a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiered.errors import Code, Refused
from tiered.groups import requests
from tiered.groups.requests import HeartbeatReply, JoinGroupReply, LeavingMember, SyncGroupReply
from tiered.ids import TopicPartition
from tiered.ports import Clock
from tiered_api.http.consumers.subscriptions import SubscribedTopics
from tiered_api.kafka.client.error_sentences import explain_error
from tiered_api.kafka.client.group_member import assign_range, read_assignment, read_subscription, write_assignment
from tiered_api.kafka.protocol.codec import Malformed, decode, encode
from tiered_api.kafka.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

INSTANCE_ID_PREFIX = "rest-"
"""Prefix of instance names: static members share their names with all other clients of the group."""
PROTOCOL, VERSION = "range", 0
REBALANCE_MS = 60_000
HEARTBEAT_SECONDS = 1.0
RETRY_SECONDS = 0.5
JOIN_SECONDS = 90.0

SendRequest = Callable[[str, requests.Request, float], Awaitable[Any]]


def encode_metadata(topics: Sequence[str], user_data: bytes) -> bytes:
    """Encodes a member's metadata, which every client of the group can read. Only this server reads `user_data`."""
    return VERSION.to_bytes(2, "big") + encode(
        ConsumerProtocolSubscription(topics=list(topics), user_data=user_data), VERSION
    )


def user_data_of(metadata: bytes) -> bytes:
    """Returns the user data in a member's metadata; empty if another client wrote it."""
    try:
        version = min(int.from_bytes(metadata[:2], "big"), ConsumerProtocolSubscription.spec.versions.high)
        return decode(ConsumerProtocolSubscription, version, metadata, 2).user_data or b""
    except Malformed:
        return b""


@dataclass(frozen=True)
class MemberConfig:
    """The group of a member, the name of its instance, the user data in its metadata, its session timeout, and the
    holder that a new group counts for."""

    group: str
    name: str
    user_data: bytes
    session_ms: int
    holder: str


class RestMember:
    """A member of a group that joins and sends heartbeats by itself. `on_revoked` is awaited before the member gives up
    its partitions. A `member_id` that is not empty continues a membership. `known_metadata` is the metadata with which
    the group may have the member already."""

    def __init__(
        self,
        send_request: SendRequest,
        clock: Clock,
        config: MemberConfig,
        topics: SubscribedTopics,
        on_revoked: Callable[[], Awaitable[None]],
        member_id: str = "",
        known_metadata: bytes | None = None,
    ) -> None:
        self.subscription = topics.subscription
        self.assigned: list[TopicPartition] | None = None
        """None until the first generation."""
        self.failure: Refused | None = None
        """The reason why it cannot be a member."""
        self.join_done = asyncio.Event()
        self.member_id = member_id
        self.known_metadata = known_metadata
        """The metadata with which the group may have the member; None if the group cannot have it."""
        self.generation = -1
        self.instance_id = INSTANCE_ID_PREFIX + config.name
        self._send_request = send_request
        self._clock = clock
        self._config = config
        self._group = config.group
        self._topics = topics
        self._on_revoked = on_revoked
        self._known_counts: Mapping[str, int] = {}
        self._known_rights: object = None
        self._subscribed: tuple[str, ...] = ()
        self._group_topics: frozenset[str] = frozenset()
        """The topics that all members subscribe to, if this member leads the group."""
        self._task = asyncio.create_task(self._run(), name=f"rest consumer {config.name}")

    @property
    def is_fenced(self) -> bool:
        """True if the group has another member of the same instance id."""
        return self.failure is not None and self.failure.code is Code.FENCED_INSTANCE_ID

    async def leave(self) -> None:
        """Leaves the group, so that other members get its partitions."""
        await self.stop()
        # During a join the coordinator already has the member, but the member gets its id only with the reply.
        if self.known_metadata is not None and not self.is_fenced:
            request = requests.LeaveGroup(
                self._group, (LeavingMember(self.member_id, self.instance_id, "instance deleted"),)
            )
            with contextlib.suppress(Refused):
                await self._send_request(self._group, request, JOIN_SECONDS)

    async def stop(self) -> None:
        """Stops without leaving the group: the member stays until its session ends."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # -- join and leave -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                code = await self._join_group()
                while code is Code.NONE:
                    self.join_done.set()
                    await self._clock.sleep(HEARTBEAT_SECONDS)
                    code = await self._send_heartbeat()
            except Refused as refused:
                code = refused.code
            if not self._can_rejoin(code):
                self.failure = Refused(code, f"the group does not accept this consumer: {explain_error(code.number)}")
                self.join_done.set()
                return
            self.join_done.clear()
            held, self.assigned = self.assigned, None
            if held is not None:
                await self._on_revoked()
            if code not in (Code.REBALANCE_IN_PROGRESS, Code.MEMBER_ID_REQUIRED):
                await self._clock.sleep(RETRY_SECONDS)

    def _can_rejoin(self, code: Code) -> bool:
        if code is Code.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        again = (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.REBALANCE_IN_PROGRESS, Code.MEMBER_ID_REQUIRED)
        return code in again or code.retriable

    async def _join_group(self) -> Code:
        """Joins one generation and gets its assignment."""
        seen, self._known_rights = self._topics.partition_counts(), self._topics.rights
        self._subscribed, self._known_counts = await self._topics.matching_names(seen), seen
        metadata = encode_metadata(self._subscribed, self._config.user_data)
        # A static member that comes back under a new id gets its old assignment, whatever topics it names (KIP-345).
        # It names those of before, and the others with its new id: that begins a rebalance.
        comes_back = not self.member_id and self.known_metadata not in (None, metadata)
        if comes_back:
            metadata = self.known_metadata or b""
        self.known_metadata = metadata
        join = requests.JoinGroup(
            self._group, self.member_id, self.instance_id, self._config.name, "/rest", self._config.session_ms,
            REBALANCE_MS, "consumer", ((PROTOCOL, metadata),), holder=self._config.holder,
        )  # fmt: skip
        joined: JoinGroupReply = await self._send_request(self._group, join, JOIN_SECONDS)
        self.member_id = joined.member_id or self.member_id
        if joined.code is not Code.NONE:
            return joined.code
        if comes_back:
            return Code.REBALANCE_IN_PROGRESS
        self.generation = joined.generation
        leads = joined.leader == joined.member_id
        subscriptions = {member.member_id: read_subscription(member.metadata) for member in joined.members if leads}
        self._group_topics = frozenset(topic for topics in subscriptions.values() for topic in topics)
        sync = requests.SyncGroup(
            self._group, joined.generation, self.member_id, self.instance_id, joined.protocol_type, joined.protocol,
            self._assign_partitions(subscriptions) if leads and not joined.skip_assignment else (),
        )  # fmt: skip
        synced: SyncGroupReply = await self._send_request(self._group, sync, JOIN_SECONDS)
        if synced.code is Code.NONE:
            self.assigned = read_assignment(synced.assignment)
        return synced.code

    def _assign_partitions(self, subscriptions: Mapping[str, list[str]]) -> tuple[tuple[str, bytes], ...]:
        shares = assign_range(
            subscriptions, {topic: count for topic, count in self._known_counts.items() if topic in self._group_topics}
        )
        return tuple((member, write_assignment(partitions)) for member, partitions in shares.items())

    async def _send_heartbeat(self) -> Code:
        if await self._is_assignment_stale():
            return Code.REBALANCE_IN_PROGRESS
        beat = requests.Heartbeat(self._group, self.generation, self.member_id, self.instance_id)
        reply: HeartbeatReply = await self._send_request(self._group, beat, JOIN_SECONDS)
        return reply.code

    async def subscribed_topics(self) -> tuple[str, ...]:
        """Returns the topics of the subscription that exist."""
        return await self._topics.matching_names(self._topics.partition_counts())

    async def _is_assignment_stale(self) -> bool:
        """Returns True if topics were created, deleted or grew, or rights changed, so that the subscription or the
        assignment would change."""
        seen, now, rights = self._known_counts, self._topics.partition_counts(), self._topics.rights
        if now is seen and rights is self._known_rights:
            return False
        if await self._topics.matching_names(now) != self._subscribed:
            return True
        if any(now.get(topic) != seen.get(topic) for topic in self._group_topics):
            return True
        self._known_counts, self._known_rights = now, rights
        return False

"""A member of a consumer group, by the protocol of KIP-848: the coordinator assigns.

The member owns what it was told until its reader has stopped and committed: only then, with the next `join`, it says
that it has given up what another assignment takes from it.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Mapping, Sequence

from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.client.group_offsets import commit_offsets
from tiered_api.kafka.client.leader_routing import send_to_coordinator
from tiered_api.kafka.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerTopicPartitions,
)

REBALANCE_MS = 60_000
JOIN_EPOCH, LEAVE_EPOCH = 0, -1
REJOIN_CODES = frozenset({Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH})
"""The group does not have the member any more, and may have given its partitions to others."""
LOST_COMMIT_CODES = REJOIN_CODES | {Code.STALE_MEMBER_EPOCH}

Assignment = dict[str, tuple[int, ...]]
"""Partitions by the ids of their topics."""


class ServerAssignedMember:
    """One member. After `join` the partitions are its own until `must_rejoin`."""

    def __init__(self, client: KafkaClient, group: str, topics: Sequence[str]) -> None:
        self.must_rejoin = asyncio.Event()
        self._client = client
        self._group = group
        self._topics = sorted(topics)
        self._id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._epoch = JOIN_EPOCH
        self._owned: Assignment = {}
        self._target: Assignment | None = None
        """The newest assignment that the member does not own yet."""
        self._heartbeat_seconds = 1.0
        self._heartbeat_task: asyncio.Task[None] | None = None

    async def join(self) -> list[TopicPartition]:
        """Joins the group, or takes over the newest assignment. Returns the partitions of this member, which may be
        none until others have given theirs up."""
        await self._stop_heartbeats()
        while True:
            if self._epoch == JOIN_EPOCH:
                self._owned, self._target = {}, None
                refused = await self._send_heartbeat(owned={}, is_join=True)
            else:
                self._owned, self._target = self._owned if self._target is None else self._target, None
                refused = await self._send_heartbeat(owned=self._owned)
            if refused is not None:
                if refused.code in REJOIN_CODES:
                    continue
                raise refused
            if self._target is None:
                break
        mine = await self._name_partitions()
        self.must_rejoin.clear()
        self._heartbeat_task = asyncio.get_running_loop().create_task(self._send_heartbeats(), name="heartbeats")
        return mine

    async def commit(self, offsets: Mapping[TopicPartition, int], deadline: int | None = None) -> None:
        """Commits offsets. Commits nothing if this member lost its membership: the next owner continues at the last
        commit. The coordinator is looked up again until the deadline: by default for the client's retry time."""
        if not offsets or self._epoch <= JOIN_EPOCH:
            return
        codes = await self._commit(offsets, deadline)
        if codes == {Code.STALE_MEMBER_EPOCH}:  # the reply with the next epoch was lost
            await self._send_heartbeat()
            codes = await self._commit(offsets, deadline)
        if codes & LOST_COMMIT_CODES:
            if codes & REJOIN_CODES:
                self._epoch = JOIN_EPOCH
            self.must_rejoin.set()

    async def _commit(self, offsets: Mapping[TopicPartition, int], deadline: int | None) -> set[Code]:
        """Returns the codes of lost memberships. Raises any other refusal."""
        got = await commit_offsets(
            self._client, self._group, offsets, generation_id=self._epoch, member_id=self._id, deadline=deadline
        )
        refusals = [each for each in got.values() if isinstance(each, Refused)]
        for refused in refusals:
            if refused.code not in LOST_COMMIT_CODES:
                raise refused
        return {refused.code for refused in refusals}

    async def leave(self) -> None:
        """Leaves the group, so that the other members need not wait for the session to end."""
        await self._stop_heartbeats()
        if self._epoch > JOIN_EPOCH:
            self._epoch = LEAVE_EPOCH
            await self._send_heartbeat()
        self._epoch = JOIN_EPOCH

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    async def _send_heartbeat(self, owned: Assignment | None = None, *, is_join: bool = False) -> Refused | None:
        """Sends one heartbeat, and notes the epoch and the assignment of the reply. Returns the refusal if there is
        one."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self._id,
            member_epoch=self._epoch,
            rebalance_timeout_ms=REBALANCE_MS if is_join else -1,
            subscribed_topic_names=self._topics if is_join else None,
            topic_partitions=None
            if owned is None
            else [ConsumerTopicPartitions(topic_id, list(each)) for topic_id, each in owned.items()],
        )
        got = await send_to_coordinator(
            self._client, self._group, request, ConsumerGroupHeartbeatResponse, lambda got: got.error_code
        )
        if got.error_code:
            refused = to_refused(got.error_code, f"group {self._group}", got.error_message)
            if refused.code in REJOIN_CODES:
                self._epoch = JOIN_EPOCH
            return refused
        if self._epoch == LEAVE_EPOCH:
            return None
        self._epoch, self._heartbeat_seconds = got.member_epoch, max(got.heartbeat_interval_ms, 100) / 1000
        if got.assignment is not None:
            rows = sorted(got.assignment.topic_partitions, key=lambda row: row.topic_id)
            target = {row.topic_id: tuple(sorted(row.partitions)) for row in rows if row.partitions}
            self._target = target if target != self._owned else None
        return None

    async def _send_heartbeats(self) -> None:
        """Sends heartbeats until there is another assignment, or the membership is lost; the reader then joins."""
        refused: Refused | None = None
        while (refused is None or refused.code not in REJOIN_CODES) and self._target is None:
            await self._client.clock.sleep(self._heartbeat_seconds)
            try:
                refused = await self._send_heartbeat()
            except (Unavailable, Refused):
                continue  # the session may last until there is a coordinator again
        self.must_rejoin.set()

    async def _stop_heartbeats(self) -> None:
        task, self._heartbeat_task = self._heartbeat_task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _name_partitions(self) -> list[TopicPartition]:
        """Returns the owned partitions by the names of their topics. A topic that was deleted has none."""
        if not self._owned:
            return []
        got = await self._client.fetch_metadata(self._topics)
        names = {topic.topic_id: topic.name or "" for topic in got.topics if not topic.error_code}
        return [
            TopicPartition(names[topic_id], each)
            for topic_id, partitions in self._owned.items()
            if topic_id in names
            for each in partitions
        ]

"""Members of a consumer group (KIP-848) over the wire: they own the partitions of their last reply, read and commit
them, and give partitions up before they say so. They record the time spans in which they own partitions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from tests.sim.cluster.history import ClientHistory, CommitAttempt, GroupOffsets, Ownership
from tests.sim.cluster.world import ObservedClient
from tests.sim.harness.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.client.consumer import KafkaConsumer
from tiered_api.kafka.client.group_offsets import commit_offsets, fetch_committed_offsets
from tiered_api.kafka.client.leader_routing import LATEST, list_offsets_at, send_to_coordinator
from tiered_api.kafka.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerTopicPartitions,
)

CONSUMERS = "consumers"
"""The one consumer group of a run."""
REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
SESSION_MS, HEARTBEAT_MS = 6_000, 1_000
REBALANCE_MS = 60_000
"""Longer than any run of faults: only its session ends a member."""
LATE_SHARE, LEAVE_SHARE = 0.5, 0.01
"""Share of steps to another epoch after which a commit of the epoch before comes late, and share of heartbeats after
which a member leaves and joins again."""
STATIC_SHARE = 0.5
JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2
REJOIN = (Code.FENCED_MEMBER_EPOCH, Code.UNKNOWN_MEMBER_ID, Code.GROUP_ID_NOT_FOUND, Code.FENCED_INSTANCE_ID)
Owned = frozenset[tuple[str, int]]
"""Partitions by topic id."""


class Consumer:
    """One member that joins, reads, commits, leaves, and joins again, until `working` is unset."""

    def __init__(
        self,
        name: str,
        client: ObservedClient,
        loop: SimLoop,
        history: ClientHistory,
        topics: Sequence[str],
        find_name: Callable[[str], str | None],
    ) -> None:
        self.name = name
        self.working = True
        self.stays = False
        """True if the member stays for as long as the group lets it."""
        self.steps = 0
        """Number of its steps to another epoch."""
        self._client = client
        self._loop = loop
        self._history = history
        self._topics = list(topics)
        self._find_name = find_name
        self._rng = random.Random(f"{loop.seed}/{name}")
        self._is_static = self._rng.random() < STATIC_SHARE
        self._runs = 0
        self._consumer = KafkaConsumer(client, max_wait_ms=500)
        self._has_lost = False
        """True if its consumer still reads partitions that it lost."""
        self._begin_run()

    def _begin_run(self) -> None:
        """Takes a new member id, as a new process does."""
        self._runs += 1
        self._member_id = f"{self.name}-{self._runs}"
        self._epoch = JOIN
        self._owned: Owned = frozenset()
        self._wanted: Owned = frozenset()
        self._says_all = True
        self._span: tuple[int, Owned, int] = (JOIN, frozenset(), 0)
        """Epoch, partitions and begin of the present span of ownership."""
        self._last_reply_ns = 0

    def positions(self) -> dict[TopicPartition, int]:
        """Returns its read positions in the partitions that it owns."""
        return self._consumer.positions() if self._owned == self._wanted and not self._has_lost else {}

    async def work(self) -> None:
        beats = asyncio.ensure_future(self._beat_for_ever())
        try:
            while self.working:
                try:
                    await self._read()
                except (TimeoutError, *REQUEST_ERRORS) as error:
                    if isinstance(error, Refused) and error.code is Code.OFFSET_OUT_OF_RANGE:
                        await self._read_on_from_the_end()
                    await asyncio.sleep(0.5)
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
            self._end_span(self._loop.now_ns)
            await self._consumer.close()
        if self._epoch > JOIN:
            try:
                async with asyncio.timeout(5):
                    await self._send(LEAVE)
            except (TimeoutError, *REQUEST_ERRORS):
                self._history.count_code(Code.REQUEST_TIMED_OUT)
        await self._client.close()

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    async def _beat_for_ever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(SESSION_MS / 1000):
                    await self._beat()
            except (TimeoutError, *REQUEST_ERRORS):
                self._says_all = True
            await asyncio.sleep(HEARTBEAT_MS / 1000 * self._rng.uniform(0.5, 1.0))

    async def _beat(self) -> None:
        """Sends a heartbeat and takes over the reply. A member says that it gave up partitions only when it has."""
        asked_ns, run, epoch = self._loop.now_ns, self._runs, self._epoch
        reply = await self._send(epoch)
        if run != self._runs:
            return  # the reply to an earlier run
        code = code_from_number(reply.error_code)
        if code is Code.NONE:
            self._last_reply_ns = asked_ns
            self._says_all = False
            if reply.assignment is not None:
                rows = reply.assignment.topic_partitions
                self._wanted = frozenset((row.topic_id, number) for row in rows for number in row.partitions)
            if reply.member_epoch != epoch:
                self.steps += 1
                self._epoch = reply.member_epoch
                self._begin_span()
                if epoch > JOIN and self._rng.random() < LATE_SHARE:
                    await self._commit_late(epoch)
            if not self.stays and self._rng.random() < LEAVE_SHARE:
                await self._leave()
        elif code in REJOIN:
            self._lose_all()
        else:
            self._says_all = True

    async def _send(self, epoch: int) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(
            CONSUMERS, self._member_id, epoch, instance_id=self.name if self._is_static else None
        )
        if epoch == JOIN or (self._says_all and epoch > JOIN):
            request.rebalance_timeout_ms, request.subscribed_topic_names = REBALANCE_MS, self._topics
        if epoch >= JOIN:
            rows: dict[str, list[int]] = {}
            # Those that it is about to take count too: it may own them before this request arrives.
            for topic_id, number in sorted(self._owned | self._wanted) if epoch > JOIN else ():
                rows.setdefault(topic_id, []).append(number)
            request.topic_partitions = [ConsumerTopicPartitions(*each) for each in rows.items()]
        return await send_to_coordinator(
            self._client, CONSUMERS, request, ConsumerGroupHeartbeatResponse, lambda got: got.error_code
        )

    async def _leave(self) -> None:
        """Gives up everything, then leaves. Half of the static members say that they will be back."""
        self._lose_all()
        await self._send(LEAVE_FOR_A_WHILE if self._is_static and self._rng.random() < 0.5 else LEAVE)
        self._begin_run()

    def _lose_all(self) -> None:
        self._end_span(min(self._loop.now_ns, self._last_reply_ns + SESSION_MS * 1_000_000))
        self._owned = self._wanted = frozenset()
        self._has_lost = True
        self._epoch, self._says_all = JOIN, True

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        if self._has_lost:
            self._consumer.assign({})
            self._has_lost = False
        if self._wanted != self._owned:
            await self._take_assignment(self._wanted)
        await self._consumer.poll()
        if self._owned and self._rng.random() < 0.3:
            await self._commit(self._consumer.positions(), self._epoch)

    async def _take_assignment(self, wanted: Owned) -> None:
        """Stops to read what is not assigned any more. Reads what is new from the committed offset on."""
        for tp in self._name_partitions(self._owned - wanted):
            self._consumer.unassign(tp)
        self._owned &= wanted
        self._begin_span()
        run, asked_ns = self._runs, self._loop.now_ns
        committed = await fetch_committed_offsets(self._client, CONSUMERS)
        self._history.group_offsets.append(GroupOffsets(CONSUMERS, dict(committed), asked_ns, self._loop.now_ns))
        if run != self._runs or wanted != self._wanted or self._has_lost:
            return  # it was fenced meanwhile, or got another assignment
        kept, named = self._consumer.positions(), self._name_partitions(wanted)
        self._consumer.assign({tp: kept.get(tp, committed.get(tp, 0)) for tp in named})
        self._owned = wanted
        self._begin_span()

    async def _read_on_from_the_end(self) -> None:
        """Skips to the ends: what was committed is lost."""
        positions = self._consumer.positions()
        try:
            ends = await list_offsets_at(self._client, sorted(positions), LATEST)
        except REQUEST_ERRORS:
            return
        self._consumer.assign({tp: min(offset, ends.get(tp, offset)) for tp, offset in positions.items()})

    def _name_partitions(self, owned: Owned) -> list[TopicPartition]:
        found = [(self._find_name(topic_id), number) for topic_id, number in sorted(owned)]
        return [TopicPartition(name, number) for name, number in found if name is not None]

    async def _commit(self, offsets: dict[TopicPartition, int], epoch: int) -> dict[TopicPartition, Code]:
        asked_ns, codes = self._loop.now_ns, dict[TopicPartition, Code]()
        try:
            got = await commit_offsets(self._client, CONSUMERS, offsets, generation_id=epoch, member_id=self._member_id)
            codes = {tp: each.code if isinstance(each, Refused) else Code.NONE for tp, each in got.items()}
        finally:  # what has no answer may be in all the same
            self._history.commits += [
                CommitAttempt(CONSUMERS, tp, offset, asked_ns, self._loop.now_ns, codes.get(tp))
                for tp, offset in offsets.items()
            ]
        return codes

    async def _commit_late(self, epoch: int) -> None:
        """Sends a commit of an earlier epoch, as if it had been delayed: the coordinator must refuse it."""
        offsets, asked_ns = dict.fromkeys(self._consumer.positions(), 0), self._loop.now_ns
        for tp, code in (await self._commit(offsets, epoch)).items():
            self._history.late_commits.append(CommitAttempt(CONSUMERS, tp, 0, asked_ns, self._loop.now_ns, code, epoch))

    # -- ownership -----------------------------------------------------------------------------------------------------

    def _begin_span(self) -> None:
        self._end_span(self._loop.now_ns)
        self._span = (self._epoch, self._owned, self._loop.now_ns)

    def _end_span(self, until_ns: int) -> None:
        epoch, owned, since_ns = self._span
        partitions = tuple(self._name_partitions(owned))
        until_ns = min(until_ns, self._last_reply_ns + SESSION_MS * 1_000_000)
        if partitions and until_ns > since_ns:
            owner = self.name if self._is_static else self._member_id
            self._history.consumer_ownerships.append(Ownership(CONSUMERS, owner, epoch, partitions, since_ns, until_ns))
        self._span = (epoch, frozenset(), until_ns)

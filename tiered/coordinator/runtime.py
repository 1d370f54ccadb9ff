"""The group coordinator of one partition of `__consumer_offsets`: a pure shard, its log, and the callers that wait.

What is decided in one turn of the loop goes to the log as one batch, and nobody hears of it before that is committed.
Decisions run ahead of the log, so an append that fails ends the shard: it is loaded anew from what the log holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any

from tiered.coordinator.snapshot import encode_batches
from tiered.errors import Broken, Code, Refused
from tiered.groups.log_state import LogState
from tiered.groups.records import CoordinatorRecord, group_key, offset_record
from tiered.groups.requests import CommitOffsets, JoinGroup, JoinGroupReply, Now, Reply, Request, TopicsDeleted
from tiered.groups.shard import CoordinatorResult, GroupShard
from tiered.ports import Clock
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica

log = logging.getLogger(__name__)

COMMIT_MS = 5_000
"""How long the in-sync replicas may take to have what was decided (Kafka's offsets.commit.timeout.ms)."""
SLICE_RECORDS = 500
PENDING_REQUESTS_MAX = 20_000
"""Callers that wait for one shard at the same time."""

Spawn = Callable[[Coroutine[Any, Any, None]], None]
"""Starts a task that the broker owns."""


class CoordinatorCounters:
    """What a broker's coordinators did, as plain numbers: the metrics read them when somebody looks."""

    def __init__(self) -> None:
        self.commits = 0
        self.rebalances = 0


class CoordinatorRuntime:
    """A loaded shard over its replica. `changed` hears when a deadline may have moved, `failed` when the shard is of no
    use any more; every caller has been answered by then."""

    def __init__(
        self,
        replica: LeaderReplica,
        shard: GroupShard,
        clock: Clock,
        counters: CoordinatorCounters,
        *,
        spawn: Spawn,
        on_deadline_changed: Callable[[int], None],
        on_failed: Callable[[Refused], None],
    ) -> None:
        self.replica = replica
        self.shard = shard
        self.unsaved_since_ms = -1
        """When (monotonic) the first change came that no image holds; -1 for none."""
        self._clock = clock
        self._counters = counters
        self._spawn = spawn
        self._on_deadline_changed = on_deadline_changed
        self._on_failed = on_failed
        self._token = 0
        self._pending_replies: dict[int, asyncio.Future[Reply]] = {}
        self._joining_groups: dict[int, str] = {}
        """The group of each of them that joins one."""
        self._pending_records: list[CoordinatorRecord] = []
        self._replies: list[tuple[int, Reply]] = []
        self._append_scheduled = False
        self._uncommitted: deque[tuple[int, list[tuple[int, Reply]]]] = deque()
        self._end_reason: Refused | None = None

    def now(self) -> Now:
        """Both clocks."""
        return Now(self._clock.mono_ns() // 1_000_000, self._clock.wall_ms())

    # -- asking -------------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> tuple[int, Reply | asyncio.Future[Reply]]:
        """The caller's token, and the reply or what it will come in. `Refused` when this broker is not the coordinator
        or too many wait."""
        if self._end_reason is not None:
            raise self._end_reason
        if len(self._pending_replies) >= PENDING_REQUESTS_MAX:
            raise Refused(
                Code.COORDINATOR_NOT_AVAILABLE, f"{PENDING_REQUESTS_MAX} requests wait for {self.replica.at} already"
            )
        self._token = token = self._token + 1
        if type(request) is CommitOffsets:
            self._counters.commits += len(request.offsets)
        result = self.shard.decide(request, self.now(), token)
        due = self.shard.next_due_ms
        if due is not None:
            self._on_deadline_changed(due)
        if not result.records and len(result.replies) == 1 and result.replies[0][0] == token and self._is_idle():
            return token, result.replies[0][1]
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending_replies[token] = future
        if type(request) is JoinGroup:
            self._joining_groups[token] = request.group
        self.enqueue(result)
        return token, future

    def _is_idle(self) -> bool:
        return not self._pending_records and not self._uncommitted

    def cancel_request(self, token: int) -> None:
        """The caller does not wait any more."""
        self._joining_groups.pop(token, None)
        if self._pending_replies.pop(token, None) is not None and self._end_reason is None:
            self.shard.cancel_request(token)

    def count_states(self) -> Counter[str]:
        """How many groups are in which state."""
        return Counter(group.state.value for group in self.shard.state.groups.values())

    def run_due(self) -> int | None:
        """Does all whose time has come; when to come again, on the monotonic clock in ms."""
        if self._end_reason is not None:
            return None
        now = self.now()
        when = self.shard.next_due_ms
        if when is not None and when <= now.mono_ms:
            self.enqueue(self.shard.due(now))
            when = self.shard.next_due_ms
        return when

    def on_topics_deleted(self, names: tuple[str, ...]) -> None:
        """Offsets of topics that are not any more go."""
        if self._end_reason is None:
            self.enqueue(self.shard.decide(TopicsDeleted(names), self.now(), 0))

    def append_corrections(self, records: list[CoordinatorRecord]) -> None:
        """Changes that nobody asked for: what the cluster's state says about what was loaded."""
        self.shard.apply(records)
        self.enqueue(CoordinatorResult(tuple(records)))

    # -- the log ------------------------------------------------------------------------------------------------------

    def enqueue(self, result: CoordinatorResult) -> None:
        """Changes join this turn's batch, replies wait for it and for all before it."""
        if result.records:
            self._pending_records += result.records
            self._replies += result.replies
            if not self._append_scheduled:
                self._append_scheduled = True
                asyncio.get_running_loop().call_soon(self._append_pending)
        elif self._pending_records:
            self._replies += result.replies
        elif self._uncommitted:
            self._uncommitted[-1][1].extend(result.replies)
        else:
            self._deliver_replies(result.replies)

    def _append_pending(self) -> None:
        self._append_scheduled = False
        if self._pending_records and self._end_reason is None:
            try:
                self._append()
            except Broken as error:  # of a call-back nobody hears, of a task the broker does
                self._spawn(_raise(error))

    def _append(self) -> None:
        records, replies = self._pending_records, self._replies
        self._pending_records, self._replies = [], []
        end = 0
        try:
            for each in encode_batches(records, self._clock.wall_ms()):  # one by one: together they may be too large
                end = self.replica.append_now(bytearray(each), ACKS_ALL).last_offset + 1
        except Refused as refused:
            self.fail(refused)
            return
        if self.unsaved_since_ms < 0:
            self.unsaved_since_ms = self._clock.mono_ns() // 1_000_000
        if not self._uncommitted and self.replica.is_committed(end):
            self._deliver_replies(replies)
            return
        self._uncommitted.append((end, replies))
        if len(self._uncommitted) == 1:
            self._spawn(self._wait_committed())

    async def _wait_committed(self) -> None:
        """Gives replies out in the order of the log, as it becomes committed."""
        while self._uncommitted and self._end_reason is None:
            try:
                await self.replica.wait_committed(self._uncommitted[0][0], COMMIT_MS)
            except Refused as refused:
                self.fail(refused)
                return
            while self._uncommitted and self.replica.is_committed(self._uncommitted[0][0]):
                self._deliver_replies(self._uncommitted.popleft()[1])

    def _deliver_replies(self, replies: list[tuple[int, Reply]] | tuple[tuple[int, Reply], ...]) -> None:
        for token, reply in replies:
            future, group = self._pending_replies.pop(token, None), self._joining_groups.pop(token, "")
            if type(reply) is JoinGroupReply and reply.members:
                self._counters.rebalances += 1
                log.info(
                    "group begins a generation group=%s generation=%d members=%d assignor=%s",
                    group, reply.generation, len(reply.members), reply.protocol,
                )  # fmt: skip
            if future is not None and not future.done():
                future.set_result(reply)

    # -- images -------------------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """The offset below which the log says all that was decided. `Refused` when the log does not take it."""
        if self._pending_records and self._end_reason is None:
            self._append()
        if self._end_reason is not None:
            raise self._end_reason
        return self.replica.log.end_offset

    async def snapshot(self) -> tuple[int, list[CoordinatorRecord]]:
        """An offset, and the committed state there. What is decided while it is taken, group by group, may be in it:
        the log from that offset on says it again. `Refused` when it does not become committed."""
        self.unsaved_since_ms = -1
        offset, found, next_pause = self.flush(), list[CoordinatorRecord](), SLICE_RECORDS
        log_state = self.shard.log_state
        for name in list({**log_state.groups, **log_state.offsets}):
            found += snapshot_group(log_state, name)
            if len(found) > next_pause:
                next_pause = len(found) + SLICE_RECORDS
                await self._clock.sleep(0)
        await self.replica.wait_committed(self.flush(), COMMIT_MS)
        return offset, found

    # -- the end ------------------------------------------------------------------------------------------------------

    def fail(self, reason: Refused) -> None:
        """The log did not take what was decided: all who wait are told, and the shard is given up."""
        if self._end_reason is None:
            self.end(_to_coordinator_error(reason))
            self._on_failed(reason)

    def end(self, reason: Refused) -> None:
        """Nobody is served here any more."""
        if self._end_reason is not None:
            return
        self._end_reason = reason
        pending, self._pending_replies = self._pending_replies, {}
        self._joining_groups.clear()
        for answer in pending.values():
            if not answer.done():
                answer.set_exception(reason)


def snapshot_group(log_state: LogState, group: str) -> list[CoordinatorRecord]:
    """The fewest records that give one group's state."""
    found = [
        offset_record(group, topic, partition, kept) for topic, partition, kept in log_state.iterate_offsets(group)
    ]
    value = log_state.groups.get(group)
    if value is not None:
        found.append(CoordinatorRecord(group_key(group), value))
    return found


def _to_coordinator_error(why: Refused) -> Refused:
    """What a refused append means to a member of a group, as Kafka translates it."""
    match why.code:
        case Code.NOT_LEADER_OR_FOLLOWER | Code.KAFKA_STORAGE_ERROR | Code.UNKNOWN_TOPIC_OR_PARTITION:
            code = Code.NOT_COORDINATOR
        case Code.BROKER_NOT_AVAILABLE:
            code = Code.NOT_COORDINATOR
        case Code.MESSAGE_TOO_LARGE | Code.RECORD_LIST_TOO_LARGE | Code.INVALID_RECORD | Code.CORRUPT_MESSAGE:
            code = Code.UNKNOWN_SERVER_ERROR
        case _:
            code = Code.COORDINATOR_NOT_AVAILABLE
    return Refused(code, why.why)


async def _raise(error: Broken) -> None:
    raise error

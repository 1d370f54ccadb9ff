"""The group coordinator of one partition of `__consumer_offsets`: a pure shard, its log, and the callers that wait.

All decisions of one turn of the event loop go to the log as one group of batches, and no caller gets its reply before
they are committed. Decisions run ahead of the log. Therefore a failed append ends the coordinator, and its shard is
loaded again from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any

from tiered.coordinator.snapshot import encode_batches
from tiered.errors import Code, InvariantViolation, Refused
from tiered.groups.log_state import LogState
from tiered.groups.records import CoordinatorRecord, group_key, offset_record
from tiered.groups.requests import CommitOffsets, JoinGroup, JoinGroupReply, Now, Reply, Request, TopicsDeleted
from tiered.groups.shard import CoordinatorResult, GroupShard
from tiered.ports import Clock
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica

log = logging.getLogger(__name__)

COMMIT_MS = 5_000
"""Time in which the in-sync replicas have to replicate a decision (Kafka's offsets.commit.timeout.ms)."""
SLICE_RECORDS = 500
PENDING_REQUESTS_MAX = 20_000
"""Callers that wait for one shard at the same time."""

Spawn = Callable[[Coroutine[Any, Any, None]], None]
"""Starts a task that the broker owns."""


class CoordinatorCounters:
    """Counters of a broker's coordinators, as plain numbers: metrics read them on each scrape."""

    def __init__(self) -> None:
        self.commits = 0
        self.rebalances = 0


class CoordinatorRuntime:
    """A loaded shard over its replica.

    `on_deadline_changed` gets the earliest deadline, which may have moved. `on_failed` is called when the shard has to
    be dropped; each caller has its error by then.
    """

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
        """Monotonic time of the first change that no snapshot holds yet; -1 for none."""
        self._clock = clock
        self._counters = counters
        self._spawn = spawn
        self._on_deadline_changed = on_deadline_changed
        self._on_failed = on_failed
        self._token = 0
        self._pending_replies: dict[int, asyncio.Future[Reply]] = {}
        self._joining_groups: dict[int, str] = {}
        """The group of each pending JoinGroup, by token."""
        self._pending_records: list[CoordinatorRecord] = []
        self._replies: list[tuple[int, Reply]] = []
        self._append_scheduled = False
        self._uncommitted: deque[tuple[int, list[tuple[int, Reply]]]] = deque()
        self._end_reason: Refused | None = None

    def now(self) -> Now:
        """Returns both clocks."""
        return Now(self._clock.mono_ns() // 1_000_000, self._clock.wall_ms())

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> tuple[int, Reply | asyncio.Future[Reply]]:
        """Returns the caller's token, and the reply or a future for it.

        Raises `Refused` if this broker is not the coordinator, or too many requests wait.
        """
        if self._end_reason is not None:
            raise self._end_reason
        if len(self._pending_replies) >= PENDING_REQUESTS_MAX:
            raise Refused(
                Code.COORDINATOR_NOT_AVAILABLE,
                f"{PENDING_REQUESTS_MAX} requests wait for {self.replica.tp}; try again",
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
        """Drops a request whose caller waits no more."""
        self._joining_groups.pop(token, None)
        if self._pending_replies.pop(token, None) is not None and self._end_reason is None:
            self.shard.cancel_request(token)

    def count_states(self) -> Counter[str]:
        """Returns the number of groups in each state."""
        return Counter(group.state.value for group in self.shard.state.groups.values())

    def run_due(self) -> int | None:
        """Handles the deadlines that have come. Returns the next one in monotonic ms; None if there is none."""
        if self._end_reason is not None:
            return None
        now = self.now()
        when = self.shard.next_due_ms
        if when is not None and when <= now.mono_ms:
            self.enqueue(self.shard.due(now))
            when = self.shard.next_due_ms
        return when

    def on_topics_deleted(self, names: tuple[str, ...]) -> None:
        """Removes the committed offsets of deleted topics."""
        if self._end_reason is None:
            self.enqueue(self.shard.decide(TopicsDeleted(names), self.now(), 0))

    def append_corrections(self, records: list[CoordinatorRecord]) -> None:
        """Appends changes that no request made: corrections of the loaded state by the state of the cluster."""
        self.shard.apply(records)
        self.enqueue(CoordinatorResult(tuple(records)))

    # -- the log ------------------------------------------------------------------------------------------------------

    def enqueue(self, result: CoordinatorResult) -> None:
        """Adds records to this turn's append. The replies wait until these and all earlier records are committed."""
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
            except InvariantViolation as error:  # the broker sees errors of its tasks, but not of callbacks
                self._spawn(_raise(error))

    def _append(self) -> None:
        records, replies = self._pending_records, self._replies
        self._pending_records, self._replies = [], []
        end = 0
        try:
            for each in encode_batches(records, self._clock.wall_ms()):  # one append may not hold all
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
        """Sends replies in the order of the log, as it becomes committed."""
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
                    "group starts a generation group=%s generation=%d members=%d assignor=%s",
                    group, reply.generation, len(reply.members), reply.protocol,
                )  # fmt: skip
            if future is not None and not future.done():
                future.set_result(reply)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Appends pending records. Returns the offset below which the log holds all decisions.

        Raises `Refused` if the log refuses them.
        """
        if self._pending_records and self._end_reason is None:
            self._append()
        if self._end_reason is not None:
            raise self._end_reason
        return self.replica.log.end_offset

    async def snapshot(self) -> tuple[int, list[CoordinatorRecord]]:
        """Returns an offset and the committed state there.

        The state is taken group by group. A decision made meanwhile may be in it: the log from that offset on holds it
        too. Raises `Refused` if the state does not become committed.
        """
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
        """Ends the coordinator after the log refused a decision. Each caller gets the error; the shard is dropped."""
        if self._end_reason is None:
            self.end(_to_coordinator_error(reason))
            self._on_failed(reason)

    def end(self, reason: Refused) -> None:
        """Refuses all pending and later requests."""
        if self._end_reason is not None:
            return
        self._end_reason = reason
        pending, self._pending_replies = self._pending_replies, {}
        self._joining_groups.clear()
        for future in pending.values():
            if not future.done():
                future.set_exception(reason)


def snapshot_group(log_state: LogState, group: str) -> list[CoordinatorRecord]:
    """Returns the fewest records that give one group's state."""
    found = [
        offset_record(group, topic, partition, committed)
        for topic, partition, committed in log_state.iterate_offsets(group)
    ]
    value = log_state.groups.get(group)
    if value is not None:
        found.append(CoordinatorRecord(group_key(group), value))
    return found


def _to_coordinator_error(refused: Refused) -> Refused:
    """Returns the error for a member of a group after a refused append, with the code that Kafka translates it to."""
    match refused.code:
        case Code.NOT_LEADER_OR_FOLLOWER | Code.KAFKA_STORAGE_ERROR | Code.UNKNOWN_TOPIC_OR_PARTITION:
            code = Code.NOT_COORDINATOR
        case Code.BROKER_NOT_AVAILABLE:
            code = Code.NOT_COORDINATOR
        case Code.MESSAGE_TOO_LARGE | Code.RECORD_LIST_TOO_LARGE | Code.INVALID_RECORD | Code.CORRUPT_MESSAGE:
            code = Code.UNKNOWN_SERVER_ERROR
        case _:
            code = Code.COORDINATOR_NOT_AVAILABLE
    return Refused(code, refused.why)


async def _raise(error: InvariantViolation) -> None:
    raise error

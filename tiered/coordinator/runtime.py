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
from tiered.groups.records import Record, group_key, offset_record
from tiered.groups.requests import CommitOffsets, Joined, JoinGroup, Now, Reply, Request, TopicsDeleted
from tiered.groups.shard import GroupShard, Outcome
from tiered.ports import Clock
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica

log = logging.getLogger(__name__)

COMMIT_MS = 5_000
"""How long the in-sync replicas may take to have what was decided (Kafka's offsets.commit.timeout.ms)."""
SLICE_RECORDS = 500
WAITING_MAX = 20_000
"""Callers that wait for one shard at the same time."""

Spawn = Callable[[Coroutine[Any, Any, None]], None]
"""Starts a task that the broker owns."""


class Counts:
    """What a broker's coordinators did, as plain numbers: the metrics read them when somebody looks."""

    def __init__(self) -> None:
        self.commits = 0
        self.rebalances = 0


class Coordinator:
    """A loaded shard over its replica. `changed` hears when a deadline may have moved, `failed` when the shard is of no
    use any more; every caller has been answered by then."""

    def __init__(
        self,
        replica: LeaderReplica,
        shard: GroupShard,
        clock: Clock,
        counts: Counts,
        *,
        spawn: Spawn,
        changed: Callable[[int], None],
        failed: Callable[[Refused], None],
    ) -> None:
        self.replica = replica
        self.shard = shard
        self.since_ms = -1
        """When (monotonic) the first change came that no image holds; -1 for none."""
        self._clock = clock
        self._counts = counts
        self._spawn = spawn
        self._deadline_moved = changed
        self._failed = failed
        self._token = 0
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._joining: dict[int, str] = {}
        """The group of each of them that joins one."""
        self._changes: list[Record] = []
        self._replies: list[tuple[int, Reply]] = []
        self._scheduled = False
        self._uncommitted: deque[tuple[int, list[tuple[int, Reply]]]] = deque()
        self._gone: Refused | None = None

    def now(self) -> Now:
        """Both clocks."""
        return Now(self._clock.mono_ns() // 1_000_000, self._clock.wall_ms())

    # -- asking -------------------------------------------------------------------------------------------------------

    def ask(self, request: Request) -> tuple[int, Reply | asyncio.Future[Reply]]:
        """The caller's token, and the reply or what it will come in. `Refused` when this broker is not the coordinator
        or too many wait."""
        if self._gone is not None:
            raise self._gone
        if len(self._waiting) >= WAITING_MAX:
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, f"{WAITING_MAX} requests wait for {self.replica.at} already")
        self._token = token = self._token + 1
        if type(request) is CommitOffsets:
            self._counts.commits += len(request.offsets)
        outcome = self.shard.decide(request, self.now(), token)
        due = self.shard.next_due_ms
        if due is not None:
            self._deadline_moved(due)
        if not outcome.changes and len(outcome.replies) == 1 and outcome.replies[0][0] == token and self._idle():
            return token, outcome.replies[0][1]
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[token] = answer
        if type(request) is JoinGroup:
            self._joining[token] = request.group
        self.take(outcome)
        return token, answer

    def _idle(self) -> bool:
        return not self._changes and not self._uncommitted

    def forget(self, token: int) -> None:
        """The caller does not wait any more."""
        self._joining.pop(token, None)
        if self._waiting.pop(token, None) is not None and self._gone is None:
            self.shard.forget(token)

    def states(self) -> Counter[str]:
        """How many groups are in which state."""
        return Counter(group.state.value for group in self.shard.live.groups.values())

    def due(self) -> int | None:
        """Does all whose time has come; when to come again, on the monotonic clock in ms."""
        if self._gone is not None:
            return None
        now = self.now()
        when = self.shard.next_due_ms
        if when is not None and when <= now.mono_ms:
            self.take(self.shard.due(now))
            when = self.shard.next_due_ms
        return when

    def topics_deleted(self, names: tuple[str, ...]) -> None:
        """Offsets of topics that are not any more go."""
        if self._gone is None:
            self.take(self.shard.decide(TopicsDeleted(names), self.now(), 0))

    def amend(self, records: list[Record]) -> None:
        """Changes that nobody asked for: what the cluster's state says about what was loaded."""
        self.shard.apply(records)
        self.take(Outcome(tuple(records)))

    # -- the log ------------------------------------------------------------------------------------------------------

    def take(self, outcome: Outcome) -> None:
        """Changes join this turn's batch, replies wait for it and for all before it."""
        if outcome.changes:
            self._changes += outcome.changes
            self._replies += outcome.replies
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._end_turn)
        elif self._changes:
            self._replies += outcome.replies
        elif self._uncommitted:
            self._uncommitted[-1][1].extend(outcome.replies)
        else:
            self._give(outcome.replies)

    def _end_turn(self) -> None:
        self._scheduled = False
        if self._changes and self._gone is None:
            try:
                self._append()
            except Broken as error:  # of a call-back nobody hears, of a task the broker does
                self._spawn(_raised(error))

    def _append(self) -> None:
        changes, replies = self._changes, self._replies
        self._changes, self._replies = [], []
        end = 0
        try:
            for each in encode_batches(changes, self._clock.wall_ms()):  # one by one: together they may be too large
                end = self.replica.append_now(bytearray(each), ACKS_ALL).last_offset + 1
        except Refused as refused:
            self.fail(refused)
            return
        if self.since_ms < 0:
            self.since_ms = self._clock.mono_ns() // 1_000_000
        if not self._uncommitted and self.replica.is_committed(end):
            self._give(replies)
            return
        self._uncommitted.append((end, replies))
        if len(self._uncommitted) == 1:
            self._spawn(self._until_committed())

    async def _until_committed(self) -> None:
        """Gives replies out in the order of the log, as it becomes committed."""
        while self._uncommitted and self._gone is None:
            try:
                await self.replica.wait_committed(self._uncommitted[0][0], COMMIT_MS)
            except Refused as refused:
                self.fail(refused)
                return
            while self._uncommitted and self.replica.is_committed(self._uncommitted[0][0]):
                self._give(self._uncommitted.popleft()[1])

    def _give(self, replies: list[tuple[int, Reply]] | tuple[tuple[int, Reply], ...]) -> None:
        for token, reply in replies:
            answer, group = self._waiting.pop(token, None), self._joining.pop(token, "")
            if type(reply) is Joined and reply.members:
                self._counts.rebalances += 1
                log.info(
                    "group begins a generation group=%s generation=%d members=%d assignor=%s",
                    group, reply.generation, len(reply.members), reply.protocol,
                )  # fmt: skip
            if answer is not None and not answer.done():
                answer.set_result(reply)

    # -- images -------------------------------------------------------------------------------------------------------

    def settled(self) -> int:
        """The offset below which the log says all that was decided. `Refused` when the log does not take it."""
        if self._changes and self._gone is None:
            self._append()
        if self._gone is not None:
            raise self._gone
        return self.replica.log.end_offset

    async def snapshot(self) -> tuple[int, list[Record]]:
        """An offset, and the committed state there. What is decided while it is taken, group by group, may be in it:
        the log from that offset on says it again. `Refused` when it does not become committed."""
        self.since_ms = -1
        offset, found, rest = self.settled(), list[Record](), SLICE_RECORDS
        hard = self.shard.hard
        for name in list({**hard.groups, **hard.offsets}):
            found += records_of(hard, name)
            if len(found) > rest:
                rest = len(found) + SLICE_RECORDS
                await self._clock.sleep(0)
        await self.replica.wait_committed(self.settled(), COMMIT_MS)
        return offset, found

    # -- the end ------------------------------------------------------------------------------------------------------

    def fail(self, why: Refused) -> None:
        """The log did not take what was decided: all who wait are told, and the shard is given up."""
        if self._gone is None:
            self.end(_as_coordinator(why))
            self._failed(why)

    def end(self, why: Refused) -> None:
        """Nobody is served here any more."""
        if self._gone is not None:
            return
        self._gone = why
        waiting, self._waiting = self._waiting, {}
        self._joining.clear()
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(why)


def records_of(hard: LogState, group: str) -> list[Record]:
    """The fewest records that give one group's state."""
    found = [offset_record(group, topic, partition, kept) for topic, partition, kept in hard.rows(group)]
    value = hard.groups.get(group)
    if value is not None:
        found.append(Record(group_key(group), value))
    return found


def _as_coordinator(why: Refused) -> Refused:
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


async def _raised(error: Broken) -> None:
    raise error

"""The coordinator of one partition of an internal topic: a pure shard, its log, and the callers that wait.

All decisions of one turn of the event loop go to the log as one group of batches, and no caller gets its reply before
they are committed (I18). Where the log commits on append, a caller may have its decision appended at once.

Decisions run ahead of the log. Therefore a failed append ends the coordinator, and its shard is loaded again from the
log. A marker of a transaction changes shard and log in the same turn (I15).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, Protocol, TypeVar

from tiered.coordinator.log_records import encode_batches
from tiered.errors import Code, InvariantViolation, Refused
from tiered.ports import Clock
from tiered.producers.verification import VerificationGuard
from tiered.records.batch import decode_header
from tiered.records.marker import TransactionMarker
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered.shard import UNAWAITED, CoordinatorRecord, CoordinatorResult, CoordinatorShard, Now, ProducerIdAndEpoch
from tiered.spending import WRITTEN
from tiered.system.turns import each_of

log = logging.getLogger(__name__)

COMMIT_MS = 5_000
"""Time in which the in-sync replicas have to replicate a decision (Kafka's offsets.commit.timeout.ms)."""
PENDING_REQUESTS_MAX = 20_000
"""Callers that wait for one shard at the same time."""

NEVER_MS = 1 << 62
"""Later than every deadline."""

Spawn = Callable[[Coroutine[Any, Any, None]], None]
"""Starts a task that the broker owns."""
FindExpiryMs = Callable[[int, int], int]
"""Returns the time by which ages are judged, from the monotonic time and the wall clock."""


ShardT = TypeVar("ShardT", bound=CoordinatorShard[Any, Any, Any])
RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")
Request_contra = TypeVar("Request_contra", contravariant=True)
Event_contra = TypeVar("Event_contra", contravariant=True)


class Observer(Protocol[Request_contra, Event_contra]):
    """Logs and counts what coordinators of one kind do."""

    def on_request(self, request: Request_contra, /) -> None:
        """Notes a request before its decision."""

    def on_event(self, event: Event_contra, /) -> None:
        """Notes an event of a decision, once the records of the decision and all before them are committed."""


class CoordinatorRuntime(Generic[ShardT, RequestT, ReplyT]):
    """A loaded shard over its replica.

    `on_deadline_advanced` gets the earliest deadline if it is earlier than the last one returned or reported.
    `on_failed` is called when the shard has to be dropped; each caller has its error by then.
    """

    def __init__(
        self,
        replica: LeaderReplica,
        shard: ShardT,
        clock: Clock,
        observer: Observer[RequestT, Any],
        find_expiry_ms: FindExpiryMs,
        *,
        spawn: Spawn,
        on_deadline_advanced: Callable[[int], None],
        on_failed: Callable[[Refused], None],
    ) -> None:
        self.replica = replica
        self.shard = shard
        self.unsaved_since_ms = -1
        """Monotonic time of the first change that no snapshot holds yet; -1 for none."""
        self._clock = clock
        self._find_expiry_ms = find_expiry_ms
        self._on_request, self._on_event = observer.on_request, observer.on_event
        self._spawn = spawn
        self._on_deadline_advanced = on_deadline_advanced
        self._on_failed = on_failed
        self._reported_due_ms = NEVER_MS
        self._token = UNAWAITED
        self._pending_replies: dict[int, asyncio.Future[ReplyT]] = {}
        self._pending_records: list[CoordinatorRecord] = []
        self._results: list[CoordinatorResult[ReplyT, Any]] = []
        """Results whose replies wait for the records that are appended next."""
        self._append_scheduled = False
        self._uncommitted: deque[tuple[int, list[CoordinatorResult[ReplyT, Any]]]] = deque()
        """Results whose replies wait until the log is committed up to an offset, in the order of the log."""
        self._end_reason: Refused | None = None

    def now(self) -> Now:
        """Returns the clocks."""
        mono_ms, wall_ms = self._clock.mono_ns() // 1_000_000, self._clock.wall_ms()
        return Now(mono_ms, wall_ms, self._find_expiry_ms(mono_ms, wall_ms))

    # -- requests -----------------------------------------------------------------------------------------------------

    @property
    def commits_on_append(self) -> bool:
        """True if a decision is committed as soon as it is in the log, and no earlier one waits for that."""
        return not self._uncommitted and self._end_reason is None and self.replica.commits_on_append

    def submit_now(self, request: RequestT) -> ReplyT:
        """Returns the reply to a request that is not parked, while `commits_on_append`. Appends its decision and all
        that waits for the append of this turn.

        Raises `Refused` like `submit`, and if the log refuses the decision.
        """
        _, reply = self.submit(request, at_once=True)
        return reply.result() if isinstance(reply, asyncio.Future) else reply

    def submit(self, request: RequestT, *, at_once: bool = False) -> tuple[int, ReplyT | asyncio.Future[ReplyT]]:
        """Returns the caller's token, and the reply or a future for it. `at_once`: the decision is appended in this
        call.

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
        self._on_request(request)
        result: CoordinatorResult[ReplyT, Any] = self.shard.decide(request, self.now(), token)
        records, replies, events = result
        if records and (charge := WRITTEN.get()) is not None:
            charge(sum(len(each.key) + len(each.value or b"") for each in records))
        due = self.shard.next_due_ms
        if due is not None and due < self._reported_due_ms:
            self._reported_due_ms = due
            self._on_deadline_advanced(due)
        if not records and len(replies) == 1 and replies[0][0] == token and self._is_idle():
            for event in events:
                self._on_event(event)
            return token, replies[0][1]
        future: asyncio.Future[ReplyT] = asyncio.get_running_loop().create_future()
        self._pending_replies[token] = future
        self._enqueue(result, at_once)
        return token, future

    def submit_in_transaction(
        self, request: RequestT, producer: ProducerIdAndEpoch, guard: VerificationGuard | None
    ) -> tuple[int, ReplyT | asyncio.Future[ReplyT]]:
        """Does the same for a request whose records belong to the transaction of a producer.

        The records are in the log when this returns. Raises `Refused` also if the transaction is not open here and
        cannot begin under `guard`: nothing is decided then.
        """
        self.flush()
        self.replica.transactions.check_transaction(producer.producer_id, producer.epoch, guard)
        return self.submit(request, at_once=True)  # a marker that came first would leave these records without an end

    async def write_marker(self, marker: TransactionMarker) -> None:
        """Ends the transaction of a producer, in the log and in the shard. Returns once the marker is committed.

        A marker that is in the log already changes nothing. Raises `Refused` if the log refuses the marker, or if it is
        not committed in time.
        """
        self.flush()
        end = self.replica.transactions.append_marker_now(marker)
        self.shard.end_transaction(ProducerIdAndEpoch(*marker[:2]), marker.commit)
        self._note_change()
        if not self._is_committed(end):
            self._await_commit(end, [])
            await self.replica.confirm_committed(end, COMMIT_MS)
        if self._end_reason is not None:
            raise self._end_reason

    def submit_unawaited(self, request: RequestT, *, at_once: bool = False) -> None:
        """Decides a request that no caller waits for, such as a change of the cluster. `at_once`: the decision is
        appended in this call."""
        if self._end_reason is None:
            self._enqueue(self.shard.decide(request, self.now(), UNAWAITED), at_once)

    def _is_idle(self) -> bool:
        return not self._pending_records and not self._uncommitted

    def cancel_request(self, token: int) -> None:
        """Drops a request whose caller waits no more."""
        if self._pending_replies.pop(token, None) is not None and self._end_reason is None:
            self.shard.cancel_request(token)

    def run_due(self) -> int | None:
        """Handles the deadlines that have come. Returns the next one in monotonic ms; None if there is none."""
        if self._end_reason is not None:
            return None
        now = self.now()
        when = self.shard.next_due_ms
        if when is not None and when <= now.mono_ms:
            self._enqueue(self.shard.due(now))
            when = self.shard.next_due_ms
        self._reported_due_ms = when if when is not None else NEVER_MS
        return when

    # -- the log ------------------------------------------------------------------------------------------------------

    def _enqueue(self, result: CoordinatorResult[ReplyT, Any], at_once: bool = False) -> None:
        """Adds records to this turn's append. The replies wait until these and all earlier records are committed."""
        if result.records:
            self._pending_records += result.records
            self._results.append(result)
        elif self._pending_records:
            self._results.append(result)
        elif self._uncommitted:
            self._uncommitted[-1][1].append(result)
        else:
            self._deliver_replies((result,))
        if self._pending_records and at_once:
            self._append()
        elif self._pending_records and not self._append_scheduled:
            self._append_scheduled = True
            asyncio.get_running_loop().call_soon(self._append_pending)

    def _append_pending(self) -> None:
        self._append_scheduled = False
        if self._pending_records and self._end_reason is None:
            try:
                self._append()
            except InvariantViolation as error:  # the broker sees errors of its tasks, but not of callbacks
                self._spawn(_raise(error))

    def _append(self) -> None:
        records, results = self._pending_records, self._results
        self._pending_records, self._results = [], []
        end = 0
        try:
            for each in encode_batches(records, self._clock.wall_ms()):  # one append may not hold all
                end = self._append_batch(bytearray(each))
        except Refused as refused:
            self.fail(refused)
            return
        self._note_change()
        if self._is_committed(end):
            self._deliver_replies(results)
        else:
            self._await_commit(end, results)

    def _append_batch(self, data: bytearray) -> int:
        """Appends a batch, and returns the end of the log. The shard knows that a transaction is open."""
        head = decode_header(data)
        producers = self.replica.log.producers
        if not head.is_transactional or producers.has_ongoing_txn(head.producer_id, head.producer_epoch):
            return self.replica.append_now(data, ACKS_ALL, from_coordinator=True).last_offset + 1
        guard = self.replica.transactions.begin_verification(head.producer_id, head.producer_epoch)
        try:
            return self.replica.append_now(data, ACKS_ALL, guard=guard, from_coordinator=True).last_offset + 1
        finally:
            self.replica.transactions.end_verification(guard)

    def _note_change(self) -> None:
        if self.unsaved_since_ms < 0:
            self.unsaved_since_ms = self._clock.mono_ns() // 1_000_000

    def _is_committed(self, end: int) -> bool:
        return not self._uncommitted and self.replica.is_committed(end)

    def _await_commit(self, end: int, results: list[CoordinatorResult[ReplyT, Any]]) -> None:
        self._uncommitted.append((end, results))
        if len(self._uncommitted) == 1:
            self._spawn(self._wait_committed())

    async def _wait_committed(self) -> None:
        """Sends replies in the order of the log, as it becomes committed."""
        while self._uncommitted and self._end_reason is None:
            try:
                await self.replica.confirm_committed(self._uncommitted[0][0], COMMIT_MS)
            except Refused as refused:
                self.fail(refused)
                return
            while self._uncommitted and self.replica.is_committed(self._uncommitted[0][0]):
                self._deliver_replies(self._uncommitted.popleft()[1])

    def _deliver_replies(self, results: Iterable[CoordinatorResult[ReplyT, Any]]) -> None:
        for result in results:
            for token, reply in result.replies:
                future = self._pending_replies.pop(token, None)
                if future is not None and not future.done():
                    future.set_result(reply)
            for event in result.events:  # the work that an event begins comes after the replies
                self._on_event(event)

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

        The state is taken in parts. A decision made meanwhile may be in it: the log from that offset on holds it too.
        Raises `Refused` if the state does not become committed.
        """
        self.unsaved_since_ms = -1
        offset, found = self.flush(), list[CoordinatorRecord]()
        async for part in each_of(self.shard.snapshot()):
            found += part
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
        for future in pending.values():
            if not future.done():
                future.set_exception(reason)


def _to_coordinator_error(refused: Refused) -> Refused:
    """Returns the error for callers after a refused append, with the code that Kafka's coordinators translate it to."""
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

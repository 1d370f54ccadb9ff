"""The transaction coordinator of one partition of `__transaction_state`, as a pure shard.

Hard state is the newest value of each transactional id, which the log holds. Soft state is which markers are written,
the epoch before the present one, and deadlines. A coordinator that moved to another broker starts without soft state:
it requests all markers of decided transactions again, and a marker that stands twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from tiered.shard import UNAWAITED, CoordinatorRecord, CoordinatorResult, Now, ProducerIdAndEpoch
from tiered.transactions import end, producer_init, requests
from tiered.transactions.admin import handle_describe_transaction, handle_list_transactions
from tiered.transactions.decision import EXPIRY, MARKERS, TIMEOUT, ShardState, TransactionDecision, schedule_timeout
from tiered.transactions.expiry import expire_ids
from tiered.transactions.invariants import find_violations
from tiered.transactions.limits import TransactionSettings
from tiered.transactions.partitions import handle_add_partitions, handle_verify_partitions
from tiered.transactions.records import transaction_record
from tiered.transactions.requests import Event, Reply, Request

SNAPSHOT_PART_RECORDS = 1_000


class TransactionShard:
    """Decides the requests of one coordinator partition. It is a `tiered.shard.CoordinatorShard`.

    The reply to a request comes with its decision: no request is parked.
    """

    def __init__(self, settings: TransactionSettings, other_shards_bytes: Callable[[], int] = lambda: 0) -> None:
        self.state = ShardState(settings, other_shards_bytes=other_shards_bytes)
        self._ids_to_expire: list[str] = []

    # -- the log -------------------------------------------------------------------------------------------------------

    def apply(self, records: Iterable[CoordinatorRecord], /) -> None:
        """Applies records of a snapshot, then of the log, in order."""
        self.state.apply(records)

    def end_transaction(self, marker: ProducerIdAndEpoch, is_commit: bool, /) -> None:
        """Does nothing: no transaction writes to `__transaction_state`."""

    def on_loaded(self, now: Now, /) -> None:
        """Starts the timeouts of open transactions, and requests the markers of decided ones."""
        for name, value in self.state.transactions.items():
            schedule_timeout(self.state, name, value, now)
            if value.state.is_prepared:
                self.state.unmarked[name] = value.partitions
                self.state.deadlines.set((MARKERS, name, ""), now.mono_ms)
        self._schedule_expiry(now)

    def snapshot(self) -> Iterator[Sequence[CoordinatorRecord]]:
        """Yields the hard state as the fewest records that give it, in parts."""
        names = iter(tuple(self.state.transactions))
        while part := list(islice(names, SNAPSHOT_PART_RECORDS)):
            found = ((name, self.state.transactions.get(name)) for name in part)
            yield [transaction_record(name, value) for name, value in found if value is not None]

    # -- decisions -----------------------------------------------------------------------------------------------------

    def needs_producer_id(self, request: Request) -> bool:
        """True if the request needs a producer id that nobody has had: the carrier allocates one first."""
        match request:
            case requests.InitProducerId():
                return producer_init.needs_producer_id(self.state.transactions.get(request.transactional_id), request)
            case requests.EndTransaction():
                return end.needs_producer_id(self.state.transactions.get(request.transactional_id), request)
        return False

    def decide(self, request: Request, now: Now, token: int = UNAWAITED, /) -> CoordinatorResult[Reply, Event]:
        """Decides a request."""
        decision = TransactionDecision(self.state, now)
        decision.replies.append((token, self._handle(decision, request)))
        return decision.result()

    def _handle(self, decision: TransactionDecision, request: Request) -> Reply:
        match request:
            case requests.AddPartitions():
                return handle_add_partitions(decision, request)
            case requests.VerifyPartitions():
                return handle_verify_partitions(self.state, request)
            case requests.EndTransaction():
                return end.handle_end_transaction(decision, request)
            case requests.MarkersWritten():
                return end.handle_markers_written(decision, request)
            case requests.InitProducerId():
                return producer_init.handle_init_producer_id(decision, request)
            case requests.DescribeTransaction():
                return handle_describe_transaction(self.state, request)
            case requests.ListTransactions():
                return handle_list_transactions(self.state, request, decision.now.wall_ms)

    def due(self, now: Now, /) -> CoordinatorResult[Reply, Event]:
        """Handles all deadlines that have come."""
        decision = TransactionDecision(self.state, now)
        for kind, name, _ in self.state.deadlines.pop_due(now.mono_ms):
            if kind == TIMEOUT:
                end.abort_timed_out(decision, name)
            elif kind == MARKERS:
                end.resume_markers(decision, name)
            else:
                self._expire(decision)
        return decision.result()

    @property
    def next_due_ms(self) -> int | None:
        """The earliest deadline; None if there is none."""
        return self.state.deadlines.next_due_ms()

    def cancel_request(self, token: int, /) -> None:
        """Does nothing: no request is parked."""

    def find_violations(self) -> tuple[str, ...]:
        """Returns a sentence for each broken rule of the shard's state."""
        return tuple(find_violations(self.state))

    # -- expiry --------------------------------------------------------------------------------------------------------

    def _expire(self, decision: TransactionDecision) -> None:
        if not self._ids_to_expire:
            self._ids_to_expire = list(self.state.transactions)
        expire_ids(decision, self._ids_to_expire)
        if self._ids_to_expire:
            self.state.deadlines.set((EXPIRY, "", ""), decision.now.mono_ms + 1)
        else:
            self._schedule_expiry(decision.now)

    def _schedule_expiry(self, now: Now) -> None:
        self.state.deadlines.set((EXPIRY, "", ""), now.mono_ms + self.state.settings.expiration_check_ms)

"""The bugs of transactions: each function turns a production function into one with the bug."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tiered.coordinator.runtime import CoordinatorRuntime
from tiered.errors import Code
from tiered.groups.log_state import LogState
from tiered.groups.pending_offsets import PendingOffsets
from tiered.groups.shard import GroupShard
from tiered.ids import KEYED_FROM
from tiered.producers.states import ProducerStates
from tiered.replication.leader_reads import LeaderReads
from tiered.shard import CoordinatorRecord, CoordinatorResult, ProducerIdAndEpoch
from tiered.transactions.decision import TransactionDecision
from tiered.transactions.metadata import TransactionState
from tiered.transactions.shard import TransactionShard

# -- the coordinator --------------------------------------------------------------------------------------------------


def report_events_at_once(original: Any) -> Any:
    """Markers are sent before the decision is committed."""

    def enqueue(self: CoordinatorRuntime[Any, Any, Any], result: CoordinatorResult[Any, Any], *at_once: bool) -> None:
        for event in result.events:
            self._on_event(event)
        original(self, CoordinatorResult(result.records, result.replies), *at_once)

    return enqueue


def forget_markers_at_load(original: Any) -> Any:
    """A coordinator that moved does not ask for the markers of decided transactions."""

    def on_loaded(self: TransactionShard, now: Any) -> None:
        original(self, now)
        self.state.unmarked.clear()

    return on_loaded


def forget_timeouts_at_load(original: Any) -> Any:
    """A coordinator that moved does not abort transactions at their timeout."""

    def schedule(state: Any, name: str, value: Any, now: Any) -> None:
        """Does nothing."""

    return schedule


def fence_in_memory_only(original: Any) -> Any:
    """A fence is not in the log: the next coordinator knows the epoch before."""

    def handle(decision: TransactionDecision, request: Any) -> Any:
        reply = original(decision, request)
        if reply.code is Code.NONE and reply.producer_epoch > 0:
            decision.records.clear()
        return reply

    return handle


def abort_what_is_decided(original: Any) -> Any:
    """A coordinator that moved aborts transactions that it finds decided."""

    def apply(self: Any, records: Iterable[CoordinatorRecord]) -> None:
        original(self, records)
        for name, value in self.transactions.items():
            if value.state is TransactionState.PREPARE_COMMIT:
                self.transactions[name] = value._replace(state=TransactionState.PREPARE_ABORT)

    return apply


def count_refused_markers(original: Any) -> Any:
    """A partition that did not take its marker counts as done."""

    def take_codes(self: Any, node_id: int, targets: Any, codes: Any) -> None:
        original(self, node_id, targets, dict.fromkeys(targets, Code.NONE))

    return take_codes


def skip_fence(original: Any) -> Any:
    """A producer of an earlier epoch is taken for the present one."""

    def check(value: Any, producer_id: int, producer_epoch: int) -> Any:
        known = producer_epoch if value is None else value.producer_epoch
        return original(value, producer_id, max(producer_epoch, known))

    return check


def forget_replies_at_load(original: Any) -> Any:
    """A coordinator that moved does not know the replies of committed keys."""

    def apply(self: Any, records: Iterable[CoordinatorRecord]) -> None:
        original(self, records)
        for name, value in self.transactions.items():
            self.transactions[name] = value._replace(reply=b"")

    return apply


# -- the partition ----------------------------------------------------------------------------------------------------


def ignore_open_transactions(original: Any) -> Any:
    """The last stable offset goes past open transactions."""

    def snapshot(self: LeaderReads) -> tuple[int, int, int]:
        committed, _, start = original(self)
        return committed, committed, start

    return snapshot


def forget_transactions_on_follow(original: Any) -> Any:
    """A follower does not learn of open transactions."""

    def append(self: Any, data: Any, **how: Any) -> None:
        original(self, data, **how)
        producers: ProducerStates = self.producers
        for each in producers.list_producers():
            each.txn_first_offset = -1
        producers.txns._open.clear()
        producers.txns._unreplicated.clear()
        producers.txns.first_unstable_offset = None

    return append


def forget_keys_on_follow(original: Any) -> Any:
    """A follower does not remember the keys of the records that it copies."""

    def append(self: Any, data: Any, **how: Any) -> None:
        original(self, data, **how)
        producers: ProducerStates = self.producers
        for each in producers.list_producers():
            if each.producer_id >= KEYED_FROM and each.txn_first_offset < 0:
                producers.known.forget(each.producer_id)

    return append


def verify_nothing(original: Any) -> Any:
    """A transaction begins in a partition without a question to its coordinator."""

    def find(self: Any, batch: Any) -> None:
        return None

    return find


def accept_without_guard(original: Any) -> Any:
    """Records begin a transaction without a guard."""

    def is_valid(self: Any, guard: Any, producer_id: int, epoch: int) -> bool:
        return True

    return is_valid


def accept_any_marker(original: Any) -> Any:
    """A marker of an earlier epoch or coordinator ends the transaction that is open."""

    def is_due(self: ProducerStates, marker: Any) -> bool:
        return True

    return is_due


def keep_guards(original: Any) -> Any:
    """A guard stays valid when a marker ends the transaction that it was for."""

    def invalidate(self: Any, *args: Any) -> None:
        """Does nothing."""

    return invalidate


def list_no_aborted_of_cold(original: Any) -> Any:
    """A read from the bucket names no aborted transactions."""

    async def find(self: Any, *args: Any) -> tuple[tuple[int, int], ...]:
        return ()

    return find


def list_no_aborted(original: Any) -> Any:
    """A reply from the local log does not name aborted transactions."""

    def read(self: Any, *args: Any, **options: Any) -> Any:
        data, _ = original(self, *args, **options)
        return data, ()

    return read


def list_aborted_backwards(original: Any) -> Any:
    """The list of aborted transactions is in the order of their markers, the last one first."""

    def read(self: Any, *args: Any, **options: Any) -> Any:
        data, aborted = original(self, *args, **options)
        return data, tuple(reversed(aborted))

    return read


# -- offsets ----------------------------------------------------------------------------------------------------------


def commit_offsets_at_once(original: Any) -> Any:
    """Offsets of a transaction are visible before its commit."""

    def apply(self: LogState, records: Iterable[CoordinatorRecord]) -> None:
        original(self, [record._replace(producer=None) for record in records])

    return apply


def commit_aborted_offsets(original: Any) -> Any:
    """An abort commits the offsets of its transaction."""

    def end(self: LogState, marker: ProducerIdAndEpoch, is_commit: bool) -> None:
        original(self, marker, True)

    return end


def drop_committed_offsets(original: Any) -> Any:
    """A commit drops the offsets of its transaction."""

    def end(self: LogState, marker: ProducerIdAndEpoch, is_commit: bool) -> None:
        original(self, marker, False)

    return end


def forget_markers_of_offsets(original: Any) -> Any:
    """A coordinator of groups that moved does not see the markers in its log."""

    def end(self: GroupShard, marker: ProducerIdAndEpoch, is_commit: bool) -> None:
        if self.state.groups:
            original(self, marker, is_commit)

    return end


def leave_pending_offsets_out(original: Any) -> Any:
    """A snapshot of groups lacks the offsets of open transactions."""

    def snapshot(self: PendingOffsets, group: str, *, is_superseded: bool) -> list[CoordinatorRecord]:
        return []

    return snapshot


def hide_pending_offsets(original: Any) -> Any:
    """A reader that wants a stable offset gets the one before."""

    def has_partition(self: PendingOffsets, group: str, topic: str, partition: int) -> bool:
        return False

    return has_partition


def keep_older_offsets(original: Any) -> Any:
    return lambda pending, producer_id, key: None


def count_markers_of_any_epoch(original: Any) -> Any:
    def handle_markers_written(decision: Any, request: Any) -> Any:
        found = decision.state.transactions.get(request.transactional_id)
        if found is not None:
            request = replace(request, producer_id=found.producer_id, producer_epoch=found.producer_epoch)
        return original(decision, request)

    return handle_markers_written

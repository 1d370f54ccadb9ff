"""Pending offsets of transactions whose marker was lost with the disks.

A snapshot of groups may have offsets of a transaction that ended after the snapshot was taken. The log begins after the
snapshot then, and does not know the transaction. Its coordinator writes no second marker, so consumers would wait for
stable offsets for ever. `OrphanedTransactions` drops them by the rule for all orphans, once no timeout permits the
transaction any longer: a transaction that its coordinator has as open may yet be committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tiered.controller.member_view import MemberView
from tiered.coordination.late_transactions import LATE_GRACE_MS, find_last_write
from tiered.coordinator.host import CoordinatorHost
from tiered.coordinator.runtime import CoordinatorRuntime
from tiered.groups.shard import GroupShard
from tiered.ports import Clock
from tiered.shard import ProducerIdAndEpoch
from tiered.transactions.orphans import OpenTransaction

Coordinator = CoordinatorRuntime[GroupShard, Any, Any]


class LostMarkers:
    """Finds the transactions that only the group coordinators of this broker know, and not their logs."""

    def __init__(self, host: CoordinatorHost[GroupShard, Any, Any], view: MemberView, clock: Clock) -> None:
        self._host = host
        self._view = view
        self._clock = clock
        self._found_ms: dict[tuple[Coordinator, ProducerIdAndEpoch], int] = {}
        """Monotonic time at which each transaction was found first."""

    def find_open(self) -> list[OpenTransaction]:
        """Returns those that earlier calls found too, for longer than any timeout allows."""
        now_ms = self._clock.mono_ns() // 1_000_000
        self._found_ms = {each: self._found_ms.get(each, now_ms) for each in self._find()}
        late_before_ms = now_ms - self._view.settings.transaction_max_timeout_ms - LATE_GRACE_MS
        return [_describe(*each) for each, found_ms in self._found_ms.items() if found_ms < late_before_ms]

    def is_unchanged(self, found: OpenTransaction) -> bool:
        """True if `find_open` would return this transaction again."""
        partition = self._host.led_partitions.get(found.tp.partition)
        coordinator = partition.coordinator if partition is not None else None
        producer = ProducerIdAndEpoch(found.producer_id, found.producer_epoch)
        if coordinator is None or not _is_lost(coordinator, producer):
            return False
        return _describe(coordinator, producer) == found

    def _find(self) -> Iterator[tuple[Coordinator, ProducerIdAndEpoch]]:
        for partition in self._host.led_partitions.values():
            coordinator = partition.coordinator
            if coordinator is not None:
                for producer in coordinator.shard.log_state.pending.producers():
                    if _is_lost(coordinator, producer):
                        yield coordinator, producer


def _is_lost(coordinator: Coordinator, producer: ProducerIdAndEpoch) -> bool:
    is_pending = coordinator.shard.log_state.pending.epoch_of(producer.producer_id) == producer.epoch
    return is_pending and not coordinator.replica.log.producers.has_ongoing_txn(*producer)


def _describe(coordinator: Coordinator, producer: ProducerIdAndEpoch) -> OpenTransaction:
    """Returns the transaction without a first offset: its records are not in the log."""
    replica = coordinator.replica
    known = replica.log.producers.get(producer.producer_id)
    return OpenTransaction(
        replica.tp, replica.leader_epoch, *producer, -1,
        find_last_write(known) if known is not None else (-1, -1),
        max(known.coordinator_epoch, 0) if known is not None else 0,
    )  # fmt: skip

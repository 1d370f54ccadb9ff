"""Open transactions of led partitions that no timeout permits any longer.

Read_committed consumers do not pass such a transaction, and no later segment becomes cold. A coordinator aborts each
transaction at its timeout. One that stays open for longer has lost its coordinator, or has no timeout (KIP-939).

A transaction may also be open in the groups alone. A snapshot of groups may have offsets of a transaction that ended
after the snapshot was taken. If the disks are lost, the log begins after the snapshot, and does not know the
transaction. Its coordinator writes no second marker, so consumers would wait for stable offsets for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from tiered.controller.member_view import MemberView
from tiered.coordinator.host import CoordinatorHost
from tiered.coordinator.runtime import CoordinatorRuntime
from tiered.groups.shard import GroupShard
from tiered.hosting.hosted_replicas import HostedReplicas
from tiered.ids import TopicPartition
from tiered.metrics import Metrics
from tiered.ports import Clock
from tiered.producers.entry import ProducerStateEntry
from tiered.replication.leader_replica import LeaderReplica
from tiered.shard import ProducerIdAndEpoch
from tiered.transactions.orphans import NO_RECORDS, OpenTransaction

LATE_GRACE_MS = 5 * 60_000
"""Time after `transaction.max.timeout.ms` that the end of a transaction may take (Kafka: late transaction buffer)."""


Groups = CoordinatorRuntime[GroupShard, Any, Any]


class LateTransaction(NamedTuple):
    """The oldest open transaction of a partition: its first offset is the last stable offset. `since_ms` is of the wall
    clock. `transactional_id` is "" if this broker does not coordinate it."""

    tp: TopicPartition
    producer_id: int
    first_offset: int
    since_ms: int
    transactional_id: str = ""


class LateTransactions:
    """Finds the late transactions of one broker. `groups` hosts its group coordinators. `find_names` returns the
    transactional ids of producer ids that this broker coordinates."""

    def __init__(
        self,
        replicas: HostedReplicas,
        groups: CoordinatorHost[GroupShard, Any, Any],
        view: MemberView,
        clock: Clock,
        find_names: Callable[[Collection[int]], Mapping[int, str]],
        metrics: Metrics,
    ) -> None:
        self._replicas = replicas
        self._view = view
        self._clock = clock
        self._find_names = find_names
        self._groups = groups
        self._pending_since_ms: dict[tuple[Groups, ProducerIdAndEpoch], int] = {}
        """Monotonic time at which each transaction was found first that is open in the groups alone."""
        metrics.gauge(
            "kafka_server_replicamanager_partitionswithlatetransactionscount",
            "Partitions led here with a transaction that is open for longer than any timeout allows.",
        ).set_function(lambda: float(sum(1 for _ in self._scan())))
        metrics.gauge(
            "tiered_open_transaction_seconds",
            "Age of the oldest open transaction in partitions led here, 0 without one.",
        ).set_function(self._find_oldest_seconds)

    def find(self) -> list[LateTransaction]:
        """Returns the late transaction of each led partition that has one, the oldest first."""
        ahead_ms = self._clock.wall_ms() - self._mono_ms()
        scanned = (
            LateTransaction(replica.tp, each.producer_id, each.txn_first_offset, each.txn_began_ms + ahead_ms)
            for replica, each in self._scan()
        )
        found = sorted(scanned, key=lambda late: late.since_ms)
        if not found:
            return []
        names = self._find_names({late.producer_id for late in found})
        return [late._replace(transactional_id=names.get(late.producer_id, "")) for late in found]

    def find_holding(self, replica: LeaderReplica | None) -> LateTransaction | None:
        """Returns the oldest open transaction of a partition: no later record is uploaded before its end. None without
        one. It need not be late."""
        now_ms = self._mono_ms()
        oldest = None if replica is None else replica.log.producers.find_oldest_txn(now_ms)
        if replica is None or oldest is None:
            return None
        name = self._find_names({oldest.producer_id}).get(oldest.producer_id, "")
        since_ms = oldest.txn_began_ms + self._clock.wall_ms() - now_ms
        return LateTransaction(replica.tp, oldest.producer_id, oldest.txn_first_offset, since_ms, name)

    def find_open(self) -> list[OpenTransaction]:
        """Returns the same transactions as `find`, and those that are open in the groups alone: the latter once earlier
        calls found them too, for longer than any timeout allows."""
        now_ms = self._mono_ms()
        since_ms = self._pending_since_ms
        self._pending_since_ms = {each: since_ms.get(each, now_ms) for each in self._scan_groups()}
        late = [each for each, found_ms in self._pending_since_ms.items() if found_ms < self._find_bound(now_ms)]
        return [_describe(*found) for found in self._scan()] + [_describe_pending(*each) for each in late]

    def is_unchanged(self, found: OpenTransaction) -> bool:
        """True if `find_open` would return this transaction again."""
        if found.has_records:
            replica = self._replicas.find_leader(found.tp)
            oldest = replica.log.producers.find_oldest_txn(self._mono_ms()) if replica is not None else None
            return replica is not None and oldest is not None and _describe(replica, oldest) == found
        partition = self._groups.led_partitions.get(found.tp.partition)
        groups = partition.coordinator if partition is not None else None
        producer = ProducerIdAndEpoch(found.producer_id, found.producer_epoch)
        return (
            groups is not None
            and _is_in_groups_alone(groups, producer)
            and _describe_pending(groups, producer) == found
        )

    def _mono_ms(self) -> int:
        return self._clock.mono_ns() // 1_000_000

    def _scan(self) -> Iterator[tuple[LeaderReplica, ProducerStateEntry]]:
        now_ms = self._mono_ms()
        late_before_ms = self._find_bound(now_ms)
        for replica in self._replicas.list_leaders():
            oldest = replica.log.producers.find_oldest_txn(now_ms)
            if oldest is not None and oldest.txn_began_ms < late_before_ms:
                yield replica, oldest

    def _find_oldest_seconds(self) -> float:
        now_ms = self._mono_ms()
        oldest = (each.log.producers.find_oldest_txn(now_ms) for each in self._replicas.list_leaders())
        return max((max(0, now_ms - each.txn_began_ms) / 1000 for each in oldest if each is not None), default=0.0)

    def _find_bound(self, now_ms: int) -> int:
        return now_ms - self._view.settings.transaction_max_timeout_ms - LATE_GRACE_MS

    def _scan_groups(self) -> Iterator[tuple[Groups, ProducerIdAndEpoch]]:
        for partition in self._groups.led_partitions.values():
            groups = partition.coordinator
            if groups is not None:
                for producer in groups.shard.log_state.pending.producers():
                    if _is_in_groups_alone(groups, producer):
                        yield groups, producer


def _is_in_groups_alone(groups: Groups, producer: ProducerIdAndEpoch) -> bool:
    is_pending = groups.shard.log_state.pending.epoch_of(producer.producer_id) == producer.epoch
    return is_pending and not groups.replica.log.producers.has_ongoing_txn(*producer)


def _describe(replica: LeaderReplica, producer: ProducerStateEntry) -> OpenTransaction:
    return OpenTransaction(
        replica.tp, replica.leader_epoch, producer.producer_id, producer.epoch, producer.txn_first_offset,
        _find_last_write(producer), max(producer.coordinator_epoch, 0),
    )  # fmt: skip


def _describe_pending(groups: Groups, producer: ProducerIdAndEpoch) -> OpenTransaction:
    """Returns the transaction without a first offset: its records are not in the log."""
    replica = groups.replica
    known = replica.log.producers.get(producer.producer_id)
    found = OpenTransaction(replica.tp, replica.leader_epoch, *producer, NO_RECORDS, (-1, -1))
    if known is None:
        return found
    return found._replace(last_write=_find_last_write(known), coordinator_epoch=max(known.coordinator_epoch, 0))


def _find_last_write(producer: ProducerStateEntry) -> tuple[int, int]:
    """Returns what changes with each batch of a producer: the last offset, or the timestamp."""
    return producer.batches[-1].last_offset if producer.batches else -1, producer.timestamp

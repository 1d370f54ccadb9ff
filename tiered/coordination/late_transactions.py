"""Open transactions that hold back the last stable offset of a led partition for too long.

Read_committed consumers do not pass such a transaction, and no later segment becomes cold. A coordinator aborts each
transaction at its timeout. One that stays open for longer has lost its coordinator, or has no timeout (KIP-939).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from tiered.controller.member_view import MemberView
from tiered.hosting.hosted_replicas import HostedReplicas
from tiered.ids import TopicPartition
from tiered.metrics import Metrics
from tiered.ports import Clock
from tiered.producers.states import ProducerStateEntry
from tiered.replication.leader_replica import LeaderReplica
from tiered.transactions.orphans import OpenTransaction

LATE_GRACE_MS = 5 * 60_000
"""Time after `transaction.max.timeout.ms` that the end of a transaction may take (Kafka: late transaction buffer)."""


class LateTransaction(NamedTuple):
    """The oldest open transaction of a partition: its first offset is the last stable offset. `since_ms` is of the wall
    clock. `transactional_id` is "" if this broker does not coordinate it."""

    tp: TopicPartition
    producer_id: int
    first_offset: int
    since_ms: int
    transactional_id: str = ""


class LateTransactions:
    """Finds the late transactions of one broker. `find_names` returns the transactional ids of producer ids that this
    broker coordinates."""

    def __init__(
        self,
        replicas: HostedReplicas,
        view: MemberView,
        clock: Clock,
        find_names: Callable[[Collection[int]], Mapping[int, str]],
        metrics: Metrics,
    ) -> None:
        self._replicas = replicas
        self._view = view
        self._clock = clock
        self._find_names = find_names
        metrics.gauge(
            "kafka_server_replicamanager_partitionswithlatetransactionscount",
            "Partitions led here with a transaction that is open for longer than any timeout allows.",
        ).set_function(lambda: float(sum(1 for _ in self._scan())))

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
        """Returns the same transactions as `find`, as the rule for orphans needs them."""
        return [_describe(*found) for found in self._scan()]

    def is_unchanged(self, found: OpenTransaction) -> bool:
        """True if `find_open` would return this transaction again."""
        replica = self._replicas.find_leader(found.tp)
        oldest = replica.log.producers.find_oldest_txn(self._mono_ms()) if replica is not None else None
        return replica is not None and oldest is not None and _describe(replica, oldest) == found

    def _mono_ms(self) -> int:
        return self._clock.mono_ns() // 1_000_000

    def _scan(self) -> Iterator[tuple[LeaderReplica, ProducerStateEntry]]:
        now_ms = self._mono_ms()
        late_before_ms = now_ms - self._view.settings.transaction_max_timeout_ms - LATE_GRACE_MS
        for replica in self._replicas.list_leaders():
            oldest = replica.log.producers.find_oldest_txn(now_ms)
            if oldest is not None and oldest.txn_began_ms < late_before_ms:
                yield replica, oldest


def _describe(replica: LeaderReplica, producer: ProducerStateEntry) -> OpenTransaction:
    return OpenTransaction(
        replica.tp, replica.leader_epoch, producer.producer_id, producer.epoch, producer.txn_first_offset,
        find_last_write(producer), max(producer.coordinator_epoch, 0),
    )  # fmt: skip


def find_last_write(producer: ProducerStateEntry) -> tuple[int, int]:
    """Returns what changes with each batch of a producer: the last offset, or the timestamp."""
    return producer.batches[-1].last_offset if producer.batches else -1, producer.timestamp

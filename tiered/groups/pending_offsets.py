"""Offsets that open transactions have written. The marker of a transaction commits or drops them (I15).

The order of the log decides between commits for one partition. An offset that is committed after a pending one
supersedes it: the end of the transaction does not bring the older offset back. A deletion removes pending offsets too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tiered.groups.holders import GroupBytes
from tiered.groups.records import OffsetKey, OffsetValue, offset_record
from tiered.shard import CoordinatorRecord, ProducerIdAndEpoch

OFFSET_BYTES = 300
"""Memory that a committed offset takes beside its metadata, in bytes."""
PENDING_BYTES = 300
"""Memory that a pending offset takes in addition, in bytes: it is listed by partition and by producer."""


def offset_size(offset: OffsetValue | None) -> int:
    """Returns about how many bytes of memory a committed offset takes; 0 for None."""
    return OFFSET_BYTES + len(offset.metadata) if offset is not None else 0


def size_growth(previous: OffsetValue | None, offset: OffsetValue) -> int:
    """Returns how many bytes more a committed offset takes than the one that it replaces."""
    if previous is None:
        return OFFSET_BYTES + len(offset.metadata)
    return len(offset.metadata) - len(previous.metadata)


def pending_size(offset: OffsetValue | None) -> int:
    """Returns about how many bytes of memory a pending offset takes; 0 for None."""
    return PENDING_BYTES + offset_size(offset) if offset is not None else 0


class PendingOffset(NamedTuple):
    """An offset of an open transaction. A later commit for the same partition supersedes it."""

    value: OffsetValue
    is_superseded: bool = False


@dataclass(slots=True)
class PendingTransaction:
    """The transaction of one producer that is open in this shard. `keys` are those of its pending offsets."""

    epoch: int
    keys: dict[OffsetKey, None] = field(default_factory=dict)


class PendingOffsets:
    """The pending offsets of one shard. Their memory counts in `sizes`."""

    def __init__(self, sizes: GroupBytes) -> None:
        self._sizes = sizes
        self._transactions: dict[int, PendingTransaction] = {}
        self._groups: dict[str, dict[tuple[str, int], dict[int, PendingOffset]]] = {}
        """By group, partition and producer id. The producers of a partition are in the order of the log."""

    def __bool__(self) -> bool:
        return bool(self._transactions)

    # -- reading ------------------------------------------------------------------------------------------------------

    def epoch_of(self, producer_id: int) -> int | None:
        """Returns the epoch in which a producer wrote its pending offsets; None if it has none."""
        found = self._transactions.get(producer_id)
        return found.epoch if found is not None else None

    def count_of(self, producer_id: int) -> int:
        """Returns how many offsets the transaction of a producer has written."""
        found = self._transactions.get(producer_id)
        return len(found.keys) if found is not None else 0

    def find(self, producer_id: int, key: OffsetKey) -> OffsetValue | None:
        """Returns the pending offset of one producer for a partition; None if there is none."""
        found = self._groups.get(key.group, {}).get(key[1:], {}).get(producer_id)
        return found.value if found is not None else None

    def producers(self) -> list[ProducerIdAndEpoch]:
        """Returns the producers that have pending offsets."""
        return [self._producer(producer_id) for producer_id in self._transactions]

    def groups(self) -> Iterable[str]:
        """Returns the groups that have pending offsets."""
        return self._groups

    def has_group(self, group: str) -> bool:
        """True if an open transaction has written offsets of the group."""
        return group in self._groups

    def has_partition(self, group: str, topic: str, partition: int) -> bool:
        """True if an open transaction has written an offset for the partition."""
        return (topic, partition) in self._groups.get(group, {})

    def partitions(self, group: str) -> Iterable[tuple[str, int]]:
        """Returns the partitions for which open transactions have written offsets of the group."""
        return self._groups.get(group, {})

    def of_partition(self, group: str, topic: str, partition: int) -> list[PendingOffset]:
        """Returns the pending offsets of one partition, in the order of the log."""
        return list(self._groups.get(group, {}).get((topic, partition), {}).values())

    def iterate_offsets(self, group: str) -> Iterator[tuple[ProducerIdAndEpoch, OffsetKey, OffsetValue]]:
        """Yields the pending offsets of a group that a commit would bring into force."""
        for (topic, partition), by_producer in self._groups.get(group, {}).items():
            for producer_id, found in by_producer.items():
                if not found.is_superseded:
                    yield self._producer(producer_id), OffsetKey(group, topic, partition), found.value

    def snapshot(self, group: str, *, is_superseded: bool) -> list[CoordinatorRecord]:
        """Returns records that give the pending offsets of a group, either the superseded ones or all others.

        The records of superseded offsets stand before those of the committed offsets, all others after these.
        """
        return [
            offset_record(group, topic, partition, found.value, self._producer(producer_id))
            for (topic, partition), by_producer in self._groups.get(group, {}).items()
            for producer_id, found in by_producer.items()
            if found.is_superseded is is_superseded
        ]

    def _producer(self, producer_id: int) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(producer_id, self._transactions[producer_id].epoch)

    # -- changing -----------------------------------------------------------------------------------------------------

    def add(self, producer: ProducerIdAndEpoch, key: OffsetKey, value: OffsetValue) -> None:
        """Adds an offset, which the producer's marker decides about. It replaces an earlier one of the transaction.

        Offsets of another epoch are of a transaction that has ended: its marker is lost, after a start from a snapshot.
        The marker of this transaction must not commit them.
        """
        before = self._transactions.get(producer.producer_id)
        if before is not None and before.epoch != producer.epoch:
            self.end_transaction(ProducerIdAndEpoch(producer.producer_id, before.epoch), False)
        transaction = self._transactions.setdefault(producer.producer_id, PendingTransaction(producer.epoch))
        transaction.keys[key] = None
        by_producer = self._groups.setdefault(key.group, {}).setdefault(key[1:], {})
        replaced = by_producer.pop(producer.producer_id, None)
        growth = pending_size(value) - pending_size(replaced.value if replaced is not None else None)
        self._sizes.add(key.group, growth)
        by_producer[producer.producer_id] = PendingOffset(value)

    def supersede(self, key: OffsetKey) -> None:
        """Notes a commit outside of transactions: it wins over all pending offsets of the partition."""
        by_producer = self._groups.get(key.group, {}).get(key[1:], {})
        for producer_id, found in by_producer.items():
            by_producer[producer_id] = PendingOffset(found.value, True)

    def remove(self, key: OffsetKey) -> None:
        """Removes all pending offsets of a partition."""
        for producer_id in list(self._groups.get(key.group, {}).get(key[1:], {})):
            self._remove_one(producer_id, key)
            transaction = self._transactions[producer_id]
            del transaction.keys[key]
            if not transaction.keys:
                del self._transactions[producer_id]

    def end_transaction(self, marker: ProducerIdAndEpoch, is_commit: bool) -> list[tuple[OffsetKey, OffsetValue]]:
        """Removes the pending offsets of a producer. Returns those that its commit brings into force.

        The marker has the epoch of the offsets, or the next one if the epoch moves with each transaction (KIP-890).
        Pending offsets of a later epoch stay. Those of an earlier one are of a transaction whose marker is lost, so a
        commit drops them. Where the epoch stays, nothing tells such a transaction from the one that commits.
        """
        producer_id, epoch = marker
        transaction = self._transactions.get(producer_id)
        if transaction is None or transaction.epoch > epoch:
            return []
        is_commit = is_commit and transaction.epoch >= epoch - 1
        committed: list[tuple[OffsetKey, OffsetValue]] = []
        for key in transaction.keys:
            found = self._groups[key.group][key[1:]][producer_id]
            if is_commit and not found.is_superseded:
                committed.append((key, found.value))
                self._supersede_older(producer_id, key)
            self._remove_one(producer_id, key)
        del self._transactions[producer_id]
        return committed

    def _supersede_older(self, producer_id: int, key: OffsetKey) -> None:
        """Marks what other producers wrote for the partition before this producer did."""
        by_producer = self._groups[key.group][key[1:]]
        for other, found in by_producer.items():
            if other == producer_id:
                return
            by_producer[other] = PendingOffset(found.value, True)

    def _remove_one(self, producer_id: int, key: OffsetKey) -> None:
        partitions = self._groups[key.group]
        by_producer = partitions[key[1:]]
        self._sizes.add(key.group, -pending_size(by_producer.pop(producer_id).value))
        if not by_producer:
            del partitions[key[1:]]
            if not partitions:
                del self._groups[key.group]

"""The rule by which a transaction without a coordinator is ended in one partition.

A coordinator that lost its log and its snapshot does not know a transaction that began since. Nobody writes a marker
for it then, and it holds back the last stable offset for ever. The partition does not know the transactional id, so all
coordinators are queried by the producer id.

A partition can also lose a marker that its coordinator takes for written. If the last transaction of the producer is
committed, and its epoch is that of the open one, they are the same, and the marker is written again. If the producer
has begun another one since, or keeps its epoch (transaction version 0 and 1), nothing tells the outcome.

No commit may be lost. A transaction that can still be committed is open at its coordinator, which reports it. If no
coordinator knows it as open, a later transaction of the same producer could still write to this partition, and join it.
So it is aborted only if nothing was written to it between two such replies under the same coordinators, and until the
marker itself. After the marker, a record needs the word of its coordinator again before it begins a transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tiered.ids import TopicPartition
from tiered.transactions.metadata import TransactionState

OPEN_STATES = frozenset(state.label for state in TransactionState if state.is_prepared) | {
    TransactionState.ONGOING.label
}
"""States in which a transaction may still be committed."""

ASKED_STATES = OPEN_STATES | {TransactionState.COMPLETE_COMMIT.label}

Coordinators = Mapping[int, tuple[int, int]]
"""The leader and the leader epoch of each partition of `__transaction_state`."""


NO_RECORDS = -1
"""First offset of a transaction that only the groups of a partition know, and not its log."""


class OpenTransaction(NamedTuple):
    """A transaction of a led partition, in its log or in its groups. `last_write` changes with each batch of its
    producer: it is the last offset, or the timestamp of what a coordinator wrote. `coordinator_epoch` is that of the
    producer's last marker."""

    tp: TopicPartition
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_write: tuple[int, int]
    coordinator_epoch: int = 0

    @property
    def has_records(self) -> bool:
        """True if the log knows the transaction."""
        return self.first_offset != NO_RECORDS


class OrphanRule:
    """Remembers which transactions the last reply left without a coordinator, and under which coordinators."""

    def __init__(self) -> None:
        self._unknown: frozenset[OpenTransaction] = frozenset()
        self._coordinators: Coordinators = {}

    def forget(self) -> None:
        """Notes that not all coordinators replied."""
        self._unknown = frozenset()

    def find_orphans(
        self, late: Collection[OpenTransaction], open_ids: Collection[int], coordinators: Coordinators
    ) -> list[OpenTransaction]:
        """Returns the transactions to abort, of those that are open for longer than any timeout allows.

        `open_ids` are the producer ids whose transactions these coordinators know as open.
        """
        unknown = frozenset(each for each in late if each.producer_id not in open_ids)
        confirmed = unknown & self._unknown if coordinators == self._coordinators else frozenset()
        self._unknown, self._coordinators = unknown - confirmed, dict(coordinators)
        return sorted(confirmed)

"""The state of one transactional id, as its log has it.

A transaction is ONGOING from its first partition on. PREPARE_COMMIT or PREPARE_ABORT is the decision: from there on the
outcome is certain, and markers may be written (I14). COMPLETE_* follows once each partition has its marker.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from tiered.ids import TopicPartition

EPOCH_BUMP_VERSION = 2
"""Transaction version from which on the epoch moves with every transaction (KIP-890)."""
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIME = -1
EPOCH_MAX = (1 << 15) - 1
EPOCH_EXHAUSTED = EPOCH_MAX - 1
"""Last epoch that a producer may have. The one above it is left for the fence against that producer."""


class TransactionState(IntEnum):
    """Kafka's states, by their number in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def label(self) -> str:
        """Kafka's name of the state in DescribeTransactions and ListTransactions."""
        return _LABELS[self]

    @property
    def is_prepared(self) -> bool:
        """True if the outcome is decided, and markers are still to be written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


TRANSITIONS: dict[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: frozenset(
        {TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.PREPARE_ABORT}
    ),
    TransactionState.ONGOING: frozenset(
        {TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}
    ),
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.COMPLETE_COMMIT}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.COMPLETE_ABORT}),
    TransactionState.COMPLETE_COMMIT: frozenset(
        {TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.PREPARE_ABORT}
    ),
    TransactionState.COMPLETE_ABORT: frozenset(
        {TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.PREPARE_ABORT}
    ),
}
"""Permitted states of the next value of an id."""
NEW_STATES = frozenset({TransactionState.EMPTY})
"""Permitted states of the first value of an id."""

_LABELS = {state: "".join(map(str.capitalize, state.name.split("_"))) for state in TransactionState}


class TransactionMetadata(NamedTuple):
    """One transactional id. Times are wall time in milliseconds.

    `previous_producer_id` is the producer id before the last change. `next_producer_id` is the id that the producer has
    after the completion, if its epochs are exhausted. `client_version` is the transaction version (KIP-890) of the
    client that began or ended the transaction.

    An id that stands for an idempotency key has one transaction. `request_hash` identifies the request that it is for.
    `reply` is committed with the transaction: the same request gets it again.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int = NO_TIME
    started_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0
    request_hash: bytes = b""
    reply: bytes = b""

    @property
    def is_epoch_exhausted(self) -> bool:
        """True if the producer needs a new producer id before its epoch can move."""
        return self.producer_epoch >= EPOCH_EXHAUSTED

    @property
    def committed_epoch(self) -> int:
        """Epoch of the records of the transaction that is committed and complete; -1 if there is none.

        It is also -1 if the epoch does not name one transaction: the client keeps its epoch (version 0 and 1), or the
        producer got its last epoch, which `renew_producer` also gives.
        """
        names_one = self.client_version >= EPOCH_BUMP_VERSION and 0 < self.producer_epoch < EPOCH_EXHAUSTED
        return self.producer_epoch - 1 if names_one and self.state is TransactionState.COMPLETE_COMMIT else -1

    @property
    def commits(self) -> bool:
        """True if the decided outcome is a commit."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

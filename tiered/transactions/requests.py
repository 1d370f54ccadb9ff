"""Requests to a transaction coordinator, its replies, and its events: plain values, free of wire versions.

Replies carry a code where Kafka's carry one; the shard never raises for a caller's mistake. The handlers care for
differences between versions of one API: they turn PRODUCER_FENCED into the code that an older client knows.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.transactions.metadata import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIME
from tiered.value import value

# -- producers --------------------------------------------------------------------------------------------------------


@value
class InitProducerId:
    """The reply is `ProducerIdReply`.

    `producer_id` and `producer_epoch` are those that the producer has, if it goes on after an error (KIP-360).
    `new_producer_id` is an id that no producer has had. It is needed if `TransactionShard.needs_producer_id` says so.

    With a `request_hash` the id stands for an idempotency key, and the request is a condition. If the transaction of
    this key is committed, the reply has what was committed with it. It is DUPLICATE_RESOURCE if that was for another
    request, and INVALID_TXN_STATE while the transaction is open: neither aborts the transaction nor fences anybody.
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    new_producer_id: int = NO_PRODUCER_ID
    request_hash: bytes = b""
    holder: str = ""
    """The holder that a new id counts for (`quotas.shares`)."""


@value
class AddPartitions:
    """Adds partitions to the producer's transaction, which begins with the first one. The reply is `CodeReply`."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    client_version: int = 0


@value
class VerifyPartitions:
    """Asks for each partition if it belongs to the producer's transaction. The reply is `VerifyReply`."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@value
class EndTransaction:
    """EndTxn. The reply is `ProducerIdReply`, with the id and epoch for the next transaction in version 2.

    `new_producer_id` is as in `InitProducerId`. `reply` is what the request of an idempotency key gets again.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    client_version: int = 0
    new_producer_id: int = NO_PRODUCER_ID
    reply: bytes = b""


@value
class MarkersWritten:
    """The markers of one decided transaction are committed in these partitions. The reply is `CodeReply`."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@value
class ProducerIdReply:
    """Reply to `InitProducerId` and `EndTransaction`. `reply` is that of an idempotency key whose transaction is
    committed."""

    code: Code
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    reply: bytes = b""


@value
class CodeReply:
    """Reply of one code for the whole request."""

    code: Code


@value
class VerifyReply:
    """Reply to `VerifyPartitions`: a code for each partition."""

    codes: tuple[tuple[TopicPartition, Code], ...]


# -- administration ---------------------------------------------------------------------------------------------------


@value
class DescribeTransaction:
    """The reply is `DescribeReply`."""

    transactional_id: str


@value
class DescribeReply:
    """Reply to `DescribeTransaction` (KIP-664)."""

    code: Code
    state: str = ""
    timeout_ms: int = 0
    started_ms: int = NO_TIME
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    partitions: tuple[TopicPartition, ...] = ()


@value
class ListTransactions:
    """Lists ids by state names, producer ids and least duration; empty filters and -1 permit all.

    The reply is `ListReply`.
    """

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    duration_ms: int = -1


class ListedTransaction(NamedTuple):
    """One transactional id in a list. `committed_epoch` is that of the records of its last transaction if that one is
    committed and known by its epoch, else -1."""

    transactional_id: str
    producer_id: int
    state: str
    committed_epoch: int = -1


@value
class ListReply:
    """Reply to `ListTransactions`."""

    transactions: tuple[ListedTransaction, ...]


Request = (
    InitProducerId
    | AddPartitions
    | VerifyPartitions
    | EndTransaction
    | MarkersWritten
    | DescribeTransaction
    | ListTransactions
)
Reply = ProducerIdReply | CodeReply | VerifyReply | DescribeReply | ListReply


# -- events -----------------------------------------------------------------------------------------------------------


class MarkersDue(NamedTuple):
    """The outcome of a transaction is committed: markers are to be written to these partitions (I14).

    With `version` 2 or more, the epoch of the marker is above that of the transaction's records.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: frozenset[TopicPartition]
    version: int


class TransactionTimedOut(NamedTuple):
    """A transaction was aborted, and its producer fenced, because it took longer than its timeout."""

    transactional_id: str
    producer_id: int
    timeout_ms: int


class KeysForgotten(NamedTuple):
    """Idempotency keys made room for another one before they expired."""

    keys: int


Event = MarkersDue | TransactionTimedOut | KeysForgotten

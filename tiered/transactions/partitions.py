"""AddPartitionsToTxn: partitions that join a transaction, or that belong to it (KIP-98, KIP-890).

A partition belongs to a transaction before the first record of the transaction is written there: only then is it sure
to get a marker.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.transactions.decision import PARTITION_BYTES, ShardState, TransactionDecision, check_producer
from tiered.transactions.metadata import TransactionState
from tiered.transactions.requests import AddPartitions, CodeReply, VerifyPartitions, VerifyReply


def handle_add_partitions(decision: TransactionDecision, request: AddPartitions) -> CodeReply:
    """Decides AddPartitionsToTxn. Writes nothing if all partitions are in the transaction already."""
    if not request.transactional_id:
        return CodeReply(Code.INVALID_REQUEST)
    found = check_producer(
        decision.state.transactions.get(request.transactional_id), request.producer_id, request.producer_epoch
    )
    if isinstance(found, Code):
        return CodeReply(found)
    if found.state.is_prepared:
        return CodeReply(Code.CONCURRENT_TRANSACTIONS)
    if found.reply:  # an idempotency key has one transaction
        return CodeReply(Code.INVALID_TXN_STATE)
    is_ongoing = found.state is TransactionState.ONGOING
    known = found.partitions if is_ongoing else frozenset()
    if is_ongoing and request.partitions <= known:
        return CodeReply(Code.NONE)
    partitions, state = known | request.partitions, decision.state
    if len(partitions) > state.settings.partitions_max:
        return CodeReply(Code.POLICY_VIOLATION)
    holder = state.holders.get(request.transactional_id, "")
    if not state.has_room(holder, PARTITION_BYTES * (len(partitions) - len(known))):
        return CodeReply(Code.COORDINATOR_NOT_AVAILABLE)
    now_ms = decision.now.wall_ms
    decision.write(
        request.transactional_id,
        found._replace(
            state=TransactionState.ONGOING, partitions=partitions, updated_ms=now_ms,
            started_ms=found.started_ms if is_ongoing else now_ms, client_version=request.client_version,
            previous_producer_id=found.producer_id,
        ),
    )  # fmt: skip
    return CodeReply(Code.NONE)


def handle_verify_partitions(state: ShardState, request: VerifyPartitions) -> VerifyReply:
    """Decides for each partition if the producer may write a record of its transaction there."""
    partitions = sorted(request.partitions)
    if not request.transactional_id:
        return VerifyReply(tuple((each, Code.INVALID_REQUEST) for each in partitions))
    found = check_producer(
        state.transactions.get(request.transactional_id), request.producer_id, request.producer_epoch
    )
    if isinstance(found, Code):
        return VerifyReply(tuple((each, found) for each in partitions))
    if found.state.is_prepared:
        return VerifyReply(tuple((each, Code.CONCURRENT_TRANSACTIONS) for each in partitions))
    joined = found.partitions if found.state is TransactionState.ONGOING else frozenset()
    return VerifyReply(
        tuple((each, Code.NONE if each in joined else Code.TRANSACTION_ABORTABLE) for each in partitions)
    )

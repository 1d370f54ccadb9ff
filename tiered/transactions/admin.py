"""Description and listing of transactions (KIP-664)."""

from __future__ import annotations

from tiered.errors import Code
from tiered.transactions.decision import ShardState
from tiered.transactions.metadata import TransactionState
from tiered.transactions.requests import (
    DescribeReply,
    DescribeTransaction,
    ListedTransaction,
    ListReply,
    ListTransactions,
)


def handle_describe_transaction(state: ShardState, request: DescribeTransaction) -> DescribeReply:
    """Describes one transactional id."""
    if not request.transactional_id:
        return DescribeReply(Code.INVALID_REQUEST)
    found = state.transactions.get(request.transactional_id)
    if found is None:
        return DescribeReply(Code.TRANSACTIONAL_ID_NOT_FOUND)
    return DescribeReply(
        Code.NONE, found.state.label, found.timeout_ms, found.started_ms, found.producer_id, found.producer_epoch,
        tuple(sorted(found.partitions)),
    )  # fmt: skip


def handle_list_transactions(state: ShardState, request: ListTransactions, now_ms: int) -> ListReply:
    """Lists the ids that pass all filters. A duration filters open transactions by the time since they began."""
    listed = []
    for name, value in state.transactions.items():
        if request.states and value.state.label not in request.states:
            continue
        if request.producer_ids and value.producer_id not in request.producer_ids:
            continue
        if request.duration_ms >= 0:
            is_open = value.state is TransactionState.ONGOING or value.state.is_prepared
            if not is_open or now_ms - value.started_ms <= request.duration_ms:
                continue
        listed.append(ListedTransaction(name, value.producer_id, value.state.label, value.committed_epoch))
    return ListReply(tuple(listed))

"""DescribeTransactions (API key 65): the state of transactional ids that this broker coordinates (KIP-664)."""

from __future__ import annotations

from collections import defaultdict

from tiered.errors import Code
from tiered.transactions.requests import DescribeReply, DescribeTransaction
from tiered_api.kafka.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.transaction_requests import call_coordinator


async def handle(context: KafkaContext, call: Call[DescribeTransactionsRequest]) -> DescribeTransactionsResponse:
    """Returns one result for each id of the request."""
    states: list[TransactionState] = []
    async for name in context.turns.each_of(call.request.transactional_ids):
        reply = await call_coordinator(context, name, DescribeTransaction(name), DescribeReply)
        states.append(_state(name, reply))
    return DescribeTransactionsResponse(transaction_states=states)


def _state(name: str, reply: DescribeReply | Code) -> TransactionState:
    if isinstance(reply, Code) or reply.code is not Code.NONE:
        code = reply if isinstance(reply, Code) else reply.code
        return TransactionState(error_code=code.number, transactional_id=name)
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in reply.partitions:
        topics[topic].append(number)
    return TransactionState(
        Code.NONE.number, name, reply.state, reply.timeout_ms, reply.started_ms, reply.producer_id,
        reply.producer_epoch, [TopicData(topic, numbers) for topic, numbers in topics.items()],
    )  # fmt: skip

"""ListTransactions (API key 66): the transactional ids that this broker coordinates (KIP-664).

v1+ can filter by the time since a transaction began (KIP-994), v2+ by a pattern of the ids (KIP-1152). Without
`__transaction_state` there are no ids, and the request does not create that topic.
"""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.transactions.metadata import TransactionState as State
from tiered_api.kafka.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from tiered_api.kafka.server.exchange.context import Call, KafkaContext
from tiered_api.kafka.server.exchange.group_requests import coordinator_code

STATES = frozenset(state.label for state in State)
STATES_NEVER_LISTED = frozenset(("Dead", "PrepareEpochFence"))
"""States of Kafka that no listed transaction has."""


async def handle(context: KafkaContext, call: Call[ListTransactionsRequest]) -> ListTransactionsResponse:
    """Returns all ids that pass the filters, or an error while some ids are loading."""
    request = call.request
    unknown = [state for state in request.state_filters if state not in STATES | STATES_NEVER_LISTED]
    if request.transactional_id_pattern:
        return ListTransactionsResponse(error_code=Code.INVALID_REGULAR_EXPRESSION.number)
    try:
        found = await context.broker.transaction_coordinators.list_transactions(
            request.state_filters, request.producer_id_filters, request.duration_filter
        )
    except Refused as refused:
        return ListTransactionsResponse(error_code=coordinator_code(refused).number, unknown_state_filters=unknown)
    return ListTransactionsResponse(
        unknown_state_filters=unknown, transaction_states=[TransactionState(*each) for each in found]
    )

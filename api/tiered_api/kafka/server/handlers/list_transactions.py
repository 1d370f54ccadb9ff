"""ListTransactions (API key 66): the transactional ids that this broker coordinates (KIP-664).

v1+ can filter by the time since a transaction began (KIP-994), v2+ by a pattern of the ids (KIP-1152). Without
`__transaction_state` there are no ids, and the request does not create that topic. A broker sends its credential, and
gets the ids that clients may not see as well.
"""

from __future__ import annotations

from tiered.errors import Refused
from tiered.transactions.metadata import TransactionState as State
from tiered_api.kafka.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import coordinator_code
from tiered_api.kafka.server.requests.id_patterns import IdPattern
from tiered_api.kafka.server.rights.inter_broker_auth import check_credential

STATES = frozenset(state.label for state in State)
STATES_NEVER_LISTED = frozenset(("Dead", "PrepareEpochFence"))
"""States of Kafka that no listed transaction has."""


async def handle(context: KafkaContext, call: Call[ListTransactionsRequest]) -> ListTransactionsResponse:
    """Returns all ids that pass the filters, or an error while some ids are loading."""
    request = call.request
    if request.credential and (refused := check_credential(context, call, request.credential)) is not None:
        context.refusals.record("stranger", call.client_host, refused.why)
        return ListTransactionsResponse(error_code=refused.code.number)
    unknown = [state for state in request.state_filters if state not in STATES | STATES_NEVER_LISTED]
    try:
        pattern = IdPattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
        found = await context.broker.transaction_coordinators.list_transactions(
            request.state_filters, request.producer_id_filters, request.duration_filter, context.turns.wait_turn
        )
    except Refused as refused:
        return ListTransactionsResponse(error_code=coordinator_code(refused).number, unknown_state_filters=unknown)
    if pattern is not None:
        found = [each async for each in context.turns.each_of(found) if pattern.matches(each.transactional_id)]
    states = [TransactionState(*each[:3]) async for each in context.turns.each_of(found)]
    return ListTransactionsResponse(
        unknown_state_filters=unknown, transaction_states=states, is_complete=bool(request.credential),
        committed_epochs=[each.committed_epoch for each in found] if request.credential else [],
    )  # fmt: skip

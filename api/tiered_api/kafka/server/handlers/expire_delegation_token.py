"""ExpireDelegationToken (API key 40): the expiry of a token, or its end (KIP-48).

Its owner and its renewers may set the expiry. A time below 0 removes the token at once. v2 is flexible.
"""

from __future__ import annotations

from tiered.controller.requests import ExpireDelegationToken
from tiered.errors import Refused
from tiered_api.kafka.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import DEFAULT_TIMEOUT_MS
from tiered_api.kafka.server.context.mutation_charges import MutationCharges
from tiered_api.kafka.server.requests.token_requests import check_token_request, find_token_id


async def handle(context: KafkaContext, call: Call[ExpireDelegationTokenRequest]) -> ExpireDelegationTokenResponse:
    """Returns once the expiry is in force."""
    request = call.request
    try:
        check_token_request(context, call)
        token_id = find_token_id(context, request.hmac)
        wanted = ExpireDelegationToken(token_id, str(call.caller.principal), request.expiry_time_period_ms)
        expiry_ms: int = await context.broker.submit(
            wanted, DEFAULT_TIMEOUT_MS / 1000, by=MutationCharges(context, call)
        )
    except Refused as refused:
        return ExpireDelegationTokenResponse(refused.code.number, -1)
    return ExpireDelegationTokenResponse(0, expiry_ms)

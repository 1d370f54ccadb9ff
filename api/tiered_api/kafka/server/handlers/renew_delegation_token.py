"""RenewDelegationToken (API key 39): a later expiry of a token (KIP-48).

Its owner and its renewers may renew it, up to its longest lifetime. v2 is flexible.
"""

from __future__ import annotations

from tiered.controller.requests import RenewDelegationToken
from tiered.errors import Refused
from tiered_api.kafka.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import DEFAULT_TIMEOUT_MS
from tiered_api.kafka.server.context.mutation_charges import MutationCharges
from tiered_api.kafka.server.requests.token_requests import check_token_request, find_token_id


async def handle(context: KafkaContext, call: Call[RenewDelegationTokenRequest]) -> RenewDelegationTokenResponse:
    """Returns once the expiry is in force."""
    request = call.request
    try:
        check_token_request(context, call)
        token_id = find_token_id(context, request.hmac)
        wanted = RenewDelegationToken(token_id, str(call.caller.principal), request.renew_period_ms)
        expiry_ms: int = await context.broker.submit(
            wanted, DEFAULT_TIMEOUT_MS / 1000, by=MutationCharges(context, call)
        )
    except Refused as refused:
        return RenewDelegationTokenResponse(refused.code.number, -1)
    return RenewDelegationTokenResponse(0, expiry_ms)

"""ExpireDelegationToken (API key 40): the expiry of a token, or its end (KIP-48).

Its owner and its renewers may set the expiry. A time below 0 removes the token at once. v2 is flexible.
"""

from __future__ import annotations

from tiered.controller.requests import ExpireDelegationToken
from tiered_api.kafka.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.token_requests import change_expiry


async def handle(context: KafkaContext, call: Call[ExpireDelegationTokenRequest]) -> ExpireDelegationTokenResponse:
    """Returns once the expiry is in force."""
    found = await change_expiry(context, call, ExpireDelegationToken, call.request.expiry_time_period_ms)
    return ExpireDelegationTokenResponse(*found)

"""RenewDelegationToken (API key 39): a later expiry of a token (KIP-48).

Its owner and its renewers may renew it, up to its longest lifetime. v2 is flexible.
"""

from __future__ import annotations

from tiered.controller.requests import RenewDelegationToken
from tiered_api.kafka.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.token_requests import change_expiry


async def handle(context: KafkaContext, call: Call[RenewDelegationTokenRequest]) -> RenewDelegationTokenResponse:
    """Returns once the expiry is in force."""
    found = await change_expiry(context, call, RenewDelegationToken, call.request.renew_period_ms)
    return RenewDelegationTokenResponse(*found)

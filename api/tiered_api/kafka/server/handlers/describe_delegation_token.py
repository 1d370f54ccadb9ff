"""DescribeDelegationToken (API key 41): the tokens that the caller may see, with their HMACs (KIP-48).

Owners in the request choose tokens that belong to one of them; null chooses all, an empty list none. Tokens that the
caller may not see are left out. v2 is flexible, v3 has the requesters.
"""

from __future__ import annotations

from tiered.errors import Refused
from tiered.security.acls import Operation
from tiered.security.delegation_tokens import DelegationToken
from tiered.security.principal import Principal, read_principal
from tiered_api.kafka.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.token_requests import check_token_request, check_tokens_enabled
from tiered_api.kafka.server.rights.rights import Rights, find_rights


async def handle(context: KafkaContext, call: Call[DescribeDelegationTokenRequest]) -> DescribeDelegationTokenResponse:
    """Returns the tokens that this broker knows."""
    owners = call.request.owners
    try:
        check_token_request(context, call)
        check_tokens_enabled(context)
    except Refused as refused:
        return DescribeDelegationTokenResponse(refused.code.number)
    named = {str(Principal(each.principal_type, each.principal_name)) for each in owners or ()}
    caller, rights = str(call.caller.principal), find_rights(context, call)
    tokens = [
        _describe(context, each)
        async for each in context.turns.each_of(context.broker.delegation_tokens.list_all())
        if owners is None or not named.isdisjoint((each.owner, each.requester, *each.renewers))
        if _is_visible(each, caller, rights)
    ]
    return DescribeDelegationTokenResponse(tokens=tokens)


def _is_visible(token: DelegationToken, caller: str, rights: Rights | None) -> bool:
    if rights is None or token.belongs_to(caller):
        return True
    return rights.on_token(Operation.DESCRIBE, token.token_id) or rights.on_user(
        Operation.DESCRIBE_TOKENS, read_principal(token.owner)
    )


def _describe(context: KafkaContext, token: DelegationToken) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        *read_principal(token.owner), *read_principal(token.requester), token.issued_ms, token.expiry_ms, token.max_ms,
        token.token_id, context.broker.delegation_tokens.hmac_of(token.token_id),
        [DescribedDelegationTokenRenewer(*read_principal(each)) for each in token.renewers],
    )  # fmt: skip

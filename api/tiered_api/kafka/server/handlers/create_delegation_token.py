"""CreateDelegationToken (API key 38): a token, by which its bearer acts as its owner (KIP-48).

Keeps I29: a token of somebody else needs CREATE_TOKENS on that USER. v2 is flexible. v3 has the owner: without it,
tokens belong to the caller.
"""

from __future__ import annotations

import logging

from tiered.controller.requests import CreateDelegationToken
from tiered.errors import Code, Refused
from tiered.metadata.changes import DelegationTokenSet
from tiered.quotas.shares import DELEGATION_TOKENS
from tiered.security.acls import Operation
from tiered.security.principal import USER, Principal
from tiered_api.kafka.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import DEFAULT_TIMEOUT_MS
from tiered_api.kafka.server.context.mutation_charges import MutationCharges
from tiered_api.kafka.server.requests.token_requests import check_token_request, check_tokens_enabled
from tiered_api.kafka.server.rights.rights import find_rights

log = logging.getLogger(__name__)


async def handle(context: KafkaContext, call: Call[CreateDelegationTokenRequest]) -> CreateDelegationTokenResponse:
    """Returns once the token is in force, with its HMAC."""
    request, requester = call.request, call.caller.principal
    owner = requester
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
    response = CreateDelegationTokenResponse(
        0, *owner, *requester, issue_timestamp_ms=-1, expiry_timestamp_ms=-1, max_timestamp_ms=-1
    )
    try:
        check_token_request(context, call)
        _check_owner(context, call, owner)
        check_tokens_enabled(context)
        renewers = [Principal(each.principal_type, each.principal_name) for each in request.renewers]
        if any(each.kind != USER for each in (owner, *renewers)):
            raise Refused(Code.INVALID_PRINCIPAL_TYPE, "owners and renewers of delegation tokens are users")
        wanted = CreateDelegationToken(str(owner), str(requester), tuple(map(str, renewers)), request.max_lifetime_ms)
        made: DelegationTokenSet = await context.broker.submit(
            wanted, DEFAULT_TIMEOUT_MS / 1000, by=MutationCharges(context, call)
        )
    except Refused as refused:
        if refused.code is DELEGATION_TOKENS.code and not call.pause_ms:
            context.broker.pots.report(DELEGATION_TOKENS, str(requester), refused.why)
        response.error_code = refused.code.number
        return response
    log.info("delegation token created token_id=%s owner=%s requester=%s", made.token_id, made.owner, made.requester)
    response.issue_timestamp_ms, response.expiry_timestamp_ms = made.issued_ms, made.expiry_ms
    response.max_timestamp_ms, response.token_id = made.max_ms, made.token_id
    response.hmac = context.broker.delegation_tokens.hmac_of(made.token_id)
    return response


def _check_owner(context: KafkaContext, call: Call[CreateDelegationTokenRequest], owner: Principal) -> None:
    rights = find_rights(context, call)
    if owner == call.caller.principal or rights is None or rights.on_user(Operation.CREATE_TOKENS, owner):
        return
    rights.record_refusals()
    raise Refused(Code.DELEGATION_TOKEN_AUTHORIZATION_FAILED, f"CREATE_TOKENS is needed on the user {owner}")

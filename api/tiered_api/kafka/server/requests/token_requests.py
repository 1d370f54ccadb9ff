"""Requests about delegation tokens (KIP-48): who may send them, and where, and the change of an expiry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiered.controller.requests import Request
from tiered.errors import Code, Refused
from tiered.security.principal import ANONYMOUS, USER
from tiered_api.kafka.server.context.context import Call, KafkaContext, R
from tiered_api.kafka.server.context.error_codes import DEFAULT_TIMEOUT_MS
from tiered_api.kafka.server.context.mutation_charges import MutationCharges


def check_token_request(context: KafkaContext, call: Call[R]) -> None:
    """Raises `Refused` if the caller has proved no user, or has done so by a token: a token makes no other tokens.
    Replies with tokens need a listener with a login or TLS, as in Kafka."""
    caller = call.caller
    endpoint = next(
        (each for each in context.broker.settings.effective_listeners() if each.name == call.listener), None
    )
    is_safe = endpoint is not None and (endpoint.requires_login or endpoint.is_encrypted)
    if caller.by_token or not is_safe or caller.principal.kind != USER or caller.principal == ANONYMOUS:
        why = "delegation tokens need a login without a token, or a certificate of the client"
        raise Refused(Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, why)


def check_tokens_enabled(context: KafkaContext) -> None:
    """Raises `Refused` on a broker without a secret key for tokens."""
    if not context.broker.delegation_tokens.is_enabled:
        raise Refused(Code.DELEGATION_TOKEN_AUTH_DISABLED, "delegation.token.secret.key is not set")


def find_token_id(context: KafkaContext, hmac: bytes) -> str:
    """Returns the id of the token that a request names. Raises `Refused` if there is none."""
    check_tokens_enabled(context)
    token_id = context.broker.delegation_tokens.find_id(hmac)
    if token_id is None:
        raise Refused(Code.DELEGATION_TOKEN_NOT_FOUND, "there is no delegation token with this HMAC")
    return token_id


async def change_expiry(
    context: KafkaContext, call: Call[Any], request_type: Callable[[str, str, int], Request], period_ms: int
) -> tuple[int, int]:
    """Changes the expiry of the token that a request names. Returns the code of the reply and the new expiry, once it
    is in force."""
    try:
        check_token_request(context, call)
        wanted = request_type(find_token_id(context, call.request.hmac), str(call.caller.principal), period_ms)
        expiry_ms: int = await context.broker.submit(
            wanted, DEFAULT_TIMEOUT_MS / 1000, by=MutationCharges(context, call)
        )
    except Refused as refused:
        return refused.code.number, -1
    return 0, expiry_ms

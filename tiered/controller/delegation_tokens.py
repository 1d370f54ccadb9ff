"""Decisions about delegation tokens (KIP-48). Rights and the HMAC were checked by the broker that got the request."""

from __future__ import annotations

from dataclasses import replace

from tiered.config.settings import Settings
from tiered.controller.decision import ControllerResult
from tiered.controller.requests import CreateDelegationToken, ExpireDelegationToken, RenewDelegationToken
from tiered.errors import Code, Refused
from tiered.metadata.changes import DelegationTokenRemoved, DelegationTokenSet
from tiered.metadata.image import Image
from tiered.quotas.shares import DELEGATION_TOKENS, has_room, refuse
from tiered.security.delegation_tokens import DelegationToken

TOKENS_MAX = 10_000
"""Most delegation tokens of a cluster: every broker keeps all of them in memory."""
TOKENS_OF_REQUESTER_MAX = 1_000
"""Most delegation tokens that one principal has requested."""
RENEWERS_MAX = 10
"""Most renewers of a token: 10,000 tokens with names of 255 characters then take some 30 MB in every broker."""
NAME_MAX = 255
"""Most characters of a principal."""
REMOVED_AT_ONCE = 1_000
"""Most expired tokens that one decision removes."""
_TIME_MAX = 2**63 - 1


def create_token(
    image: Image, settings: Settings, request: CreateDelegationToken, token_id: str, now_ms: int
) -> ControllerResult[DelegationTokenSet]:
    """Creates a token. Its lifetime is that of the settings at most."""
    own = sum(each.requester == request.requester for each in image.delegation_tokens.values())
    if not has_room(TOKENS_MAX, len(image.delegation_tokens), own, 1):
        raise refuse(DELEGATION_TOKENS, TOKENS_MAX, len(image.delegation_tokens), request.requester, own, 1)
    if own >= TOKENS_OF_REQUESTER_MAX:
        why = f"{request.requester} has requested {TOKENS_OF_REQUESTER_MAX} delegation tokens already"
        raise Refused(Code.POLICY_VIOLATION, why)
    renewers = tuple(dict.fromkeys(request.renewers))
    if len(renewers) > RENEWERS_MAX:
        raise Refused(Code.POLICY_VIOLATION, f"a delegation token has at most {RENEWERS_MAX} renewers")
    if any(len(each) > NAME_MAX for each in (request.owner, *renewers)):
        raise Refused(Code.POLICY_VIOLATION, f"a principal must not have more than {NAME_MAX} characters")
    lifetime_ms = _limit(request.max_lifetime_ms, settings.delegation_token_max_lifetime_ms)
    max_ms = _add(now_ms, lifetime_ms)
    expiry_ms = min(max_ms, _add(now_ms, settings.delegation_token_expiry_time_ms))
    made = DelegationTokenSet(token_id, request.owner, request.requester, renewers, now_ms, max_ms, expiry_ms)
    return ControllerResult((made,), made)


def renew_token(image: Image, settings: Settings, request: RenewDelegationToken, now_ms: int) -> ControllerResult[int]:
    """Sets the expiry of a token to a later time, or to an earlier one, but not beyond its longest life."""
    token = _find_token(image, request.token_id)
    _check_life(token, now_ms)
    _check_renewer(token, request.principal)
    period_ms = _limit(request.period_ms, settings.delegation_token_expiry_time_ms)
    return _set_expiry(token, _add(now_ms, period_ms))


def expire_token(image: Image, request: ExpireDelegationToken, now_ms: int) -> ControllerResult[int]:
    """Sets the expiry of a token, or removes the token."""
    token = _find_token(image, request.token_id)
    _check_renewer(token, request.principal)
    if request.period_ms < 0:
        return ControllerResult((DelegationTokenRemoved(token.token_id),), now_ms)
    _check_life(token, now_ms)
    return _set_expiry(token, _add(now_ms, request.period_ms))


def remove_expired(image: Image, now_ms: int) -> ControllerResult[int]:
    """Removes tokens that have expired."""
    expired = [each.token_id for each in image.delegation_tokens.values() if each.is_expired(now_ms)][:REMOVED_AT_ONCE]
    return ControllerResult(tuple(map(DelegationTokenRemoved, expired)), len(expired))


def _find_token(image: Image, token_id: str) -> DelegationToken:
    token = image.delegation_tokens.get(token_id)
    if token is None:
        raise Refused(Code.DELEGATION_TOKEN_NOT_FOUND, "there is no such delegation token")
    return token


def _check_life(token: DelegationToken, now_ms: int) -> None:
    if token.is_expired(now_ms):
        raise Refused(Code.DELEGATION_TOKEN_EXPIRED, "the delegation token has expired")


def _check_renewer(token: DelegationToken, principal: str) -> None:
    if not token.can_renew(principal):
        why = f"{principal} is neither the owner nor a renewer of the delegation token"
        raise Refused(Code.DELEGATION_TOKEN_OWNER_MISMATCH, why)


def _set_expiry(token: DelegationToken, expiry_ms: int) -> ControllerResult[int]:
    kept = DelegationTokenSet(*token)
    changed = replace(kept, expiry_ms=min(token.max_ms, expiry_ms))
    return ControllerResult((changed,), changed.expiry_ms)


def _limit(wanted_ms: int, longest_ms: int) -> int:
    """Returns a time that a client wants, but not more than the setting; the setting if it wants none."""
    return min(wanted_ms, longest_ms) if wanted_ms > 0 else longest_ms


def _add(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, _TIME_MAX)

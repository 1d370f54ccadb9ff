"""The refusal of an act by which everybody, the caller too, would lose the right to change ACLs and users: 409, unless
the query has `force=true`."""

from __future__ import annotations

from collections.abc import Iterable

from tiered.errors import Refused
from tiered.security.acls import Acl
from tiered.security.administrators import parse_super_users
from tiered.security.lockout import ClusterRights, check_rules, check_users
from tiered.security.principal import USER, Principal
from tiered_api.http.exchange.errors import BAD_REQUEST, ILLEGAL_STATE, HttpError
from tiered_api.http.exchange.request import HttpRequest

FORCE = "force=true"


def check_acls_change(request: HttpRequest, added: Iterable[Acl] = (), removed: Iterable[Acl] = ()) -> None:
    """Raises `HttpError` 409 if no principal may change the ACLs after this change of them."""
    rights = _read_rights(request)
    if rights.acls is None or _is_forced(request):
        return
    try:
        check_rules(rights, (rights.acls | frozenset(added)) - frozenset(removed), FORCE)
    except Refused as refused:
        raise HttpError(ILLEGAL_STATE, refused.why) from None


def check_users_removal(request: HttpRequest, users: Iterable[str]) -> None:
    """Raises `HttpError` 409 if no administrator is left once these users have no login: neither the caller, nor
    another user."""
    rights, gone = _read_rights(request), frozenset(users)
    if _is_forced(request) or str(request.caller.principal) not in {str(Principal(USER, user)) for user in gone}:
        return  # the caller may ALTER the cluster, and stays
    try:
        check_users(rights, gone, request.context.broker.image.scram.keys() - gone, FORCE)
    except Refused as refused:
        raise HttpError(ILLEGAL_STATE, refused.why) from None


def _is_forced(request: HttpRequest) -> bool:
    given = request.query_parameters().get("force", "false")
    if given not in ("true", "false"):
        raise HttpError(BAD_REQUEST, "force has to be true or false")
    return given == "true"


def _read_rights(request: HttpRequest) -> ClusterRights:
    broker = request.context.broker
    if broker.authorization.authorizer is None:
        return ClusterRights(None)
    settings = broker.settings
    return ClusterRights(
        broker.image.acls, parse_super_users(settings.super_users), settings.allow_everyone_if_no_acl_found
    )

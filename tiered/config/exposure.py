"""The refusal of addresses that other machines reach without TLS and a login, unless an operator says that it is meant.

A broker that starts with its defaults serves loopback only. An address for others is chosen by hand, and so is its
protection.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from tiered.config.listeners import Endpoint
from tiered.config.settings import NO_LOGIN, Settings, parse_address
from tiered.errors import Code, Refused

REQUIRED = "required"
INSECURE = "tiered.insecure=true"
WHERE = "docs/reference/security.md"


def is_loopback(host: str) -> bool:
    """True if only this machine can reach the address."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(settings: Settings, before: Settings | None = None) -> None:
    """Raises `Refused` (INVALID_CONFIG) with the first address that is open to other machines, and what to do.

    With `before`, the settings until now, only an address that a change opens is refused.
    """
    if settings.tiered_insecure:
        return
    known = set(_find_open(before)) if before is not None else set()
    for where, missing, remedy in _find_open(settings):
        if (where, missing, remedy) in known:
            continue
        why = f"other machines reach it, and it has no {missing}. {remedy}, or bind 127.0.0.1"
        raise Refused(Code.INVALID_CONFIG, f"{where}: {why}; {INSECURE} accepts it as it is ({WHERE})")


def _find_open(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yields each open address, with what it lacks and the way to protect it."""
    for each in settings.effective_listeners():
        missing = _find_missing(each, settings.for_listener(each.name))
        if missing and not is_loopback(each.host):
            where = f"listener {each.name} at {each.address}"
            yield where, missing, "Give it the protocol SASL_SSL, or SSL with ssl.client.auth=required"
    host, _ = parse_address(settings.http_address, "http")
    has_login = NO_LOGIN not in settings.authentication_method or settings.ssl_client_auth == REQUIRED
    lacks = [*(["TLS"] if settings.http_scheme != "https" else []), *(["login"] if not has_login else [])]
    if lacks and not is_loopback(host):
        remedy = "Give it http=https://HOST:PORT and authentication.method=BASIC"
        yield f"http at {settings.http_address}", " and no ".join(lacks), remedy


def _find_missing(endpoint: Endpoint, settings: Settings) -> str:
    has_login = endpoint.requires_login or (endpoint.is_encrypted and settings.ssl_client_auth == REQUIRED)
    return " and no ".join([*([] if endpoint.is_encrypted else ["TLS"]), *([] if has_login else ["login"])])

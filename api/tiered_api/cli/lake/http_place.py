"""The broker whose HTTP a command asks: `tiered sql` and `tiered table` for the newest records, `tiered explain` and
`tiered debug` for the state of the cluster."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tiered.clients.properties import MECHANISM, PASSWORD, PROTOCOL, TOKEN_LOGIN, USER
from tiered.errors import Code, Refused, Unavailable
from tiered_api.cli.client_properties import OPTION
from tiered_api.cli.client_settings import ClientSettings
from tiered_api.cli.client_sources import find_client_settings
from tiered_api.cli.encryption import SSL, make_tls_options
from tiered_api.cli.login import DEFAULT_MECHANISM
from tiered_api.cli.profiles import HTTP

DEFAULT_HTTP = "127.0.0.1:8082"

if TYPE_CHECKING:
    from pyspark_tiered.log.login import HttpLogin


class HttpPlace(NamedTuple):
    """The address of a broker's HTTP, the login there, and the source of the address, "" for an option. `settings` are
    those of the connection."""

    address: str
    login: HttpLogin
    settings: ClientSettings
    source: str = ""

    @contextmanager
    def named(self) -> Iterator[None]:
        """Adds the source of the address to the errors of a broker that cannot be reached, and that of the login to
        those of one that refuses it."""
        try:
            yield
        except Refused as refused:
            raise self.settings.explain_login(refused) from None
        except Unavailable as error:
            if not self.source:
                raise
            raise Unavailable(f"{error} ({HTTP} from {self.source})", final=error.final) from None


def find_http_place(args: Namespace) -> HttpPlace | None:
    """Returns the broker that the command asks for, None if it asks for none.

    It asks by `--bootstrap`, or by `--profile` with the setting `http` of that profile. The current profile alone sends
    no command to a cluster that only reads tables. Raises `Refused` for an option without effect, and for settings that
    are wrong, with their sources.
    """
    if args.bootstrap is None:
        if args.profile is None and args.command_config is None:
            return None
        if args.profile is None or args.store is not None:
            option = OPTION if args.profile is None else "--profile"
            raise Refused(Code.INVALID_REQUEST, f"{option} has no effect without --bootstrap")
    settings = find_client_settings(args)
    source = settings.source(HTTP)
    if args.bootstrap is None and source is None:
        why = f"--profile {args.profile} has no effect: the profile has no setting {HTTP}, and --bootstrap is missing"
        raise Refused(Code.INVALID_REQUEST, why)
    try:
        login = _make_login(settings)
        place = HttpPlace(args.bootstrap, login, settings)
        if args.bootstrap is None and source is not None:
            place = HttpPlace(settings.get(HTTP), login, settings, source.name)
        scheme, colon, _ = place.address.partition("://")
        login.uses_tls(scheme if colon else "")
    except Refused as refused:
        raise settings.explain(refused) from None
    return place


def find_operator_place(args: Namespace) -> HttpPlace:
    """Returns the broker that `--http` names, else that of the profile, else the one on this machine. Raises `Refused`
    for settings that are wrong, with their sources."""
    settings = find_client_settings(args)
    source = settings.source(HTTP)
    try:
        login = _make_login(settings)
        if args.http is not None or source is None:
            return HttpPlace(args.http or DEFAULT_HTTP, login, settings)
        return HttpPlace(settings.get(HTTP), login, settings, source.name)
    except Refused as refused:
        raise settings.explain(refused) from None


def _make_login(settings: ClientSettings) -> HttpLogin:
    from pyspark_tiered.log.login import make_login

    properties = dict(settings.properties)
    properties |= {name: settings.get(name) for name in (PROTOCOL, MECHANISM, USER, PASSWORD)}
    properties[MECHANISM] = properties[MECHANISM] or DEFAULT_MECHANISM
    if settings.source(USER) is not settings.source(TOKEN_LOGIN):
        properties.pop(TOKEN_LOGIN, None)
    is_tls = properties[PROTOCOL].upper() in SSL
    return make_login(properties, make_tls_options(settings) if is_tls else None)

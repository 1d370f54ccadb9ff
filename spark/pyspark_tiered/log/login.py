"""TLS and the login of a broker's HTTP, by the properties of Kafka's clients.

The options of a data source have `kafka.` before these names, as in Spark's Kafka source. Users log in by HTTP Basic,
and tokens of OAUTHBEARER are bearer tokens. Options are plain texts, because Spark carries them to its tasks.
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from tiered.clients.properties import (
    BROKERS,
    MECHANISM,
    PASSWORD,
    PROTOCOL,
    TIMEOUT_MS,
    TOKEN_LOGIN,
    USER,
    choose_properties,
    is_connection_property,
    read_properties_file,
    read_tls_options,
)
from tiered.clients.tokens import TokenRequest, TokenSource, read_token_request
from tiered.config.settings import SASL_MECHANISMS
from tiered.errors import Code, Refused
from tiered.security.sasl_oauthbearer import MECHANISM as OAUTHBEARER
from tiered.security.secret import Secret
from tiered.system.tls_contexts import make_client_context
from tiered.system.tls_options import TlsOptions

PREFIX = "kafka."
COMMAND_CONFIG = "commandConfig"
"""Option with a file of properties. The driver reads it."""
INLINE_KEY = "ssl.keystore.key"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TOKEN_SOURCES_MAX = 16
"""Most token servers with a client that a process remembers."""


class HttpLogin(NamedTuple):
    """The login of a client over HTTP. `protocol` is one of Kafka's, "" if only the URL of the broker says it."""

    protocol: str = ""
    context: ssl.SSLContext | None = None
    user: str = ""
    password: Secret = Secret()
    tokens: TokenSource | None = None

    def uses_tls(self, scheme: str) -> bool:
        """True if the connection to a broker at a URL of this scheme, "" for none, uses TLS. Raises `Refused` if the
        protocol is for another one."""
        wanted = self.protocol.endswith("SSL") if self.protocol else scheme == "https"
        if scheme and wanted is not (scheme == "https"):
            raise _refuse(f"{PROTOCOL}={self.protocol} is not for a bootstrap of {scheme}")
        return wanted

    def make_headers(self) -> dict[str, str]:
        """Returns the headers of a request. Raises `Refused` if no token can be had."""
        if self.tokens is not None:
            return {"Authorization": f"Bearer {self.tokens.get().reveal()}"}
        if not self.user:
            return {}
        pair = f"{self.user}:{self.password.reveal()}".encode()
        return {"Authorization": f"Basic {b64encode(pair).decode()}"}


NO_LOGIN = HttpLogin()


def is_login_option(name: str) -> bool:
    """True for the name of an option, in lower case, that says how a broker is reached."""
    is_property = name.startswith(PREFIX) and is_connection_property(name.removeprefix(PREFIX))
    return is_property or name == COMMAND_CONFIG.lower()


def resolve_login_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of the login, with those of the file in its place, all beginning with `kafka.`. Options win
    over the file. Raises `Refused` for one that is wrong."""
    file = options.get(COMMAND_CONFIG.lower())
    given = {name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX)}
    if INLINE_KEY in given:
        raise _refuse(f"{PREFIX}{INLINE_KEY}: Spark shows options in plans. Name a file: ssl.keystore.location")
    chosen = {} if file is None else read_login_file(file)
    chosen |= choose_properties(given, "the options kafka.*")
    return {PREFIX + name: value for name, value in chosen.items()}


def read_login_file(path: str, option: str = COMMAND_CONFIG) -> dict[str, str]:
    """Returns the properties of a file that say how a broker is reached. Raises `Refused` for one that is wrong."""
    where = f"{option} {path}"
    chosen = choose_properties(read_properties_file(path, where), where)
    return {name: value for name, value in chosen.items() if name not in (BROKERS, TIMEOUT_MS)}


def login_of_options(options: Mapping[str, str]) -> HttpLogin:
    """Returns the login of the options of `resolve_login_options`."""
    return make_login({name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX)})


def make_login(properties: Mapping[str, str], tls: TlsOptions | None = None) -> HttpLogin:
    """Returns the login that properties ask for. `tls` replaces what they say of certificates. Raises `Refused` for a
    login that HTTP does not have."""
    protocol = properties.get(PROTOCOL, "").upper()
    if protocol and protocol not in PROTOCOLS:
        raise _refuse(f"{PROTOCOL}={protocol}: it must be one of {', '.join(PROTOCOLS)}")
    context = None
    if protocol.endswith("SSL"):
        context = make_client_context(tls or read_tls_options(properties))
    if not protocol.startswith("SASL_"):
        return HttpLogin(protocol, context)
    mechanism = properties.get(MECHANISM, "").upper()
    if mechanism == OAUTHBEARER:
        return HttpLogin(protocol, context, tokens=_token_source(read_token_request(properties)))
    if mechanism not in SASL_MECHANISMS:
        raise _refuse(f"{MECHANISM}={mechanism}: it must be one of {', '.join((*SASL_MECHANISMS, OAUTHBEARER))}")
    user, password = properties.get(USER, ""), Secret(properties.get(PASSWORD, ""))
    if not user or not password:
        raise _refuse(f"a login needs both {USER} and {PASSWORD}, or sasl.jaas.config")
    if properties.get(TOKEN_LOGIN, "").lower() == "true":
        raise _refuse("HTTP takes no delegation tokens")
    if ":" in user:
        raise _refuse("HTTP takes no user with a colon in its name")
    return HttpLogin(protocol, context, user, password)


@lru_cache(maxsize=TOKEN_SOURCES_MAX)
def _token_source(request: TokenRequest) -> TokenSource:
    """Returns the source of tokens of a client, one in each process: tasks share its token."""
    return TokenSource(request)


def _refuse(why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, why)

"""The login of the command line: `-X security.protocol=SASL_PLAINTEXT` and the user, by librdkafka's names, or a token
by the properties in `--command-config`.

A variable of the environment, such as TIERED_SASL_PASSWORD, keeps the password out of the list of processes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered.clients.properties import MECHANISM, PASSWORD, PROTOCOL, TOKEN_LOGIN, USER
from tiered.clients.tokens import SECONDS, TokenSource, read_token_request
from tiered.config.settings import SASL_MECHANISMS
from tiered.errors import Code, Refused
from tiered.security.sasl_oauthbearer import MECHANISM as OAUTHBEARER
from tiered.security.secret import Secret
from tiered.thread_pool import ThreadPool
from tiered_api.cli.client_settings import ClientSettings
from tiered_api.kafka.client.login import TokenLogin, UserLogin

EXTRAS = (MECHANISM, USER, PASSWORD)
DEFAULT_MECHANISM = "SCRAM-SHA-512"
FETCH_SECONDS = 3 * SECONDS
"""Longest wait for a token."""


def find_login(settings: ClientSettings) -> UserLogin | TokenLogin | None:
    """Returns the login that settings ask for, None without a protocol of SASL.

    Raises `Refused` for a setting that is wrong, or for an option that has no effect.
    """
    options = {name: settings.get(name) for name in (PROTOCOL, *EXTRAS)}
    if not options[PROTOCOL].upper().startswith("SASL_"):
        unused = next((name for name in EXTRAS if settings.is_option(name)), None)
        if unused:
            raise Refused(
                Code.INVALID_REQUEST, f"-X {unused}: it has no effect without -X {PROTOCOL}=SASL_PLAINTEXT or SASL_SSL"
            )
        return None
    mechanism = options[MECHANISM].upper() or DEFAULT_MECHANISM
    if mechanism == OAUTHBEARER:
        return _make_token_login(settings.properties)
    if mechanism not in SASL_MECHANISMS:
        known = ", ".join((*SASL_MECHANISMS, OAUTHBEARER))
        raise Refused(Code.INVALID_REQUEST, f"{MECHANISM}={mechanism}: it must be one of {known}")
    if not options[USER] or not options[PASSWORD]:
        raise Refused(Code.INVALID_REQUEST, f"a login needs both {USER} and {PASSWORD}")
    by_token = settings.get(TOKEN_LOGIN).lower() == "true" and settings.source(USER) is settings.source(TOKEN_LOGIN)
    return UserLogin(options[USER], Secret(options[PASSWORD]), mechanism, by_token)


def _make_token_login(properties: Mapping[str, str]) -> TokenLogin:
    source = TokenSource(read_token_request(properties))
    threads = ThreadPool("tokens", 1)

    async def fetch() -> Secret:
        try:
            return await threads.run(source.get, FETCH_SECONDS)
        except TimeoutError:
            why = f"no token from {source.request.url} within {FETCH_SECONDS:g} s"
            raise Refused(Code.SASL_AUTHENTICATION_FAILED, why) from None

    return TokenLogin(fetch, source.request.extensions)

"""The login of a connection on the client's side: SaslHandshake, and SaslAuthenticate by SCRAM, PLAIN or a token."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from tiered.errors import Code, Refused
from tiered.security import broker_login, sasl_oauthbearer, sasl_plain
from tiered.security.sasl_oauthbearer import OAuthBearerClient
from tiered.security.sasl_plain import PlainClient
from tiered.security.scram import MECHANISMS, ScramClient
from tiered.security.secret import Secret
from tiered_api.kafka.client.connection import BrokerConnection
from tiered_api.kafka.client.error_sentences import explain_error
from tiered_api.kafka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tiered_api.kafka.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

NONCE_BYTES = 24
HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2


class UserLogin(NamedTuple):
    """A user, its password and the mechanism. If `by_token`, they are a delegation token and its HMAC."""

    user: str
    password: Secret
    mechanism: str
    by_token: bool = False


class TokenLogin(NamedTuple):
    """A bearer token, which `fetch` returns anew for each login, and the extensions that go with it."""

    fetch: Callable[[], Awaitable[Secret]]
    extensions: tuple[tuple[str, str], ...] = ()


class LoginClient(Protocol):
    """The client's side of one login by a mechanism."""

    is_done: bool

    def make_first(self) -> bytes:
        """Returns the first message."""
        ...

    def step(self, message: bytes) -> bytes:
        """Returns the next message. Raises `Refused` if the server is not what it should be."""
        ...


async def log_in_user(connection: BrokerConnection, login: UserLogin | TokenLogin, timeout: float) -> None:
    """Logs a user in. Raises `Refused` with the broker's reason, and `Unavailable` if the broker does not reply."""
    if isinstance(login, UserLogin):
        await _log_in(connection, login.mechanism, _make_user_client(login), timeout)
        return
    try:
        token = await login.fetch()
    except BaseException:
        connection.close()
        raise
    await _log_in(connection, sasl_oauthbearer.MECHANISM, OAuthBearerClient(token, login.extensions), timeout)


async def log_in_broker(connection: BrokerConnection, secret: bytes, node_id: int, timeout: float) -> None:
    """Logs a broker in at another one. Raises `Refused` with the other broker's reason."""
    client = broker_login.make_client(secret, node_id, secrets.token_urlsafe(NONCE_BYTES))
    await _log_in(connection, broker_login.MECHANISM, client, timeout)


def _make_user_client(login: UserLogin) -> LoginClient:
    if login.mechanism == sasl_plain.MECHANISM:
        return PlainClient(login.user, login.password)
    mechanism, nonce = MECHANISMS[login.mechanism], secrets.token_urlsafe(NONCE_BYTES)
    return ScramClient(mechanism, login.user, login.password.reveal(), nonce, by_token=login.by_token)


async def _log_in(connection: BrokerConnection, mechanism: str, client: LoginClient, timeout: float) -> None:
    try:
        shaken = await connection.send(
            SaslHandshakeRequest(mechanism), SaslHandshakeResponse, timeout, HANDSHAKE_VERSION
        )
        if shaken.error_code:
            why = f"{connection.address} does not accept {mechanism}: {explain_error(shaken.error_code)}"
            enabled = f"; it has {', '.join(shaken.mechanisms)}" if shaken.mechanisms else ""
            raise Refused(Code.UNSUPPORTED_SASL_MECHANISM, why + enabled)
        token = client.make_first()
        while not client.is_done:
            token = client.step(await _authenticate(connection, token, timeout))
    except BaseException:
        connection.close()
        raise


async def _authenticate(connection: BrokerConnection, token: bytes, timeout: float) -> bytes:
    reply = await connection.send(
        SaslAuthenticateRequest(token), SaslAuthenticateResponse, timeout, AUTHENTICATE_VERSION
    )
    if reply.error_code:
        why = explain_error(reply.error_code, reply.error_message)
        raise Refused(Code.SASL_AUTHENTICATION_FAILED, f"{connection.address} refuses the login: {why}")
    connection.session_lifetime_ms = reply.session_lifetime_ms
    return reply.auth_bytes

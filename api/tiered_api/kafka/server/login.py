"""The login of connections: the state before it, SaslHandshake (17) and SaslAuthenticate (36), and its renewal.

A connection of a listener with login has this handler in place of the dispatch until it has proved a principal. Before
that it may send ApiVersions and log in, in frames of `LOGIN_FRAME_BYTES`, within `LOGIN_SECONDS`. Any other request
ends the connection and is not parsed. So no handler can reply too early, and the dispatch checks nothing.

The reply to a failed login comes after a delay, and ends the connection: nothing behind the login is read. The reply is
the same for an unknown user and a wrong password.

With `connections.max.reauth.ms`, a connection has to log in again in time, with the same mechanism and user (KIP-368).
Later it may do nothing else: another request ends it. So a client may log in again once it has something to send.
A login by token lasts until the token expires at most. A delegation token that is removed ends its logins (KIP-48).
Version 0 of SaslHandshake is refused: after it, clients send messages without headers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Protocol

from tiered.config.settings import Settings
from tiered.errors import Code, Refused
from tiered.security import broker_login, sasl_oauthbearer, sasl_plain
from tiered.security.delegation_tokens import DelegationToken
from tiered.security.principal import USER, Caller, Principal, read_principal
from tiered.security.sasl_oauthbearer import OAuthBearerServer
from tiered.security.sasl_plain import PlainServer
from tiered.security.scram import (
    FAILED,
    MECHANISMS,
    CredentialShape,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    list_shapes,
)
from tiered_api.kafka.protocol.apis import ALL_APIS, API_VERSIONS
from tiered_api.kafka.protocol.codec import Malformed, decode, encode
from tiered_api.kafka.protocol.headers import RequestHeader, decode_request_header, encode_response_header
from tiered_api.kafka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tiered_api.kafka.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.context.context import KafkaContext
from tiered_api.kafka.server.handlers import api_versions
from tiered_api.kafka.server.rights.inter_broker_auth import is_inter_broker_listener
from tiered_api.kafka.server.slots.response_slot import RequestConnection, ResponseSlot, Spawn
from tiered_api.kafka.server.slots.socket_writer import Part

log = logging.getLogger(__name__)

SASL_HANDSHAKE, SASL_AUTHENTICATE, ALTER_USER_SCRAM_CREDENTIALS, TIERED_SUBMIT = 17, 36, 51, 20002
LOGIN_FRAME_BYTES = 64 << 10
"""Largest frame before login."""
LOGIN_SECONDS = 10.0
"""Time for the login of a new connection."""
TOLD_APIS = (ALTER_USER_SCRAM_CREDENTIALS, TIERED_SUBMIT)
"""A login that ends by a request of its own connection gets the reply to that request."""
LIFETIME_MS_MIN = 1_000
"""Lifetime of a login by a token that has expired by the clock of this broker, and not yet by that of its issuer."""
NONCE_BITS = 160
_SIZE = Struct(">i")


class LoginMachine(Protocol):
    """The server's side of one login by a mechanism."""

    user: str
    """The user, once it has proved itself."""
    claimed_user: str
    """The user that the client names, proved or not; "" before it names one."""

    def step(self, message: bytes) -> bytes:
        """Returns the reply to the next message. Raises `Refused` if the login failed."""
        ...


class LoginState:
    """How far the login of one connection is. `machine` is there between SaslHandshake and its end. `has_failed`: a
    login has failed, and its failure is recorded."""

    __slots__ = ("credential", "has_failed", "machine", "mechanism", "principal", "proven_mechanism", "token_id")

    def __init__(self) -> None:
        self.mechanism = ""
        self.machine: LoginMachine | None = None
        self.has_failed = False
        self.principal: Principal | None = None
        """The principal of the last login."""
        self.proven_mechanism = ""
        """The mechanism of the last login."""
        self.token_id = ""
        """The delegation token of the last login; "" for a login without one."""
        self.credential: ScramCredential | None = None
        """The credential that the last login proved; None for other mechanisms than SCRAM."""


class LoginConnection(RequestConnection, Protocol):
    """The connection of a client, with what its login needs."""

    started_ns: int
    """Time at which the request began, by the monotonic clock."""
    login: LoginState | None
    """None on a listener without login."""

    @property
    def pending(self) -> int:
        """Number of requests whose replies are missing."""

    @property
    def oldest_slot(self) -> ResponseSlot:
        """Place of the reply that leaves next, while any is pending."""

    def on_login(self, caller: Caller, lifetime_seconds: float) -> None:
        """Serves the requests of a caller from now on. A lifetime above 0 is the time until the next login."""

    def end_login_within(self, seconds: float) -> None:
        """Ends the time of a login that ends anyway after so many seconds, unless it ends or has ended earlier."""

    def drain(self) -> None:
        """Reads no more requests, and closes the connection once all replies are sent."""


class LoginHandler:
    """The logins of one server."""

    def __init__(self, context: KafkaContext, spawn: Spawn) -> None:
        self._context = context
        self._spawn = spawn
        self._rng = context.broker.world.rng.stream("login")
        self._users_of_shapes: object = None
        self._shapes: dict[str, Sequence[CredentialShape]] = {}

    def handle_request(
        self,
        connection: LoginConnection,
        frame: memoryview,
        api_key: int,
        version: int,
        correlation_id: int,
        body: int,
    ) -> Sequence[Part] | None:
        """Handles a request before the login, as `Dispatch.handle_request` does after it."""
        connection.api_key = api_key
        connection.started_ns = self._context.clock.mono_ns()
        login = connection.login
        assert login is not None
        api = ALL_APIS.get(api_key)
        if api is None or not api.before_login:
            connection.refuse("login", f"api {api_key} before the login")
            return None
        try:
            if api_key == API_VERSIONS:
                self._context.requests[api_key] += 1
                return [api_versions.encode_response(frame, version, correlation_id, self._context.broker.image)]
            return self._handle_step(connection, login, frame)
        except Malformed as error:
            connection.refuse("malformed", f"{api.name} version {version}: {error}")
            return None

    def handle_again(self, connection: LoginConnection, frame: memoryview) -> Sequence[Part] | None:
        """Handles SaslHandshake or SaslAuthenticate of a connection that has logged in, or that needs no login."""
        login = connection.login
        if login is not None and self._may_log_in_again(connection, login):
            return self._handle_step(connection, login, frame)
        header = decode_request_header(frame)
        if header.api is None:
            connection.refuse("unsupported", f"api {header.key} version {header.version}")
            return None
        self._context.requests[header.key] += 1
        return _encode_refusal(header, Code.ILLEGAL_SASL_STATE, "this connection needs no login now", [])

    def end_revoked(self, connection: LoginConnection) -> None:
        """Ends a connection if the credential that its login proved is not there any more: its user was removed or has
        another password, or the secret of the brokers was rotated."""
        login = connection.login
        if login is None or login.credential is None or login.principal is None:
            return
        if login.proven_mechanism == broker_login.MECHANISM:
            known = self._find_broker(broker_login.user_name(int(login.principal.name)))
            why = "the secret of the brokers was rotated"
        else:
            known = self._find_user(login.proven_mechanism, login.principal.name)
            why = f"{login.principal} was removed or has another password"
        if login.credential not in known:
            login.credential = None  # a connection that waits for its last reply ends once
            caller = Caller(login.principal, connection.peer.rpartition(":")[0])
            self._context.broker.audit.record_ended_login(caller, login.proven_mechanism, connection.listener)
            if connection.pending == 1 and connection.oldest_slot.api_key in TOLD_APIS:
                connection.drain()
            else:
                connection.refuse("login_ended", why)

    def follow_token(self, connection: LoginConnection) -> None:
        """Ends a connection whose delegation token was removed. Shortens its login if the token expires earlier now."""
        login = connection.login
        if login is None or not login.token_id or login.principal is None:
            return
        token = self._context.broker.image.delegation_tokens.get(login.token_id)
        if token is not None:
            left_ms = max(0, token.expiry_ms - self._context.clock.wall_ms())
            connection.end_login_within(left_ms / 1000)
            return
        caller = Caller(login.principal, connection.peer.rpartition(":")[0], True)
        self._context.broker.audit.record_ended_login(caller, login.proven_mechanism, connection.listener)
        connection.refuse("login_ended", "its delegation token was removed")

    # -- one step -----------------------------------------------------------------------------------------------------

    def _handle_step(self, connection: LoginConnection, login: LoginState, frame: memoryview) -> Sequence[Part] | None:
        header = decode_request_header(frame)
        if header.api is None:
            connection.refuse("unsupported", f"api {header.key} version {header.version}")
            return None
        self._context.requests[header.key] += 1
        try:
            if header.key == SASL_HANDSHAKE:
                request = decode(SaslHandshakeRequest, header.version, frame, header.position)
                return self._shake_hands(connection, login, header, request.mechanism)
            message = decode(SaslAuthenticateRequest, header.version, frame, header.position).auth_bytes
            return self._authenticate(connection, login, header, message)
        except Refused as refused:
            self._record_failure(connection, login, refused)
            login.machine = None
            reply = _encode_refusal(header, refused.code, refused.why, self._enabled_mechanisms(connection))
            self._spawn(connection, partial(self._reply_late, reply), header.api.name)
            connection.drain()
            return None

    def _record_failure(self, connection: LoginConnection, login: LoginState, refused: Refused) -> None:
        """Records a failed login once. Its client may leave before the last reply."""
        if not login.has_failed:
            login.has_failed = True
            claimed = login.machine.claimed_user if login.machine is not None else ""
            self._context.refusals.record("login", connection.peer, refused.why, connection.listener, claimed)

    def _shake_hands(
        self, connection: LoginConnection, login: LoginState, header: RequestHeader, mechanism: str
    ) -> Sequence[Part]:
        if header.version == 0:
            raise Refused(Code.UNSUPPORTED_VERSION, "SaslHandshake 0 is not served, only 1 is")
        if login.machine is not None:
            raise Refused(Code.ILLEGAL_SASL_STATE, "a login has begun already")
        if login.proven_mechanism and mechanism != login.proven_mechanism:
            raise Refused(Code.ILLEGAL_SASL_STATE, f"the login of this connection used {login.proven_mechanism}")
        login.machine = self._make_machine(connection, mechanism)
        login.mechanism = mechanism
        return _encode(header, SaslHandshakeResponse(mechanisms=self._enabled_mechanisms(connection)))

    def _make_machine(self, connection: LoginConnection, mechanism: str) -> LoginMachine:
        broker = self._context.broker
        nonce = f"{self._rng.getrandbits(NONCE_BITS):040x}"
        secret = broker.salt_secret
        if mechanism == broker_login.MECHANISM and is_inter_broker_listener(self._context, connection.listener):
            return ScramServer(ScramMechanism.SHA_256, self._find_broker, nonce, secret)
        enabled = self._enabled_mechanisms(connection)
        if mechanism not in enabled:
            raise Refused(Code.UNSUPPORTED_SASL_MECHANISM, f"enabled mechanisms: {', '.join(enabled)}")
        if mechanism == sasl_oauthbearer.MECHANISM:
            return OAuthBearerServer(broker.tokens.verify)
        if mechanism == sasl_plain.MECHANISM:
            return PlainServer(broker.settings.plain_users(connection.listener), secret)
        scram = MECHANISMS[mechanism]
        find_token = partial(broker.delegation_tokens.find_credentials, scram)
        shapes = self._list_shapes(mechanism)
        return ScramServer(scram, partial(self._find_user, mechanism), nonce, secret, find_token, shapes)

    def _authenticate(
        self, connection: LoginConnection, login: LoginState, header: RequestHeader, message: bytes
    ) -> Sequence[Part] | None:
        machine, mechanism = login.machine, login.mechanism
        if machine is None:
            raise Refused(Code.ILLEGAL_SASL_STATE, "SaslAuthenticate comes after SaslHandshake")
        token = machine.step(message)
        if not machine.user:
            reply = _encode(header, SaslAuthenticateResponse(error_message=None, auth_bytes=token))
            if not isinstance(machine, OAuthBearerServer) or machine.refused is None:
                return reply
            self._record_failure(connection, login, machine.refused)
            self._spawn(connection, partial(self._reply_late, reply), "SaslAuthenticate")
            return None
        delegation = self._find_delegation(machine)
        if delegation is not None:
            principal = read_principal(delegation.owner)
        elif mechanism == broker_login.MECHANISM:
            principal = broker_login.principal_of(machine.user)
        else:
            principal = Principal(USER, machine.user)
        if login.principal is not None and principal != login.principal:
            raise Refused(
                Code.SASL_AUTHENTICATION_FAILED,
                f"the connection belongs to {login.principal}, and cannot become that of another principal",
            )
        lifetime_ms = self._lifetime_ms(connection, mechanism)
        expiry_ms = delegation.expiry_ms if delegation is not None else None
        if isinstance(machine, OAuthBearerServer):
            expiry_ms = int(machine.expires_at * 1000)
        if expiry_ms is not None:
            left_ms = max(expiry_ms - self._context.clock.wall_ms(), LIFETIME_MS_MIN)
            lifetime_ms = min(lifetime_ms or left_ms, left_ms)
        login.machine, login.principal, login.proven_mechanism = None, principal, mechanism
        login.token_id = "" if delegation is None else delegation.token_id
        login.credential = machine.credential if isinstance(machine, ScramServer) and delegation is None else None
        caller = Caller(principal, connection.peer.rpartition(":")[0], delegation is not None)
        self._context.broker.audit.record_login(caller, mechanism, connection.listener)
        connection.on_login(caller, lifetime_ms / 1000)
        log.debug("login accepted peer=%s listener=%s mechanism=%s", connection.peer, connection.listener, mechanism)
        return _encode(
            header, SaslAuthenticateResponse(error_message=None, auth_bytes=token, session_lifetime_ms=lifetime_ms)
        )

    async def _reply_late(self, reply: Sequence[Part]) -> Sequence[Part]:
        """Returns the reply to a failed login after a delay."""
        await self._context.clock.sleep(self._context.broker.settings.connection_failed_authentication_delay_ms / 1000)
        return reply

    def _find_delegation(self, machine: LoginMachine) -> DelegationToken | None:
        """Returns the delegation token that has just proved a login; None for a login without one."""
        if not isinstance(machine, ScramServer) or not machine.is_by_token:
            return None
        found = self._context.broker.delegation_tokens.find(machine.user)
        if found is None:
            raise Refused(Code.SASL_AUTHENTICATION_FAILED, FAILED)
        return found

    def _find_broker(self, user: str) -> tuple[ScramCredential, ...]:
        return broker_login.find_credentials(self._context.broker.secrets, user)

    def _find_user(self, mechanism: str, user: str) -> tuple[ScramCredential, ...]:
        found = self._context.broker.image.scram.get(user, {}).get(mechanism)
        return () if found is None else (found,)

    def _list_shapes(self, mechanism: str) -> Sequence[CredentialShape]:
        """Returns the shapes of the credentials of all users. They are found anew after a change of users."""
        users = self._context.broker.image.scram
        if users is not self._users_of_shapes:
            self._users_of_shapes = users
            self._shapes = {
                name: list_shapes(found[name] for found in users.values() if name in found) for name in MECHANISMS
            }
        return self._shapes[mechanism]

    def _settings(self, connection: LoginConnection) -> Settings:
        return self._context.broker.settings.for_listener(connection.listener)

    def _enabled_mechanisms(self, connection: LoginConnection) -> list[str]:
        return list(self._settings(connection).sasl_enabled_mechanisms)

    def _may_log_in_again(self, connection: LoginConnection, login: LoginState) -> bool:
        expires = login.proven_mechanism == sasl_oauthbearer.MECHANISM or bool(login.token_id)
        return expires or self._lifetime_ms(connection, login.proven_mechanism) > 0

    def _lifetime_ms(self, connection: LoginConnection, mechanism: str) -> int:
        """Returns the time until a connection has to log in again; 0 for ever. Brokers do not log in again."""
        return 0 if mechanism == broker_login.MECHANISM else self._settings(connection).connections_max_reauth_ms


def _encode_refusal(header: RequestHeader, code: Code, why: str, mechanisms: list[str]) -> Sequence[Part]:
    if header.key == SASL_HANDSHAKE:
        return _encode(header, SaslHandshakeResponse(code.number, mechanisms))
    return _encode(header, SaslAuthenticateResponse(code.number, why))


def _encode(header: RequestHeader, response: Message) -> Sequence[Part]:
    head = encode_response_header(header.key, header.version, header.correlation_id)
    body = encode(response, header.version)
    return [b"".join((_SIZE.pack(len(head) + len(body)), head, body))]

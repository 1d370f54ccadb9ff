"""The login of HTTP requests: the principal that each request comes from.

`authentication.method` says which logins there are. BEARER is a token (RFC 6750). BASIC is HTTP Basic with a user of
the cluster (SCRAM). The broker keeps no password, so it salts and iterates each password that it gets, as SCRAM does,
in a thread. It remembers what was proved, until the user changes. Streams ask again while they last. The client
certificate of a connection is a login too, if there is no other one.

The reply to a failed login comes after a delay. An unknown user costs the same work as a wrong password, and gets the
same reply.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import NamedTuple

from tiered.access.token_validator import digest_token
from tiered.config.settings import BEARER
from tiered.errors import Refused, Unavailable
from tiered.fair_slots import FairSlots
from tiered.log_limiter import LogLimiter
from tiered.networks import neighbourhood_of, network_of
from tiered.security.http_basic import SCHEME, UserPassword, parse_basic
from tiered.security.principal import ANONYMOUS, USER, Caller, Principal
from tiered.security.scram import MECHANISMS, ScramCredential, ScramMechanism, has_password, make_absent_credential
from tiered.thread_pool import ThreadPool
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import BROKER_NOT_AVAILABLE, NOT_AUTHENTICATED, HttpError
from tiered_api.http.exchange.limits import Exhausted
from tiered_api.http.exchange.request import HttpRequest

log = logging.getLogger(__name__)

NONE, BASIC = "NONE", "BASIC"
HTTP = "HTTP"
"""Name of the listener in the audit log."""
OPEN_ROUTES = ("healthz", "get_node", "redirect_to_console", "get_console_page", "get_console_file")
"""Operations that need no login: probes and other brokers use them."""
PROOFS_MAX = 1
"""Most passwords that are checked at the same time."""
WAITING_MAX = 64
PROOF_SECONDS = 5.0
PROVEN_MAX = 1_000
"""Most logins that are remembered; the oldest goes first."""
CHALLENGES = {BASIC: 'Basic realm="tiered", charset="UTF-8"', BEARER: 'Bearer realm="tiered"'}
INVALID_TOKEN = ', error="invalid_token"'
TOKEN_SCHEME = "bearer"
FAILED = "authentication failed: the user or the password is wrong"

Credentials = Mapping[str, ScramCredential]


class _Proven(NamedTuple):
    user: str
    credentials: Credentials


class _Login(NamedTuple):
    principal: Principal
    is_good: Callable[[], bool]
    """True while what the login proved has not changed."""
    is_known: Callable[[], bool]
    """True while that is so and needs no proof. Has no secret."""
    has_user: Callable[[], bool]
    """True while the user has one of the passwords that it had. Has no secret."""


class Authenticator:
    """The logins of one HTTP listener."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._methods = tuple(each for each in context.broker.settings.authentication_method if each != NONE)
        self._slots = FairSlots(PROOFS_MAX, WAITING_MAX)
        self._threads = ThreadPool("http-login", PROOFS_MAX)
        self._key = context.broker.world.rng.stream("http login").randbytes(32)
        self._proven: dict[bytes, _Proven] = {}
        """Logins that succeeded, by a keyed hash of the user and the password."""
        self._log_limiter = LogLimiter(context.clock)

    @property
    def is_required(self) -> bool:
        """True if a request needs a login."""
        return bool(self._methods)

    def close(self) -> None:
        """Ends the threads."""
        self._threads.close()

    async def authenticate(self, request: HttpRequest) -> None:
        """Sets the caller of a request. Raises `HttpError` 401 without a good login, 503 if it cannot be checked."""
        if not self._methods:
            return
        sent = request.headers.getall("Authorization", ())
        is_open = request.operation in OPEN_ROUTES
        if not sent and request.caller.principal != ANONYMOUS:
            return
        has_users = self._context.broker.served.is_set()
        if is_open and (not sent or not has_users):
            request.lacks_login = True
            return
        if not has_users:
            raise HttpError(BROKER_NOT_AVAILABLE, "the broker is starting; see /healthz", close=True)
        if not sent:
            raise self._challenge("this address needs a login")
        if len(sent) > 1:
            raise HttpError(400, "the header Authorization is repeated", close=True)
        login = await self._prove(sent[0], request.peer)
        request.caller = Caller(login.principal, request.peer)
        request.has_login, request.has_known_login, request.has_user = login.is_good, login.is_known, login.has_user

    async def _prove(self, sent: str, peer: str) -> _Login:
        """Returns the principal of a login. Raises `HttpError` 401 after a delay if it is wrong."""
        scheme, _, text = sent.partition(" ")
        begun_ns = self._context.clock.mono_ns()
        why, is_token = FAILED, scheme.lower() == TOKEN_SCHEME and BEARER in self._methods
        claimed_user = ""
        if is_token:
            try:
                token = text.strip(" ")
                is_known = partial(self._context.broker.tokens.is_current, digest_token(token))
                principal, is_good = self._prove_token(token, peer), partial(self._is_good_token, token)
                return _Login(principal, is_good, is_known, lambda: True)
            except Refused as refused:
                why = refused.why
        elif scheme.lower() == SCHEME and BASIC in self._methods:
            parsed = parse_basic(text)
            claimed_user = parsed.user if parsed is not None else ""
            proven = await self._prove_password(parsed, peer) if parsed is not None else None
            if proven is not None:
                is_good = partial(self._is_unchanged, proven)
                return _Login(Principal(USER, proven.user), is_good, is_good, partial(self._is_left, proven))
        # The delay begins with the request, so that it hides the time of the check.
        delay = self._context.broker.settings.connection_failed_authentication_delay_ms / 1000
        await self._context.clock.sleep(max(0.0, delay - (self._context.clock.mono_ns() - begun_ns) * 1e-9))
        suppressed = self._log_limiter.admit()
        if suppressed is not None:
            log.warning("http login refused peer=%s suppressed=%d", peer, suppressed)
        self._context.broker.audit.record_refused_login(peer, HTTP, why, claimed_user)
        raise self._challenge(why, INVALID_TOKEN if is_token else "")

    def _prove_token(self, token: str, peer: str) -> Principal:
        """Returns the principal of a token. Raises `Refused` with the reason."""
        tokens = self._context.broker.tokens
        is_new = not tokens.has_accepted(token)
        principal = Principal(USER, tokens.verify(token).name)
        if is_new:
            self._context.broker.audit.record_login(Caller(principal, peer), BEARER, HTTP)
        return principal

    def _is_good_token(self, token: str) -> bool:
        try:
            self._context.broker.tokens.verify(token)
        except Refused:
            return False
        return True

    def _is_unchanged(self, proven: _Proven) -> bool:
        return self._find_credentials(proven.user) == proven.credentials

    def _is_left(self, proven: _Proven) -> bool:
        """True while the user has one of the credentials that it had: it may move from one mechanism to the other."""
        return bool(self._find_credentials(proven.user).items() & proven.credentials.items())

    async def _prove_password(self, parsed: UserPassword, peer: str) -> _Proven | None:
        # The user and the password, not the text: one login has many texts, which would push out those of others.
        key = hmac.digest(self._key, f"{parsed.user}\0{parsed.password.reveal()}".encode(), "sha256")
        proven = self._proven.get(key)
        if proven is not None:
            if self._is_unchanged(proven):
                return proven
            del self._proven[key]
        credentials = self._find_credentials(parsed.user)
        tried = list_tried(credentials, self._key, parsed.user)
        fits = await self._compute(partial(_fits_any, tried, parsed.password.reveal()), peer)
        if not fits or not credentials or self._find_credentials(parsed.user) != credentials:
            return None
        if len(self._proven) >= PROVEN_MAX:
            del self._proven[next(iter(self._proven))]
        proven = self._proven[key] = _Proven(parsed.user, credentials)
        self._context.broker.audit.record_login(Caller(Principal(USER, parsed.user), peer), BASIC, HTTP)
        return proven

    async def _compute(self, call: partial[bool], peer: str) -> bool:
        """Returns the outcome of a check in a thread. Neighbourhoods take turns, and the addresses in each of them: one
        with very many addresses delays others by one check."""
        try:
            async with self._context.timeout(PROOF_SECONDS, PROOF_SECONDS), self._take_turn(peer):
                return await self._threads.run(call)
        except (TimeoutError, Refused, Unavailable):
            raise Exhausted("too many logins wait for their check") from None

    def _take_turn(self, peer: str) -> AbstractAsyncContextManager[None]:
        return self._slots.take(neighbourhood_of(peer), network_of(peer))

    def _find_credentials(self, user: str) -> Credentials:
        return self._context.broker.image.scram.get(user, {})

    def _challenge(self, why: str, token_fault: str = "") -> HttpError:
        challenges = tuple(
            ("WWW-Authenticate", CHALLENGES[each] + (token_fault if each == BEARER else "")) for each in self._methods
        )
        return HttpError(NOT_AUTHENTICATED, why, challenges)


def list_tried(credentials: Credentials, secret: bytes, user: str) -> list[tuple[ScramMechanism, ScramCredential]]:
    """Returns the credentials that a password is tried with: one of each mechanism. No password fits those that the
    user does not have, and their work is that of credentials with the default iterations."""
    return [
        (mechanism, credentials.get(name) or make_absent_credential(mechanism, secret, user))
        for name, mechanism in MECHANISMS.items()
    ]


def _fits_any(tried: Sequence[tuple[ScramMechanism, ScramCredential]], password: str) -> bool:
    """True if one of the credentials has this password. All are tried, so that the time is the same."""
    found = [has_password(mechanism, each, password) for mechanism, each in tried]
    return any(found)

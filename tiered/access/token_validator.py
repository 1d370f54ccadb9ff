"""The bearer tokens of this broker's clients: the public keys that check them, kept fresh, and the tokens in use.

The keys come from a file, or from an address that the operator has allowed. No redirect is followed, and nothing that a
token names is fetched. A token with an unknown key makes the broker look for newer keys, at most once in
`PAUSE_SECONDS`. If newer keys cannot be had, for whatever reason, the log says so and the old ones stay. The broker
looks again after a pause that grows up to the usual time between two looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import ssl
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from tiered.config.settings import Settings
from tiered.errors import Code, Refused, Unavailable
from tiered.ports import Clock
from tiered.security.bearer_tokens import (
    KEY_SET_BYTES,
    KeySet,
    TokenRules,
    UnknownKey,
    VerifiedToken,
    read_key_set,
    verify_token,
)
from tiered.system.http_request import read_whole, send_request
from tiered.thread_pool import ThreadPool

log = logging.getLogger(__name__)

FETCH_SECONDS = 10.0
PAUSE_SECONDS = 10.0
"""Shortest time between two looks for newer keys, and the time between two looks at a file."""
FAILURES_MAX = 10
"""Most looks without success that make the pause before the next one longer."""
IDS_SHOWN = 10
"""Ids of keys in a line of the log."""
REMEMBERED_MAX = 1_000
"""Most tokens that are remembered; the oldest goes first."""


class _Remembered(NamedTuple):
    verified: VerifiedToken
    keys: KeySet


class TokenValidator:
    """Judges tokens by the settings of one broker. Without a setting for the keys, it refuses all."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._url = settings.sasl_oauthbearer_jwks_endpoint_url
        self._refresh_seconds = settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._rules = TokenRules(
            settings.sasl_oauthbearer_expected_issuer,
            settings.sasl_oauthbearer_expected_audience,
            settings.sasl_oauthbearer_clock_skew_seconds,
            settings.sasl_oauthbearer_sub_claim_name,
        )
        self._is_used = settings.uses_tokens
        self.keys = KeySet()
        """The public keys that are known now."""
        self._text = b""
        self._are_newer_wanted = asyncio.Event()
        self._remembered: dict[bytes, _Remembered] = {}
        self._threads = ThreadPool("jwks", 1)
        self._refresher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Reads the keys, and keeps them fresh. Raises `Refused` (INVALID_CONFIG) if a file cannot be used."""
        if not self._is_used:
            return
        await self._load(is_needed=self._url.startswith("file:"))
        self._refresher = asyncio.create_task(self._refresh(), name="jwks")

    async def close(self) -> None:
        """Ends the looks for newer keys."""
        if self._refresher is not None:
            self._refresher.cancel()
            await asyncio.gather(self._refresher, return_exceptions=True)
        self._threads.close()

    def has_accepted(self, token: str) -> bool:
        """True if the token was accepted before, and is remembered."""
        return digest_token(token) in self._remembered

    def is_current(self, digest: bytes) -> bool:
        """True if the token with this digest was accepted under the keys of now, and has not expired. False does not
        mean that it is refused: the token itself is needed then."""
        known = self._remembered.get(digest)
        return known is not None and self._is_good(known)

    def _is_good(self, known: _Remembered) -> bool:
        return known.keys is self.keys and self._clock.wall_ms() / 1000 < known.verified.expires_at

    def verify(self, token: str) -> VerifiedToken:
        """Returns the principal of a token. Raises `Refused` with the reason."""
        digest = digest_token(token)
        known = self._remembered.pop(digest, None)
        if known is not None and self._is_good(known):
            self._remembered[digest] = known
            return known.verified
        try:
            verified = verify_token(token, self.keys, self._rules, self._clock.wall_ms() / 1000)
        except UnknownKey:
            self._are_newer_wanted.set()
            raise
        if len(self._remembered) >= REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[digest] = _Remembered(verified, self.keys)
        return verified

    async def _refresh(self) -> None:
        failures = 0
        while True:
            await self._clock.sleep(PAUSE_SECONDS)
            if len(self.keys) and not self._url.startswith("file:"):
                pause = PAUSE_SECONDS * 2**failures if failures else self._refresh_seconds
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(min(pause, self._refresh_seconds) - PAUSE_SECONDS, 0)):
                        await self._are_newer_wanted.wait()
            self._are_newer_wanted.clear()
            failures = 0 if await self._load() else min(failures + 1, FAILURES_MAX)

    async def _load(self, *, is_needed: bool = False) -> bool:
        """Takes the keys of now. Returns False if they cannot be had."""
        try:
            text = await self._threads.run(lambda: read_url(self._url), 2 * FETCH_SECONDS)
            if text != self._text:
                keys = read_key_set(text)
                if is_needed and not len(keys):
                    raise Refused(Code.INVALID_CONFIG, "the key set is empty")
                self.keys, self._text = keys, text
                log.info("keys of tokens were read keys=%d ids=%s", len(keys), ",".join(keys.ids[:IDS_SHOWN]))
        except Exception as error:  # the looks for newer keys must never end
            why = _find_reason(error)
            if is_needed:
                raise Refused(Code.INVALID_CONFIG, f"sasl.oauthbearer.jwks.endpoint.url={self._url}: {why}") from None
            is_unknown = not isinstance(error, (OSError, Refused, Unavailable))
            what = "keys of tokens cannot be read: the known ones stay keys=%d why=%s"
            log.error(what, len(self.keys), why, exc_info=is_unknown)
            return False
        return True


def _find_reason(error: Exception) -> str:
    """Returns why keys were not taken, as a sentence for operators. Only an unknown error has its type there."""
    if isinstance(error, Refused):
        return error.why
    if isinstance(error, (OSError, Unavailable)):
        return f"it cannot be read: {getattr(error, 'strerror', None) or error}"
    return f"{type(error).__name__}: {error}"


def digest_token(token: str) -> bytes:
    """Returns what stands for a token in memory."""
    return sha256(token.encode(errors="surrogateescape")).digest()


def read_url(url: str) -> bytes:
    """Returns the bytes of a file or of a web resource; called in a thread. Raises `OSError` if they cannot be had in
    time, or are too many."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with open(unquote(parts.path), "rb") as file:
            return read_whole(file.read, KEY_SET_BYTES, FETCH_SECONDS)
    reply = send_request(
        "GET", parts, {"Accept": "application/json"},
        tls=ssl.create_default_context, bytes_max=KEY_SET_BYTES, seconds=FETCH_SECONDS,
    )  # fmt: skip
    if reply.status != http.client.OK:
        raise OSError(f"the reply has the status {reply.status}")
    return reply.body

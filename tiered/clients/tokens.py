"""Tokens for OAUTHBEARER: a token server issues them for the credentials of a client (RFC 6749), or a file has one.

No redirect is followed. The size of a reply and the time to wait for it are bounded. No error has a secret.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote_plus, unquote, urlencode, urlsplit

from tiered.clients.properties import (
    CLIENT_ID,
    CLIENT_SECRET,
    EXTENSION,
    SCOPE,
    TOKEN_TRUST,
    TOKEN_URL,
    URL_ENCODE,
    read_trust_store,
)
from tiered.errors import Code, Refused
from tiered.security.bearer_tokens import TOKEN_MAX
from tiered.security.secret import Secret
from tiered.system.http_request import send_request
from tiered.system.tls_contexts import make_client_context
from tiered.system.tls_options import Store, TlsOptions

SECONDS = 10.0
"""Deadline of each step of a request to the token server."""
REPLY_BYTES_MAX = 1 << 20
LIFE_SECONDS_MAX = 10 * 365 * 86_400
USED_SHARE = 0.8
"""Share of its life for which a token is used, as in Kafka's clients: then the next one is fetched."""


class TokenRequest(NamedTuple):
    """The way to a token: `url` is that of a token server, or of a file."""

    url: str
    client_id: str = ""
    secret: Secret = Secret()
    scope: str = ""
    encodes: bool = False
    """True to encode id and secret for a URL, as RFC 6749 says; Kafka's clients do not by default."""
    trust: Store = Store()
    """The authorities that sign the certificates of token servers; empty for those of the machine."""
    extensions: tuple[tuple[str, str], ...] = ()


def read_token_request(properties: Mapping[str, str]) -> TokenRequest:
    """Returns the way to a token by the properties of a client. Raises `Refused` for one that is missing or wrong."""
    request = TokenRequest(
        properties.get(TOKEN_URL, ""),
        properties.get(CLIENT_ID, ""),
        Secret(properties.get(CLIENT_SECRET, "")),
        properties.get(SCOPE, ""),
        properties.get(URL_ENCODE, "false").lower() == "true",
        read_trust_store(properties, TOKEN_TRUST),
        tuple(
            (name.removeprefix(EXTENSION), value) for name, value in properties.items() if name.startswith(EXTENSION)
        ),
    )
    parts = _split(request.url)
    if parts.scheme == "file" and parts.path:
        return request
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        why = "it must be the URL of a token server (https://...) or of a file (file:///...)"
        raise Refused(Code.INVALID_REQUEST, f"{TOKEN_URL}: {why}")
    if not request.client_id or not request.secret:
        raise Refused(Code.INVALID_REQUEST, f"a token server needs both {CLIENT_ID} and {CLIENT_SECRET}")
    return request


class TokenSource:
    """The newest token of one client. Plain, blocking code; threads may share it."""

    def __init__(self, request: TokenRequest) -> None:
        self.request = request
        self._lock = threading.Lock()
        self._token = Secret()
        self._good_until = 0.0
        """End of the use of the token, on the monotonic clock."""

    def get(self) -> Secret:
        """Returns a token, fetched if there is none or the last one is about to expire. Raises `Refused`
        (SASL_AUTHENTICATION_FAILED) if none can be had."""
        with self._lock:
            if time.monotonic() >= self._good_until:
                self._fetch()
            return self._token

    def _fetch(self) -> None:
        parts = _split(self.request.url)
        if parts.scheme == "file":
            self._token = _read_file(unquote(parts.path))
            return  # a file is read each time: its writer renews it
        reply = _post(parts, self.request)
        token = reply.get("access_token") or reply.get("id_token")
        if not isinstance(token, str) or not _is_token(token):
            raise _refuse(self.request.url, "the reply has no access_token")
        life = _life_seconds(reply.get("expires_in"), token)
        self._token, self._good_until = Secret(token), time.monotonic() + USED_SHARE * life


def _read_file(path: str) -> Secret:
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(TOKEN_MAX + 2).strip()
    except OSError as error:
        raise _refuse(f"file://{path}", f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if not _is_token(text):
        raise _refuse(f"file://{path}", f"it must have one token of at most {TOKEN_MAX} characters")
    return Secret(text)


def _post(parts: SplitResult, request: TokenRequest) -> Mapping[str, Any]:
    """Returns the reply of the token server."""
    form = {"grant_type": "client_credentials"} | ({"scope": request.scope} if request.scope else {})
    pair = (request.client_id, request.secret.reveal())
    credentials = ":".join(map(quote_plus, pair) if request.encodes else pair)
    headers = {
        "Authorization": f"Basic {b64encode(credentials.encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    try:
        sent = send_request(
            "POST", parts, headers, urlencode(form),
            tls=lambda: make_client_context(TlsOptions(trust=request.trust)),
            bytes_max=REPLY_BYTES_MAX, seconds=SECONDS,
        )  # fmt: skip
    except OSError as error:
        raise _refuse(request.url, f"{type(error).__name__}: {error}") from None
    try:
        reply = json.loads(sent.body)
    except (ValueError, RecursionError):
        reply = None
    if sent.status != http.client.OK:
        raise _refuse(request.url, f"the reply has the status {sent.status}{_describe(reply)}")
    if not isinstance(reply, dict):
        raise _refuse(request.url, "the reply is no JSON object")
    return reply


def _describe(reply: object) -> str:
    """Returns the error of a token server in its own words (RFC 6749, 5.2), which have no secrets."""
    code = reply.get("error") if isinstance(reply, dict) else None
    return f": {code}" if isinstance(code, str) and code.isascii() and code.isprintable() and len(code) < 100 else ""


def _life_seconds(expires_in: object, token: str) -> float:
    """Returns the seconds for which a token is good: by the reply, else by its own claim. 0 if neither says it: then
    the token is used once."""
    try:
        if isinstance(expires_in, int | float | str):
            seconds = float(expires_in)
        else:
            body = token.split(".")[1]
            claims = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
            seconds = float(claims["exp"]) - time.time()
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return 0.0
    return seconds if 0 < seconds <= LIFE_SECONDS_MAX else 0.0


def _is_token(text: str) -> bool:
    return 0 < len(text) <= TOKEN_MAX and text.isascii() and text.isprintable() and " " not in text


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:
        return SplitResult("", "", "", "", "")
    return parts


def _refuse(url: str, why: str) -> Refused:
    return Refused(Code.SASL_AUTHENTICATION_FAILED, f"no token from {url}: {why}")

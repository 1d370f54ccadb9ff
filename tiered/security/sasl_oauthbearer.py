"""OAUTHBEARER (RFC 7628): a login by a bearer token. Both sides as machines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tiered.errors import Code, Refused
from tiered.security.bearer_tokens import VerifiedToken
from tiered.security.secret import Secret

MECHANISM = "OAUTHBEARER"
INVALID = b'{"status":"invalid_token"}'
"""The reply to a token that is refused. The client answers it, and the login fails then."""
_ACKNOWLEDGED = b"\x01"
"""The client's answer to `INVALID`."""
_SCHEME = "bearer"
_PAIR = re.compile(r"[A-Za-z]+=[\x20-\x7e\t\r\n]*")
_FIRST = re.compile(
    rb"n,(?:a=(?P<acting>(?:[^=,\x00\x01]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)*)\x01"
)


class OAuthBearerServer:
    """The server's side of one login. `user` is set once the token was accepted, which is valid until `expires_at`.
    `refused` has the reason after a token was refused: the reply was `INVALID`, and the next step raises the reason.
    `claimed_user` stays empty: a token that is refused names nobody."""

    def __init__(self, verify: Callable[[str], VerifiedToken]) -> None:
        self.user = self.claimed_user = ""
        self.expires_at = 0.0
        self._verify = verify
        self._has_ended = False
        self.refused: Refused | None = None

    def step(self, message: bytes) -> bytes:
        """Returns the reply to the next message. Raises `Refused` if the login failed."""
        if self.refused is not None:
            refused, self.refused = self.refused, None
            raise refused
        if self._has_ended:
            raise _refuse("the login has ended")
        self._has_ended = True
        acting, token = _parse(message)
        try:
            verified = self._verify(token)
        except Refused as refused:
            self.refused = refused
            return INVALID
        if acting not in ("", verified.name):
            raise _refuse("the authorization id differs from the principal of the token")
        self.user, self.expires_at = verified.name, verified.expires_at
        return b""


class OAuthBearerClient:
    """The client's side of one login. `is_done` is true once the server has accepted the token. Names of `extensions`
    are letters (KIP-342)."""

    def __init__(self, token: Secret, extensions: Sequence[tuple[str, str]] = ()) -> None:
        self.is_done = False
        self._token = token
        self._extensions = extensions

    def make_first(self) -> bytes:
        """Returns the first message."""
        pairs = [f"auth=Bearer {self._token.reveal()}", *(f"{name}={value}" for name, value in self._extensions)]
        if not all(_PAIR.fullmatch(pair) for pair in pairs) or any(name == "auth" for name, _ in self._extensions):
            raise _refuse("a token and the values of its extensions must be ASCII, and the names letters")
        return ("n,,\x01" + "".join(pair + "\x01" for pair in pairs) + "\x01").encode()

    def step(self, message: bytes) -> bytes:
        """Takes the reply of the server. The answer to a refusal makes the server say its reason."""
        self.is_done = not message
        return b"" if self.is_done else _ACKNOWLEDGED


def _parse(message: bytes) -> tuple[str, str]:
    """Returns the authorization id and the token of the first message."""
    match = _FIRST.fullmatch(message)
    if match is None:
        raise _refuse("the first message is not of the form n,,^Aauth=Bearer TOKEN^A^A")
    values = [pair[5:] for pair in match["pairs"].split(b"\x01") if pair.lower().startswith(b"auth=")]
    if len(values) != 1:
        raise _refuse("the first message has no single token")
    scheme, _, token = values[0].decode("ascii").partition(" ")
    if scheme.lower() != _SCHEME or not token.strip():
        raise _refuse("the first message has no bearer token")
    try:
        acting = (match["acting"] or b"").decode()
    except UnicodeDecodeError:
        raise _refuse("the authorization id is not UTF-8") from None
    return acting.replace("=2C", ",").replace("=3D", "="), token.strip()


def _refuse(why: str) -> Refused:
    return Refused(Code.SASL_AUTHENTICATION_FAILED, why)

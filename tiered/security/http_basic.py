"""HTTP Basic (RFC 7617): the user and the password in a header."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from typing import NamedTuple

from tiered.security.secret import Secret

SCHEME = "basic"


class UserPassword(NamedTuple):
    """A user and a password that a client sent."""

    user: str
    password: Secret


def parse_basic(text: str) -> UserPassword | None:
    """Returns what the text after the word Basic means: base64 of `user:password` in UTF-8. None for another form."""
    try:
        decoded = b64decode(text.strip(" "), validate=True).decode()
    except (Base64Error, ValueError):
        return None
    user, colon, password = decoded.partition(":")
    if not colon or not user or any(ord(char) < 32 or ord(char) == 127 for char in decoded):
        return None
    return UserPassword(user, Secret(password))

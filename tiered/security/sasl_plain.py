"""PLAIN (RFC 4616): the password travels as it is, so it needs TLS below it. Both sides of a login as machines."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from tiered.errors import Code, Refused
from tiered.security.jaas import LoginModule
from tiered.security.scram import FAILED
from tiered.security.secret import Secret

MECHANISM = "PLAIN"
MODULE = "PlainLoginModule"
MESSAGE_MAX = 4096
_USER_OPTION = "user_"
_HASH = "sha256"


def read_users(module: LoginModule) -> dict[str, Secret]:
    """Returns the users of a listener: `user_alice="secret"` is the user alice. Raises `Refused` if there is none."""
    if module.short_name != MODULE:
        raise Refused(Code.INVALID_CONFIG, f"sasl.jaas.config: {MECHANISM} needs the login module {MODULE}")
    users = {
        name.removeprefix(_USER_OPTION): Secret(password)
        for name, password in module.options.items()
        if name.startswith(_USER_OPTION)
    }
    if not users or not all(users) or not all(users.values()):
        raise Refused(Code.INVALID_CONFIG, f'sasl.jaas.config: it must have users, each as {_USER_OPTION}NAME="..."')
    return users


class PlainServer:
    """The server's side of one login. `user` is set once the password was right, `claimed_user` before."""

    def __init__(self, users: Mapping[str, Secret], key: bytes) -> None:
        self.user = self.claimed_user = ""
        self._users = users
        self._key = key
        """Key under which passwords are compared: a comparison shows neither their bytes nor their length."""
        self._has_ended = False

    def step(self, message: bytes) -> bytes:
        """Returns the reply to the only message. Raises `Refused`, in the same words for a user that does not exist and
        for a wrong password."""
        if self._has_ended:
            raise _refuse("the login has ended")
        self._has_ended = True
        parts = message.split(b"\0") if len(message) <= MESSAGE_MAX else []
        try:
            acting, user, password = (part.decode() for part in parts)
        except ValueError:
            raise _refuse("the PLAIN message is not of the form [user] NUL user NUL password in UTF-8") from None
        if not user or not password:
            raise _refuse("the PLAIN message has no user or no password")
        if acting and acting != user:
            raise _refuse("the authorization id differs from the user")
        self.claimed_user = user
        known = self._users.get(user)
        expected = self._digest("" if known is None else known.reveal())
        fits = hmac.compare_digest(expected, self._digest(password))
        if known is None or not fits:
            raise _refuse(FAILED)
        self.user = user
        return b""

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), _HASH)


class PlainClient:
    """The client's side of one login. `is_done` is true once the server has accepted it."""

    def __init__(self, user: str, password: Secret) -> None:
        self.is_done = False
        self._user = user
        self._password = password

    def make_first(self) -> bytes:
        """Returns the only message."""
        return f"\0{self._user}\0{self._password.reveal()}".encode()

    def step(self, _: bytes) -> bytes:
        """Takes the reply of the server."""
        self.is_done = True
        return b""


def _refuse(why: str) -> Refused:
    return Refused(Code.SASL_AUTHENTICATION_FAILED, why)

"""Fuzzing of logins: messages of SCRAM, PLAIN and OAUTHBEARER, HTTP Basic, tokens, sets of keys and login modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from tiered.errors import Code, Refused
from tiered.security.bearer_tokens import KeySet, TokenRules, VerifiedToken, read_key_set, verify_token
from tiered.security.http_basic import parse_basic
from tiered.security.jaas import parse_jaas
from tiered.security.sasl_oauthbearer import OAuthBearerServer
from tiered.security.sasl_plain import PlainServer
from tiered.security.scram import ScramMechanism, ScramServer, make_credential, salt_password
from tiered.security.secret import Secret

SALT, PASSWORD = b"0123456789abcdef", "pencil"
NONCE, SECRET = "3rfcNHYJY1ZVvWVs7j", b"s" * 32
MECHANISM = ScramMechanism.SHA_256
CREDENTIAL = make_credential(MECHANISM, salt_password(MECHANISM, PASSWORD, SALT, 4096), SALT, 4096)
LOGIN = b"n,,n=user,r=fyko\nc=biws,r=fyko3rfcNHYJY1ZVvWVs7j,p=581TsoWY5RBRjdzZRZoHaRvEOo6gNF41anpMR1ssu68="
PLAIN_MESSAGES = (b"\0tim\0tanstaaftanstaaf", b"tim\0tim\0tanstaaftanstaaf")
TOKEN = "good.token.text"
RULES = TokenRules("https://issuer.example", ("logs",))


def check(kind: str, data: bytes) -> None:
    """Gives an input to its reader. Every refusal is a `Refused`, and nothing but a good login ends with a user."""
    with suppress(Refused):
        READERS[kind](data)


def check_scram(data: bytes) -> None:
    """Checks a login, its messages one a line: each byte of it is signed."""
    login = ScramServer(MECHANISM, lambda user: (CREDENTIAL,) if user == "user" else (), NONCE, SECRET)
    try:
        for message in data.split(b"\n"):
            login.step(message)
    finally:
        assert not login.user or data.split(b"\n")[:2] == LOGIN.split(b"\n"), login.user


def check_plain(data: bytes) -> None:
    """Checks the only message of a login."""
    login = PlainServer({"tim": Secret("tanstaaftanstaaf"), "empty": Secret("")}, SECRET)
    try:
        login.step(data)
    finally:
        assert not login.user or data in PLAIN_MESSAGES, login.user


def check_bearer(data: bytes) -> None:
    """Checks the first message of a login by token: no other token is taken out of it."""
    login = OAuthBearerServer(_verify)
    try:
        login.step(data)
    finally:
        assert not login.user or TOKEN.encode() in data, login.user


def _verify(token: str) -> VerifiedToken:
    if token != TOKEN:
        raise Refused(Code.SASL_AUTHENTICATION_FAILED, "another token")
    return VerifiedToken("alice", 2e9)


def check_token(data: bytes) -> None:
    """Checks a token. No key is known, so that none is good."""
    verify_token(data.decode("latin-1"), KeySet(), RULES, 1.8e9)
    raise AssertionError("a token that nobody has signed is good")


def check_keys(data: bytes) -> None:
    """Checks a set of keys: what it has can be looked up."""
    keys = read_key_set(data)
    assert sum(1 for algorithm in ("RS256", "ES256", "EdDSA") for _ in keys.find(None, algorithm)) <= len(keys)


def check_module(data: bytes) -> None:
    """Checks the line of a login module. Its text shows no value."""
    assert "tanstaaf" not in repr(parse_jaas(data.decode("latin-1")))


def check_basic(data: bytes) -> None:
    """Checks what stands behind the scheme of HTTP Basic."""
    found = parse_basic(data.decode("latin-1"))
    assert found is None or found.user


READERS: Mapping[str, Callable[[bytes], None]] = {
    "scram": check_scram,
    "plain": check_plain,
    "bearer": check_bearer,
    "token": check_token,
    "keys": check_keys,
    "module": check_module,
    "basic": check_basic,
}

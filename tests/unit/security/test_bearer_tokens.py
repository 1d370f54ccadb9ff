"""Tests of bearer tokens: who signed them, for whom, until when; and every way to forge one."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from functools import partial
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from tests.tokens import AUDIENCE, EC, RSA, RULES, UNTRUSTED, key_set, public_key
from tests.tokens import token as signed
from tiered.errors import Refused
from tiered.security.bearer_tokens import TOKEN_MAX, UnknownKey, read_key_set, verify_token
from tiered.security.sasl_oauthbearer import INVALID, OAuthBearerClient, OAuthBearerServer
from tiered.security.secret import Secret

KEYS = read_key_set(key_set())
NOW = 1_800_000_000.0
token = partial(signed, now=NOW)


def part(value: Any) -> str:
    """Returns a part of a token."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(header: Any, signature: bytes = b"") -> str:
    """Returns the claims of a good token under another header."""
    return ".".join((part(header), token().split(".")[1], part(signature)))


@pytest.mark.parametrize(
    "text",
    [
        token(),
        token(RSA, "RS256", "rsa"),
        token(RSA, "PS512", "rsa"),
        token(key_id=None),
        token(aud=["other", "logs"]),
        token(exp=NOW - 20),
        token(nbf=NOW + 20, iat=NOW + 20),
        token(iat=None),
        token(exp=NOW + 100.5),
    ],
)
def test_token_of_the_issuer_names_its_principal(text: str) -> None:
    assert verify_token(text, KEYS, RULES, NOW).name == "alice"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (token(exp=NOW - 31), "expired"),
        (token(exp=None), "claims"),
        (token(exp="soon"), "exp is no time"),
        (token(exp=True), "exp is no time"),
        (token(nbf=NOW + 60), "not valid yet"),
        (token(iat=NOW + 60), "not valid yet"),
        (token(aud="other"), "audience"),
        (token(aud=None), "claims"),
        (token(aud=[]), "claims"),
        (token(iss="https://evil.example.com/"), "issuer"),
        (token(iss=None), "claims"),
        (token(sub=None), "claims"),
        (token(sub=""), "no name"),
        (token(sub=7), "no name"),
        (token(sub="a\nb"), "no name"),
        (token(sub="x" * 1025), "no name"),
        (token(sub="*"), "no login may have"),
        (token(sub="ANONYMOUS"), "no login may have"),
        (token(sub=" "), "no login may have"),
        (token(sub=" admin"), "no login may have"),
        (token(UNTRUSTED), "signature is wrong"),
        (token(UNTRUSTED, key_id="x"), "key is not known"),
        (token(RSA, "RS256", "ec"), "key is not known"),
        (token(key=b"k" * 64, algorithm="HS256"), "algorithm"),
        (forged({"alg": "HS256", "kid": "rsa"}, bytes(32)), "algorithm"),
        (token(key=None, algorithm="none"), "algorithm"),
        (forged({"alg": "none"}), "algorithm"),
        (forged({"alg": "NONE", "kid": "ec"}), "algorithm"),
        (forged({"kid": "ec"}), "algorithm"),
        (forged({"alg": ["ES256"], "kid": "ec"}), "algorithm"),
        (forged({"alg": {}, "kid": "ec"}), "algorithm"),
        (forged({"alg": "ES256", "kid": "ec"}), "signature is wrong"),
        (forged({"alg": "ES256", "kid": "ec"}, bytes(64)), "signature is wrong"),
        (forged({"alg": "ES256", "kid": "ec", "crit": ["b64"], "b64": False}), "no signed token"),
        (forged({"alg": "ES256", "kid": "ec", "crit": ["b64"], "b64": True}), "critical"),
        (forged({"alg": "ES256", "kid": 7}), "no signed token"),
        (forged(["ES256"]), "no signed token"),
        (forged(b"[" * 9000), "no signed token"),
        (token()[:-4], "the token is refused"),
        (token().rpartition(".")[0], "no signed token"),
        (token() + ".x", "no signed token"),
        ("", "no signed token"),
        ("ü", "ASCII"),
        ("x" * (TOKEN_MAX + 1), "too long"),
    ],
)
def test_every_other_token_is_refused(text: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        verify_token(text, KEYS, RULES, NOW)


def test_token_of_a_key_that_is_not_known_asks_for_newer_keys() -> None:
    with pytest.raises(UnknownKey):
        verify_token(token(key_id="next"), KEYS, RULES, NOW)


def test_claim_with_the_name_can_be_another_one() -> None:
    rules = RULES._replace(subject_claim="client_id")
    assert verify_token(token(client_id="service"), KEYS, rules, NOW).name == "service"


def test_changed_token_is_refused() -> None:
    """Each character of each part counts, but for bits at the end of a part that mean nothing."""
    good = token()
    for at in range(0, len(good) - 1, 7):
        other = good[:at] + ("A" if good[at] != "A" else "B") + good[at + 1 :]
        with pytest.raises(Refused):
            verify_token(other, KEYS, RULES, NOW)


@given(st.text(max_size=200), st.text(max_size=60))
def test_no_text_is_a_token(one: str, other: str) -> None:
    for text in (one, f"{one}.{other}.", f"{part(one.encode(errors='replace'))}.{part({})}.{part(b'')}"):
        with pytest.raises(Refused):
            verify_token(text, KEYS, RULES, NOW)


@pytest.mark.parametrize(
    "rows",
    [
        [{"kty": "oct", "k": "c2VjcmV0c2VjcmV0", "kid": "s", "alg": "HS256"}],
        [public_key(EC, "ec", use="enc")],
        [public_key(EC, "ec", alg="HS256")],
        [public_key(RSA, "rsa", alg="none")],
        [public_key(rsa.generate_private_key(public_exponent=65537, key_size=1024), "weak")],
        [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}],
        [{"kty": "RSA"}],
        ["x", None, []],
    ],
)
def test_set_without_a_public_key_is_refused(rows: list[Any]) -> None:
    with pytest.raises(Refused):
        read_key_set(json.dumps({"keys": rows}).encode())


def test_empty_set_takes_all_keys_back() -> None:
    keys = read_key_set(b'{"keys": []}')
    assert len(keys) == 0
    with pytest.raises(UnknownKey):
        verify_token(token(EC, "ES256", "ec"), keys, RULES, NOW)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"keys":1}', b"\xff", b"[" * 100_000])
def test_text_that_is_no_set_is_refused(text: bytes) -> None:
    with pytest.raises(Refused):
        read_key_set(text)


def test_key_of_one_algorithm_checks_no_other() -> None:
    keys = read_key_set(key_set(public_key(RSA, "rsa", alg="RS256")))
    assert verify_token(token(RSA, "RS256", "rsa"), keys, RULES, NOW)
    with pytest.raises(UnknownKey):
        verify_token(token(RSA, "RS512", "rsa"), keys, RULES, NOW)


# -- OAUTHBEARER ------------------------------------------------------------------------------------------------------


def machine() -> OAuthBearerServer:
    """Returns the server's side of a login."""
    return OAuthBearerServer(lambda text: verify_token(text, KEYS, RULES, NOW))


def first(text: str, start: bytes = b"n,,", more: bytes = b"") -> bytes:
    """Returns the first message of a client."""
    return start + b"\x01auth=Bearer " + text.encode() + b"\x01" + more + b"\x01"


@pytest.mark.parametrize(
    "message",
    [
        first(token()),
        first(token(), b"n,a=alice,"),
        first(token(), more=b"host=server.example.com\x01port=143\x01"),  # RFC 7628, section 4.1
        first(token()).replace(b"Bearer", b"bearer"),
    ],
)
def test_good_token_logs_in_until_it_expires(message: bytes) -> None:
    server = machine()
    assert server.step(message) == b"" and server.user == "alice" and server.expires_at > NOW
    with pytest.raises(Refused):
        server.step(message)


def test_refused_token_is_answered_once_and_fails_then() -> None:
    server = machine()
    assert server.step(first(token(aud="other"))) == INVALID
    with pytest.raises(Refused, match="audience"):
        server.step(b"\x01")
    with pytest.raises(Refused, match="ended"):
        server.step(first(token()))
    assert not server.user


@pytest.mark.parametrize(
    "message",
    [
        b"", b"\x01", b"n,,\x01\x01", b"y,,\x01auth=Bearer x\x01\x01", b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01", b"n,,\x01auth=Bearer x\x01", b"n,,\x01auth=Bearer x\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01", first(token(), b"n,a=bob,"), first(token(), b"n,a=\xff,"),
        first(token(), b"n,a=,"), first(token()) + b"\x01",
    ],
)  # fmt: skip
def test_message_of_another_form_is_refused(message: bytes) -> None:
    server = machine()
    with pytest.raises(Refused):
        server.step(message)
    assert not server.user


@given(st.binary(max_size=200))
def test_no_bytes_log_in(message: bytes) -> None:
    server = machine()
    for sent in (message, message):
        try:
            server.step(sent)
        except Refused:
            continue
    assert not server.user


def test_expected_audience_is_needed_and_not_a_part_of_one() -> None:
    with pytest.raises(Refused, match="audience"):
        verify_token(token(aud=AUDIENCE[:-1]), KEYS, RULES, NOW)


def test_client_and_server_agree_on_a_token() -> None:
    server, text = machine(), token()
    client = OAuthBearerClient(Secret(text), (("logicalCluster", "lkc-1"),))
    message = client.make_first()
    assert message == first(text, more=b"logicalCluster=lkc-1\x01")
    assert client.step(server.step(message)) == b"" and client.is_done and server.user == "alice"


def test_client_makes_the_server_say_why_it_refuses_a_token() -> None:
    server = machine()
    client = OAuthBearerClient(Secret(token(UNTRUSTED)))
    answer = client.step(server.step(client.make_first()))
    assert not client.is_done
    with pytest.raises(Refused, match="its signature is wrong"):
        server.step(answer)


@pytest.mark.parametrize("extension", [("a-b", "x"), ("a", "x\x01auth=Bearer y"), ("a", "ö"), ("", "x"), ("auth", "x")])
def test_client_sends_no_message_that_no_server_takes(extension: tuple[str, str]) -> None:
    with pytest.raises(Refused, match="must be ASCII"):
        OAuthBearerClient(Secret(token()), (extension,)).make_first()

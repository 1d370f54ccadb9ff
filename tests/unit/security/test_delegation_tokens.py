"""Delegation tokens as credentials: HMACs as Kafka makes them, and logins by SCRAM with `tokenauth`."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusal import refuses
from tiered.errors import Code, Refused
from tiered.security.delegation_tokens import DelegationToken, make_hmac, make_token_credential
from tiered.security.scram import (
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    make_credential,
    salt_password,
)
from tiered.security.secret import Secret

KEY = Secret("secret-key")
TOKEN = "KQv2gaVZRDCvVQxhO_tDxQ"
PASSWORD = b64encode(make_hmac(KEY, TOKEN)).decode()


SMALL = ScramMechanism.SHA_256
OWN = make_token_credential(KEY, SMALL, TOKEN)


def record_transcript() -> tuple[bytes, bytes]:
    """Returns the messages of a bearer."""
    server = ScramServer(SMALL, lambda user: (), "server", b"secret", lambda user: (OWN,))
    client = ScramClient(SMALL, TOKEN, PASSWORD, "nonce", by_token=True)
    first = client.make_first()
    return first, client.step(server.step(first))


TRANSCRIPT = record_transcript()


def find_token(mechanism: ScramMechanism, user: str) -> tuple[ScramCredential, ...]:
    return (make_token_credential(KEY, mechanism, user),) if user == TOKEN else ()


def make_server(mechanism: ScramMechanism) -> ScramServer:
    """Returns the server's side of a login. Every user has the password of the token, by a credential of its own."""
    salted = salt_password(mechanism, PASSWORD, b"salt", 4096)
    own = make_credential(mechanism, salted, b"salt", 4096)
    return ScramServer(mechanism, lambda user: (own,), "server", b"secret", lambda user: find_token(mechanism, user))


def log_in(mechanism: ScramMechanism, first: str, password: str) -> ScramServer:
    """Returns the server's side after a login whose first message is given."""
    server = make_server(mechanism)
    client = ScramClient(mechanism, TOKEN, password, "nonce")
    client._bare = first.removeprefix("n,,")
    client.step(server.step(client.step(server.step(first.encode()))))
    return server


def test_hmac_is_that_of_kafka() -> None:
    """Kafka has Java's HmacSHA512 of the id under the secret key. This is a known value of that function."""
    assert make_hmac(Secret("key"), "The quick brown fox jumps over the lazy dog").hex() == (
        "b42af09057bac1e2d41708e48a902e09b5ff7f12ab428a4fe86653c73dd248fb"
        "82f948a549f7b791a5b41915ee4d1ec3935357e4e2317250d0372afa2ebeeb3a"
    )


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("extension", ["tokenauth=true", "tokenauth=TRUE", "x=1,tokenauth=true,other=2"])
def test_bearer_logs_in_by_id_and_hmac(mechanism: ScramMechanism, extension: str) -> None:
    server = log_in(mechanism, f"n,,n={TOKEN},r=nonce,{extension}", PASSWORD)
    assert (server.user, server.is_by_token) == (TOKEN, True)


@pytest.mark.parametrize(
    ("user", "extension", "password"),
    [
        (TOKEN, ",tokenauth=true", "nonsense"),
        ("another", ",tokenauth=true", PASSWORD),
        (f"{TOKEN}x", ",tokenauth=true", PASSWORD),
    ],
)
def test_wrong_hmac_and_unknown_token_fail(user: str, extension: str, password: str) -> None:
    with refuses(Code.SASL_AUTHENTICATION_FAILED):
        log_in(ScramMechanism.SHA_256, f"n,,n={user},r=nonce{extension}", password)


@pytest.mark.parametrize("extension", ["", ",tokenauth=false", ",tokenauth=1", ",xtokenauth=true", ",tokenauthx=true"])
def test_login_without_the_extension_is_that_of_a_user(extension: str) -> None:
    login = log_in(ScramMechanism.SHA_256, f"n,,n={TOKEN},r=nonce{extension}", PASSWORD)
    assert (login.user, login.is_by_token) == (TOKEN, False)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_changed_transcript_of_a_token_never_ends_with_a_user(data: st.DataObject) -> None:
    """One byte of the client's messages is replaced, inserted or removed."""
    messages = list(TRANSCRIPT)
    which = data.draw(st.integers(0, 1))
    at = data.draw(st.integers(0, len(messages[which]) - 1))
    changed = messages[which][:at] + data.draw(st.binary(max_size=2)) + messages[which][at + data.draw(st.booleans()) :]
    if changed == messages[which]:
        return
    messages[which] = changed
    login = ScramServer(SMALL, lambda user: (OWN,), "server", b"secret", lambda user: (OWN,) if user == TOKEN else ())
    with pytest.raises(Refused):
        for message in messages:
            login.step(message)
    assert not login.user


def test_transcript_itself_ends_with_the_token() -> None:
    login = ScramServer(SMALL, lambda user: (), "server", b"secret", lambda user: (OWN,))
    for message in TRANSCRIPT:
        login.step(message)
    assert (login.user, login.is_by_token) == (TOKEN, True)


def test_mandatory_extension_is_refused_and_one_with_a_longer_name_is_not() -> None:
    with pytest.raises(Refused, match="mandatory"):
        log_in(ScramMechanism.SHA_256, f"n,,n={TOKEN},r=nonce,m=1,tokenauth=true", PASSWORD)
    assert log_in(ScramMechanism.SHA_256, f"n,,n={TOKEN},r=nonce,xm=1,tokenauth=true", PASSWORD).user == TOKEN


def test_credential_follows_from_token_and_key_alone() -> None:
    small = ScramMechanism.SHA_256
    assert make_token_credential(KEY, small, TOKEN) == make_token_credential(Secret("secret-key"), small, TOKEN)
    made = {make_token_credential(key, small, token) for key in (KEY, Secret("other")) for token in (TOKEN, "another")}
    assert len({each.salt for each in made}) == len({each.stored_key for each in made}) == 4


def test_owner_and_renewers_renew_and_the_requester_only_sees() -> None:
    token = DelegationToken("t", "User:alice", "User:bob", ("User:carol",), 0, 1000, 100)
    assert [token.can_renew(f"User:{name}") for name in ("alice", "bob", "carol", "dave")] == [True, False, True, False]
    assert [token.belongs_to(f"User:{name}") for name in ("alice", "bob", "carol", "dave")] == [True] * 3 + [False]
    assert [token.is_expired(ms) for ms in (100, 101)] == [False, True]

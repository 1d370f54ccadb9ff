"""Delegation tokens as credentials: HMACs as Kafka makes them, and logins by SCRAM with `tokenauth`."""

from __future__ import annotations

from base64 import b64encode

import pytest

from tiered.errors import Code, Refused
from tiered.security.delegation_tokens import DelegationToken, make_hmac, make_token_credential
from tiered.security.scram import ScramClient, ScramCredential, ScramMechanism, ScramServer, make_credential
from tiered.security.secret import Secret

KEY = Secret("secret-key")
TOKEN = "KQv2gaVZRDCvVQxhO_tDxQ"
PASSWORD = b64encode(make_hmac(KEY, TOKEN)).decode()


def find_token(mechanism: ScramMechanism, user: str) -> tuple[ScramCredential, ...]:
    return (make_token_credential(KEY, mechanism, user),) if user == TOKEN else ()


def log_in(mechanism: ScramMechanism, first: str, password: str) -> ScramServer:
    """Returns the server's side after a login whose first message is given, without its nonce."""
    own = make_credential(mechanism, b"salted", b"salt", 4096)
    server = ScramServer(mechanism, lambda user: (own,), "server", b"secret", lambda user: find_token(mechanism, user))
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
        (TOKEN, ",tokenauth=false", PASSWORD),
        (TOKEN, ",tokenauth=1", PASSWORD),
        (TOKEN, ",xtokenauth=true", PASSWORD),
        (TOKEN, "", PASSWORD),
    ],
)
def test_wrong_hmac_and_login_without_the_extension_fail(user: str, extension: str, password: str) -> None:
    with pytest.raises(Refused) as refused:
        log_in(ScramMechanism.SHA_256, f"n,,n={user},r=nonce{extension}", password)
    assert refused.value.code is Code.SASL_AUTHENTICATION_FAILED


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

"""Tests of tokens for OAUTHBEARER: the request for one, the life of one, and bad token servers."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.token_server import CLIENT, SECRET, TokenServer, run_token_server
from tests.tokens import token
from tiered.clients.properties import CLIENT_ID, CLIENT_SECRET, SCOPE, TOKEN_URL, URL_ENCODE, choose_properties
from tiered.clients.tokens import TokenSource, read_token_request
from tiered.errors import Refused
from tiered.security.bearer_tokens import TOKEN_MAX

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@pytest.fixture(scope="module")
def shared() -> Iterator[TokenServer]:
    with run_token_server() as server:
        yield server


@pytest.fixture
def server(shared: TokenServer) -> TokenServer:
    """Returns the token server, as it is when new."""
    shared.life_seconds, shared.status, shared.reply = 300, 200, None
    shared.forms.clear()
    shared.headers.clear()
    return shared


def source_of(server: TokenServer, **more: str) -> TokenSource:
    given = {TOKEN_URL: server.url, CLIENT_ID: CLIENT, CLIENT_SECRET: SECRET}
    return TokenSource(read_token_request({**given, **more}))


def test_token_is_asked_for_as_kafka_clients_ask_and_kept_for_its_life(server: TokenServer) -> None:
    source = source_of(server, **{SCOPE: "records admin"})
    first = source.get()
    assert source.get() == first
    assert server.forms == [{"grant_type": ["client_credentials"], "scope": ["records admin"]}]
    server.life_seconds = 1
    again = source_of(server)
    again.get()
    again.get()
    assert len(server.forms) == 2
    again._good_until = 0
    again.get()
    assert len(server.forms) == 3 and "scope" not in server.forms[-1]


def test_token_whose_life_is_not_said_is_used_once(server: TokenServer) -> None:
    source = source_of(server)
    for reply, asks in (
        ({"access_token": "opaque"}, 2),
        ({"access_token": "opaque", "expires_in": "NaN"}, 2),
        ({"id_token": token()}, 1),
        ({"access_token": "opaque", "expires_in": "60"}, 1),
    ):
        server.reply = json.dumps(reply).encode()
        server.forms.clear()
        source._good_until = 0
        assert source.get() == source.get()
        assert len(server.forms) == asks, reply


def test_id_and_secret_are_encoded_for_a_url_if_asked(server: TokenServer) -> None:
    for encodes, pair in (("true", "a%26b:x+%C3%B6"), ("false", "a&b:x ö")):
        with pytest.raises(Refused, match=r"status 401: invalid_client$"):
            source_of(server, **{CLIENT_ID: "a&b", CLIENT_SECRET: "x ö", URL_ENCODE: encodes}).get()
        assert server.headers[-1] == f"Basic {b64encode(pair.encode()).decode()}"


@pytest.mark.parametrize(
    ("status", "reply", "why"),
    [
        (500, b"no", "the reply has the status 500$"),
        (302, b"", "the reply has the status 302$"),
        (400, b'{"error": "x\\u0007"}', "the reply has the status 400$"),
        (200, b"[" * 100_000, "the reply is no JSON object"),
        (200, b"[]", "the reply is no JSON object"),
        (200, b"{}", "the reply has no access_token"),
        (200, b'{"access_token": 3}', "the reply has no access_token"),
        (200, b'{"access_token": "two words"}', "the reply has no access_token"),
        (200, b"x" * ((1 << 20) + 1), "more than 1048576 bytes"),
    ],
)
def test_bad_reply_of_a_token_server_is_refused(server: TokenServer, status: int, reply: bytes, why: str) -> None:
    server.status, server.reply = status, reply
    with pytest.raises(Refused, match=why) as refused:
        source_of(server).get()
    assert server.url in refused.value.why and SECRET not in refused.value.why


def test_token_server_that_is_away_is_named() -> None:
    with run_token_server() as gone:
        pass
    with pytest.raises(Refused, match="ConnectionRefusedError"):
        source_of(gone).get()


def test_token_in_a_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    source = TokenSource(read_token_request({TOKEN_URL: f"file://{tmp_path}/a%20token"}))
    for text in ("first", "second"):
        file.write_text(text + "\n")
        assert source.get().reveal() == text
    for bad in ("", "two words", "x" * (TOKEN_MAX + 1), "ö"):
        file.write_text(bad)
        with pytest.raises(Refused, match="it must have one token"):
            source.get()
    file.unlink()
    with pytest.raises(Refused, match="No such file"):
        source.get()


def test_properties_win_over_the_options_of_the_login_module() -> None:
    jaas = f'{MODULE} required clientId="c" clientSecret="pencil" scope="s" extension_cluster="x"'
    given = {
        "sasl.jaas.config": f'{jaas} ssl.truststore.type="PEM" ssl.truststore.location="/ca.pem";',
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.secured."
        "OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer."
        "ClientCredentialsJwtRetriever",
        "sasl.login.connect.timeout.ms": "1000",
        TOKEN_URL: "https://login.example.com/token",
        SCOPE: "other",
    }
    request = read_token_request(choose_properties(given, "here"))
    assert (request.client_id, request.secret.reveal(), request.scope) == ("c", "pencil", "other")
    assert request.trust.location == "/ca.pem" and request.extensions == (("cluster", "x"),)
    assert "pencil" not in repr(request)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "it must be the URL of a token server"),
        ({TOKEN_URL: "ftp://x/y"}, "it must be the URL of a token server"),
        ({TOKEN_URL: "https://u:pencil@x/y"}, "it must be the URL of a token server"),
        ({TOKEN_URL: "https://x:y/"}, "it must be the URL of a token server"),
        ({TOKEN_URL: "https://x..y/"}, "it must be the URL of a token server"),
        ({TOKEN_URL: "https://x/y", CLIENT_ID: "c"}, "needs both"),
        ({"sasl.jaas.config": f'{MODULE} required password="pencil";'}, "the option password of OAuthBearerLogin"),
        ({"sasl.oauthbearer.jwt.retriever.class": "x.JwtBearerJwtRetriever"}, "it must be DefaultJwtRetriever or"),
        ({"sasl.login.callback.handler.class": "x.Own"}, "it must be OAuthBearerLoginCallbackHandler"),
        ({"sasl.oauthbearer.assertion.file": "/pencil"}, "sasl.oauthbearer.assertion.file is not supported"),
    ],
)
def test_properties_without_a_way_to_a_token_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        read_token_request(choose_properties(given, "here"))
    assert "pencil" not in refused.value.why

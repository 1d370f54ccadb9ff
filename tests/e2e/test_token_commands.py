"""Tests of the command line with a token of a token server or of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.serving import ServeProcess
from tests.token_server import CLIENT, SECRET, TokenServer, run_token_server
from tests.tokens import AUDIENCE, ISSUER, UNTRUSTED, token
from tiered.security.sasl_oauthbearer import MECHANISM
from tiered_api.cli.main import main

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
PROTOCOL = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with run_token_server() as one:
        yield one


def test_commands_log_in_by_tokens_of_a_server_or_of_a_file(
    tmp_path: Path, server: TokenServer, capsys: pytest.CaptureFixture[str]
) -> None:
    jaas = f'sasl.jaas.config={MODULE} required clientId="{CLIENT}" clientSecret="{SECRET}" scope="records";\n'
    endpoint = f"sasl.oauthbearer.token.endpoint.url={server.url}\n"
    by_properties = (
        f"sasl.oauthbearer.client.credentials.client.id={CLIENT}\n"
        f"sasl.oauthbearer.client.credentials.client.secret={SECRET}\n"
    )
    (tmp_path / "token").write_text(token(sub="bob"))
    by_file = f"sasl.oauthbearer.token.endpoint.url=file://{tmp_path}/token\nsasl.jaas.config={MODULE} required;\n"

    def command(words: str, properties: str, code: int = 0) -> str:
        file = tmp_path / "client.properties"
        file.write_text(f"bootstrap.servers={broker.kafka}\n{PROTOCOL}{properties}")
        ended = main([*words.split(), "--command-config", str(file)])
        out, err = capsys.readouterr()
        assert ended == code, (words, out, err)
        assert SECRET not in out + err
        return out + err

    settings = (
        "listeners=SASL_PLAINTEXT://127.0.0.1:0",
        f"sasl.enabled.mechanisms={MECHANISM}",
        f"sasl.oauthbearer.jwks.endpoint.url={server.keys_url}",
        f"tiered.sasl.oauthbearer.allowed.urls={server.keys_url}",
        f"sasl.oauthbearer.expected.issuer={ISSUER}",
        f"sasl.oauthbearer.expected.audience={AUDIENCE}",
        "connection.failed.authentication.delay.ms=1",
    )
    with ServeProcess(tmp_path / "data", *(word for each in settings for word in ("-c", each))) as broker:
        command("topic create t", endpoint + jaas)
        assert server.forms[-1]["scope"] == ["records"]
        assert "t" in command("topic list", endpoint + by_properties)
        assert "t" in command("topic list", by_file)
        server.key = UNTRUSTED
        assert "refuses the login: the token is refused: its signature is wrong" in command(
            "topic list", endpoint + jaas, 2
        )
        wrong = endpoint + jaas.replace(CLIENT, "another")
        assert f"no token from {server.url}: the reply has the status 401" in command("topic list", wrong, 2)
        assert "needs both" in command("topic list", endpoint, 2)
        log = broker.log.read_text()
    assert f'"principal": "User:{CLIENT}"' in log and '"principal": "User:bob"' in log
    assert "Traceback" not in log

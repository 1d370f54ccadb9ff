"""A broker with TLS, a login and an authorizer, reached by all kinds of commands through a profile."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.certificates import sign
from tests.e2e.serving import COMMAND, SECONDS, ServeProcess
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered_api.cli.main import main

PASSWORD = "eighty,eight"
COMMANDS = (
    "topic list",
    "topic describe flights -a",
    "group describe pilots",
    "transaction list",
    "user list",
    "acl list",
    "quota list",
    "cluster info",
    "cluster health",
    "cluster config get message.max.bytes",
    "table ls --warehouse WAREHOUSE --profile prod",
)


def test_secured_broker_needs_nothing_but_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    authority = sign("CN=authority")
    (tmp_path / "ca.pem").write_text(authority.certificate_pem)
    settings = (
        "listeners=SASL_SSL://127.0.0.1:0",
        "authentication.method=BASIC",
        f"authorizer.class.name={STANDARD_AUTHORIZER}",
        "super.users=User:admin",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={sign('CN=localhost', authority).write(tmp_path / 'broker.pem')}",
        "connection.failed.authentication.delay.ms=1",
    )
    start = ("--add-scram", f"SCRAM-SHA-512=[name=admin,password={PASSWORD}]")
    pairs = [word for each in settings for word in ("-c", each)]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "warehouse").mkdir()

    def command(*words: str, code: int = 0) -> str:
        ended = main(words)
        out, err = capfd.readouterr()
        assert ended == code, (words, out, err)
        assert PASSWORD not in out + err
        return out + err

    with ServeProcess(tmp_path / "data", *start, *pairs, http="https://127.0.0.1:0") as broker:
        port, http = broker.kafka.rpartition(":")[2], broker.url.rpartition(":")[2]
        command(
            *("profile", "create", "prod", "-s", f"brokers=localhost:{port}", "-s", f"http=localhost:{http}"),
            *("-s", "security.protocol=SASL_SSL", "-s", f"ssl.ca.location={tmp_path}/ca.pem"),
            *("-s", "sasl.username=admin", "-s", f"sasl.password={PASSWORD}"),
        )
        produce = [*COMMAND, "topic", "produce", "flights"]
        command("topic", "create", "flights")
        produced = subprocess.run(produce, input=b"AA 1141\n", capture_output=True, timeout=SECONDS)
        assert produced.returncode == 0, produced.stderr
        assert "AA 1141" in command("topic", "consume", "flights", "-n", "1", "-g", "pilots")
        for words in COMMANDS:
            command(*words.replace("WAREHOUSE", str(tmp_path / "warehouse")).split())

        command("profile", "create", "wrong", "--from-profile", "prod", "-s", "sasl.password=seventyseven")
        said = command("topic", "list", code=2)
        source = f"profile 'wrong' ({tmp_path}/config/tiered/profiles.toml)"
        assert "the user or the password is wrong" in said and f"(the login is from current {source})" in said
        command("topic", "list", "--profile", "prod")
        monkeypatch.setenv("TIERED_PROFILE", "prod")
        command("topic", "list")
        assert f"(the login is from {source})" in command("topic", "list", "--profile", "wrong", code=2)
        log = broker.log.read_text()
    assert "Traceback" not in log

"""Tests of `tiered profile`, and of every command that reaches a cluster: its profile is the one that was chosen."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiered_api.cli.arguments import parser
from tiered_api.cli.broker.sources import load_settings
from tiered_api.cli.client_sources import FILE_VARIABLE, PROFILE_VARIABLE, VARIABLES, find_client_settings
from tiered_api.cli.exits import Exit
from tiered_api.cli.main import main
from tiered_api.cli.parsing import Parser

WORDS = {
    "audit": "--topic t",
    "cluster config get": "message.max.bytes",
    "cluster config reset": "message.max.bytes",
    "cluster config set": "message.max.bytes=1",
    "cluster decommission": "1",
    "cluster reassign": "t/0=1",
    "cluster unregister": "1",
    "group delete": "g",
    "group describe": "g",
    "group offset-delete": "g -t t:0",
    "explain fetch": "t 0 0",
    "explain group": "g",
    "explain partition": "t 0",
    "explain segment": "t 0 0",
    "explain table": "t",
    "explain topic": "t",
    "group seek": "g --to start",
    "acl add": "--cluster --allow-principal User:a",
    "acl remove": "--principal User:a",
    "quota remove": "--user a",
    "quota set": "--user a producer_byte_rate=1",
    "sql": "SELECT\xa01 --bootstrap 127.0.0.1:1",
    "table describe": "t --bootstrap 127.0.0.1:1",
    "table ls": "--bootstrap 127.0.0.1:1",
    "topic add-partitions": "t -n 1",
    "topic alter": "t -s retention.ms=1",
    "topic check-settings": "--to kafka",
    "topic compact": "t",
    "topic consume": "t",
    "topic create": "t",
    "topic delete": "t",
    "topic describe": "t",
    "topic describe-storage": "t",
    "topic produce": "t",
    "topic trim": "t -o end -p all",
    "transaction abort": "x",
    "transaction describe": "x",
    "transaction find-hanging": "t",
    "user add": "a --password-file FILE",
    "user alter": "a --password-file FILE",
    "user remove": "a",
}
"""The arguments that a command needs, for those that need some."""


def list_parsers(parent: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yields the parser of each command."""
    if isinstance(parent, Parser):
        parent.complete()
    below = {
        id(made): (f"{name} {verb}".strip(), made)
        for action in parent._actions
        if isinstance(action, argparse._SubParsersAction)
        for verb, made in reversed(action.choices.items())  # an alias comes after the name
    }
    for words, made in below.values():
        yield from list_parsers(made, words)
    if not below:
        yield name, parent


def has_option(command: argparse.ArgumentParser, name: str) -> bool:
    """True if a command has an option."""
    return any(name in action.option_strings for action in command._actions)


WHOLE_PARSER = parser()
REACHING = sorted(name for name, made in list_parsers(WHOLE_PARSER) if has_option(made, "--ignore-profile"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of a user's configuration. Commands share a parser: it takes longer to make than they do."""
    monkeypatch.setattr("tiered_api.cli.main.parser", lambda: WHOLE_PARSER)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def test_every_command_that_reaches_a_cluster_takes_a_profile() -> None:
    options = ("--brokers", "--bootstrap", "--command-config")
    found = {name for name, made in list_parsers(WHOLE_PARSER) if any(has_option(made, option) for option in options)}
    assert found - {"up", "profile create"} == set(REACHING) and WORDS.keys() <= set(REACHING)
    assert "serve" not in REACHING and "topic produce" in REACHING and "sql" in REACHING


@pytest.mark.parametrize("name", REACHING)
def test_command_uses_the_chosen_profile_and_names_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    password = tmp_path / "password"
    password.write_text("pencil\n")
    words = [*name.split(), *WORDS.get(name, "").replace("FILE", str(password)).split(" ")]
    words = [word for word in words if word] + (["--warehouse", str(tmp_path)] if "--bootstrap" in words else [])
    file, client = tmp_path / "config" / "tiered" / "profiles.toml", tmp_path / "client.properties"
    client.write_text("security.protocol=CLIENT\n")
    for profile in ("FLAG", "VARIABLE", "CURRENT"):
        assert main(["profile", "create", profile, "-s", f"security.protocol={profile}"]) == 0

    def run(protocol: str, source: str, *more: str) -> None:
        capsys.readouterr()
        assert main([*words, *more]) == Exit.USAGE
        said = capsys.readouterr().err
        assert f"security.protocol={protocol}: it must be" in said and f"(security.protocol from {source})" in said

    current = f"current profile 'CURRENT' ({file})"
    run("CURRENT", current)
    monkeypatch.setenv(PROFILE_VARIABLE, "VARIABLE")
    run("VARIABLE", f"profile 'VARIABLE' ({file})")
    run("FLAG", f"profile 'FLAG' ({file})", "--profile", "FLAG")
    monkeypatch.setenv(FILE_VARIABLE, str(client))
    run("CLIENT", f"TIERED_COMMAND_CONFIG {client}")
    run("CLIENT", f"TIERED_COMMAND_CONFIG {client}", "--ignore-profile")
    run("FLAG", f"profile 'FLAG' ({file})", "--profile", "FLAG")
    monkeypatch.delenv(FILE_VARIABLE)
    run("CLIENT", f"--command-config {client}", "--command-config", str(client))
    monkeypatch.delenv(PROFILE_VARIABLE)
    monkeypatch.setenv("TIERED_SECURITY_PROTOCOL", "SINGLE")
    run("SINGLE", "TIERED_SECURITY_PROTOCOL")
    run("FLAG", f"profile 'FLAG' ({file})", "--profile", "FLAG")


def test_unreachable_brokers_are_told_with_their_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tiered_api.cli.reach.RETRY_SECONDS", 0.0)
    assert main(["profile", "create", "prod", "-s", "brokers=127.0.0.1:1"]) == 0
    capsys.readouterr()
    assert main(["topic", "list"]) == Exit.UNAVAILABLE
    source = f"current profile 'prod' ({folder}/tiered/profiles.toml)"
    assert capsys.readouterr().err.endswith(f": check the brokers from {source}\n")
    assert main(["topic", "list", "--brokers", "127.0.0.1:2"]) == Exit.UNAVAILABLE
    said = capsys.readouterr().err
    assert "127.0.0.1:2" in said and said.endswith(": check --brokers\n")
    for words in (["sql", "SELECT 1"], ["table", "ls"]):
        assert main([*words, "--warehouse", str(folder), "--profile", "prod"]) == Exit.USAGE
        assert "the profile has no setting http" in capsys.readouterr().err
        assert main([*words, "--warehouse", str(folder), "--profile", "prod", "--store", "file:///x"]) == Exit.USAGE
        assert "--profile has no effect without --bootstrap" in capsys.readouterr().err


def test_profiles_are_made_shown_chosen_and_removed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(words: str, code: int = 0) -> str:
        assert main(words.split()) == code
        out, err = capsys.readouterr()
        assert "pencil" not in err
        return str(err if code else out)

    def rows(words: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in run(f"{words} --format json").splitlines()]

    assert run("profile current") == "" and rows("profile ls") == []
    assert "no profile is current" in run("profile show", 2)
    run("profile create dev --set brokers=d:1 --set sasl.password=pencil --set ssl.ca.location=ca.pem -d test")
    run("profile create prod --from-profile dev -s bootstrap.servers=p:1 -s brokers=")
    assert run("profile current") == "prod\n"
    shown = {row["setting"]: row["value"] for row in rows("profile show")}
    assert shown == {
        "bootstrap.servers": "p:1",
        "description": "test",
        "sasl.password": "[hidden]",
        "ssl.ca.location": str(Path.cwd() / "ca.pem"),
    }
    assert {"setting": "sasl.password", "value": "pencil"} in rows("profile print prod --secrets")
    listed = {"command_config": None, "description": "test"}
    assert rows("profile list") == [
        {"name": "dev", "current": "no", "brokers": "d:1"} | listed,
        {"name": "prod", "current": "yes", "brokers": "p:1"} | listed,
    ]
    run("profile set timeout=5 description= --profile dev")
    assert {"setting": "timeout", "value": "5"} in rows("profile show dev")
    run("profile use dev")
    assert run("profile current") == "dev\n"
    assert "and no profile is current" in run("profile remove dev")
    assert "no profile 'dev': it has prod" in run("profile use dev", 2)
    assert "no profile 'dev': it has prod" in run("topic list --profile dev", 2)
    run("profile use prod")
    run("profile clear")
    run("profile delete prod")
    assert (folder / "tiered" / "profiles.toml").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("profile create a/b", "cannot name a profile"),
        ("profile create known", "there is a profile 'known' already"),
        ("profile create new -s brokres=x", "unknown setting 'brokres'; did you mean brokers?"),
        ("profile create new -s brokers=x:y", "brokers x:y: it must be HOST:PORT"),
        ("profile create new -s http=x:y", "http=x:y: it must be HOST:PORT"),
        ("profile create new -s timeout=0", "timeout=0: it must be seconds"),
        ("profile create new --command-config /absent", "/absent: it cannot be read"),
        ("profile create new --from-profile absent", "no profile 'absent': it has known"),
        ("profile set timeout --profile known", "setting timeout: it must be NAME=VALUE"),
        ("profile set brokres= --profile known", "profile 'known': unknown setting 'brokres'"),
    ],
)
def test_profile_that_no_command_could_use_is_not_kept(
    words: str, why: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "create", "known"]) == 0
    before = (folder / "tiered" / "profiles.toml").read_text()
    try:
        assert main(words.split()) == Exit.USAGE
    except SystemExit as ended:
        assert ended.code == Exit.USAGE
    assert why in capsys.readouterr().err
    assert (folder / "tiered" / "profiles.toml").read_text() == before


def test_command_that_connects_again_keeps_its_profile(folder: Path) -> None:
    """A watch must not go on with another cluster, because somebody chose another profile."""
    assert main(["profile", "create", "one", "-s", "brokers=one:1"]) == 0
    args = WHOLE_PARSER.parse_args(["cluster", "health", "--watch"])
    assert find_client_settings(args).get("brokers") == "one:1"
    assert main(["profile", "create", "two", "-s", "brokers=two:2"]) == 0
    assert find_client_settings(args).get("brokers") == "one:1"
    assert find_client_settings(WHOLE_PARSER.parse_args(["cluster", "health"])).get("brokers") == "two:2"


def test_open_file_of_profiles_is_told_at_each_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tiered_api.cli.reach.RETRY_SECONDS", 0.0)
    assert main(["profile", "create", "one", "-s", "brokers=127.0.0.1:1"]) == 0
    (folder / "tiered" / "profiles.toml").chmod(0o640)
    capsys.readouterr()
    assert main(["topic", "list"]) == Exit.UNAVAILABLE
    assert capsys.readouterr().err.count("warning: other users may use") == 1


def test_broken_file_stops_no_command_that_ignores_profiles(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tiered_api.cli.reach.RETRY_SECONDS", 0.0)
    file = folder / "tiered" / "profiles.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[profiles")
    file.chmod(0o600)
    words = ["topic", "list", "--brokers", "127.0.0.1:1"]
    assert main(words) == Exit.USAGE and f"tiered: {file}: it is no TOML" in capsys.readouterr().err
    assert main([*words, "--ignore-profile"]) == Exit.UNAVAILABLE


def test_broker_starts_beside_the_variables_of_clients() -> None:
    given = dict.fromkeys((*VARIABLES, PROFILE_VARIABLE, FILE_VARIABLE), "x")
    settings, _ = load_settings(None, given, [], {})
    assert settings.ssl_key_password.reveal() == "x", "a setting of brokers too"


def test_secret_settings_are_never_shown_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    from tiered.clients.properties import _CONNECTION
    from tiered_api.cli.client_properties import EXTRAS
    from tiered_api.cli.profiles import SECRETS

    secret = re.compile(r"password|secret|jaas|keystore\.key$")
    assert {name for name in (*_CONNECTION, *EXTRAS) if secret.search(name)} == SECRETS

"""Tests of the sources of settings of connections: which one counts, and what errors say of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tiered.errors import Code, Refused
from tiered_api.cli.client_settings import ClientSettings, Source, merge_sources
from tiered_api.cli.client_sources import ChosenProfile, choose_profile

SECURE = {"security.protocol": "SASL_SSL", "sasl.username": "prod", "sasl.password": "pencil"}


@pytest.mark.parametrize(
    ("flag", "variable", "current", "is_ignored", "chosen"),
    [
        ("flag", "variable", "current", False, ChosenProfile("flag", 0)),
        (None, "variable", "current", False, ChosenProfile("variable", 1)),
        (None, "", "current", False, ChosenProfile("current", 2)),
        (None, "", "", False, None),
        (None, "variable", "current", True, None),
        ("", "variable", "current", False, ChosenProfile("", 0)),
    ],
)
def test_profile_of_an_option_wins_over_environment_and_current_one(
    flag: str | None, variable: str, current: str, is_ignored: bool, chosen: ChosenProfile | None
) -> None:
    assert choose_profile(flag, variable, current, is_ignored=is_ignored) == chosen


def client(name: str, settings: Mapping[str, str]) -> Source:
    return Source(name, settings, is_client=True)


def test_each_setting_comes_from_its_first_source() -> None:
    found = merge_sources(
        [
            Source("--brokers", {"brokers": "option:1"}, is_option=True),
            client("profile", {"brokers": "profile:1", "timeout": "7", "sasl.username": ""}),
            Source("TIERED_SASL_USERNAME", {"sasl.username": "ann"}),
        ]
    )
    assert [found.get(name) for name in ("brokers", "timeout", "sasl.username", "http")] == ["option:1", "7", "ann", ""]
    assert found.get("http", "default") == "default" and found.source("http") is None
    source = found.source("timeout")
    assert source is not None and source.name == "profile"


@pytest.mark.parametrize("first", [{"brokers": "dev:9092"}, {"security.protocol": "SSL"}, {}])
def test_login_of_a_profile_never_joins_another_client(first: dict[str, str]) -> None:
    """A file that names the brokers of a test cluster once got the password of production there."""
    found = merge_sources([client("file", first), client("current profile", SECURE | {"timeout": "7"})])
    assert found.get("timeout") == "7"
    assert found.get("security.protocol") == first.get("security.protocol", "")
    assert found.get("sasl.username") == found.get("sasl.password") == "" and "sasl.username" not in found.properties


def test_single_variables_complete_the_login_of_a_profile() -> None:
    own = {"security.protocol": "SASL_SSL", "sasl.username": "prod"}
    found = merge_sources([Source("TIERED_SASL_PASSWORD", {"sasl.password": "pencil"}), client("profile", own)])
    assert {name: found.get(name) for name in SECURE} == SECURE


def test_error_names_the_source_of_each_setting_but_of_options() -> None:
    found = merge_sources(
        [
            Source("-X", {"timeout": "x"}, is_option=True),
            client("profile 'prod' (/p.toml)", {"brokers": "b", "sasl.username": "ann"}),
            Source("TIERED_SASL_PASSWORD", {"sasl.password": "pencil"}),
        ]
    )

    def explain(why: str, settings: ClientSettings = found) -> str:
        return settings.explain(Refused(Code.INVALID_REQUEST, why)).why

    assert explain("brokers b: bad") == "brokers b: bad (brokers from profile 'prod' (/p.toml))"
    assert explain("timeout=x: bad") == "timeout=x: bad"
    assert explain("a login needs both sasl.username and sasl.password") == (
        "a login needs both sasl.username and sasl.password (sasl.username from profile 'prod' (/p.toml); "
        "sasl.password from TIERED_SASL_PASSWORD)"
    )
    assert explain("ssl.key.location=/k: bad") == "ssl.key.location=/k: bad"


def test_refused_login_names_the_source_of_user_and_password() -> None:
    """`-X sasl.password=wrong` beside a file: the file is right."""
    file = client("--command-config a.properties", SECURE)
    typed = Source("-X", {"sasl.password": "wrong"}, is_option=True)
    token = client("profile 'prod' (/p.toml)", {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"})

    def explain(*sources: Source, code: Code = Code.SASL_AUTHENTICATION_FAILED) -> str:
        return merge_sources(sources).explain_login(Refused(code, "no")).why

    assert explain(file) == "no (the login is from --command-config a.properties)"
    assert explain(typed, file) == "no (the user is from --command-config a.properties, the password from -X)"
    assert explain(Source("-X", SECURE, is_option=True), file) == "no"
    assert explain(token) == "no (the login is from profile 'prod' (/p.toml))"
    assert explain(file, code=Code.TOPIC_AUTHORIZATION_FAILED) == "no"

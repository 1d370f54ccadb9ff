"""Tests of the settings of logins by token: keys from an allowed place, an issuer and an audience."""

from __future__ import annotations

import pytest

from tiered.config.settings import Settings
from tiered.errors import Refused

URL = "https://login.example.com/keys"
GOOD = {
    "authentication.method": "BEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "file:///etc/tiered/keys.json",
    "sasl.oauthbearer.expected.issuer": "https://login.example.com/",
    "sasl.oauthbearer.expected.audience": "tiered, logs",
}
LISTENER = {"listeners": "SASL_SSL://127.0.0.1:0", "ssl.keystore.location": "/etc/tiered/broker.pem"}


def keys_at(url: str, *allowed: str) -> dict[str, str]:
    return {"sasl.oauthbearer.jwks.endpoint.url": url, "tiered.sasl.oauthbearer.allowed.urls": ",".join(allowed)}


@pytest.mark.parametrize(
    "more",
    [
        {},
        keys_at(URL, URL),
        keys_at("http://127.0.0.1:8080/keys", URL, "http://127.0.0.1:8080/keys"),
        {"authentication.method": "BASIC,BEARER"},
        {"authentication.method": "NONE", "sasl.enabled.mechanisms": "OAUTHBEARER", **LISTENER},
    ],
)
def test_tokens_of_one_issuer_for_this_service_are_accepted(more: dict[str, str]) -> None:
    settings = Settings.from_strings({**GOOD, **more})
    assert settings.uses_tokens and settings.sasl_oauthbearer_expected_audience == ("tiered", "logs")


@pytest.mark.parametrize(
    ("more", "name"),
    [
        (keys_at(URL), "jwks.endpoint.url"),
        (keys_at(URL, URL + "/x"), "jwks.endpoint.url"),
        (keys_at("http://login.example.com/keys", "http://login.example.com/keys"), "jwks.endpoint.url"),
        (keys_at("ftp://127.0.0.1/keys", "ftp://127.0.0.1/keys"), "jwks.endpoint.url"),
        (keys_at("file://host/keys"), "jwks.endpoint.url"),
        (keys_at("/etc/keys.json"), "jwks.endpoint.url"),
        (keys_at(""), "jwks.endpoint.url"),
        (keys_at("https://[::1/keys", "https://[::1/keys"), "jwks.endpoint.url"),
        (keys_at("https://a:99999/keys", "https://a:99999/keys"), "jwks.endpoint.url"),
        (keys_at("https://a..b/keys", "https://a..b/keys"), "jwks.endpoint.url"),
        (keys_at("https:///keys", "https:///keys"), "jwks.endpoint.url"),
        ({"sasl.oauthbearer.expected.issuer": ""}, "expected.issuer"),
        ({"sasl.oauthbearer.expected.audience": ""}, "expected.audience"),
        ({"sasl.oauthbearer.sub.claim.name": ""}, "sub.claim.name"),
        ({"authentication.method": "NONE,BEARER"}, "authentication.method"),
        ({**LISTENER, "sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.expected.audience": ""}, "audience"),
    ],
)
def test_tokens_from_anywhere_or_for_anything_are_refused(more: dict[str, str], name: str) -> None:
    with pytest.raises(Refused, match=name):
        Settings.from_strings({**GOOD, **more})


def test_settings_of_tokens_mean_nothing_without_a_login_by_token() -> None:
    plain = {"authentication.method": "NONE", "sasl.enabled.mechanisms": "OAUTHBEARER", **keys_at("ftp://x")}
    assert not Settings.from_strings({**GOOD, **plain}).uses_tokens


def test_passwords_of_users_are_taken_by_scram_and_by_basic() -> None:
    assert Settings.from_strings(LISTENER).takes_passwords
    assert Settings.from_strings({"authentication.method": "BASIC"}).takes_passwords
    for without in ({}, GOOD, {**GOOD, **LISTENER, "sasl.enabled.mechanisms": "OAUTHBEARER"}):
        assert not Settings.from_strings(without).takes_passwords

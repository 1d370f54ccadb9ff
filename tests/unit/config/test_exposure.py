"""Addresses that other machines reach: refused without TLS and a login, with words that say what to do."""

from __future__ import annotations

import pytest

from tiered.config.exposure import check_exposure
from tiered.config.settings import Settings
from tiered.errors import Code, Refused

KEY = {"ssl.keystore.location": "/broker.pem", "http": "127.0.0.1:0"}
CLIENTS = {**KEY, "ssl.client.auth": "required"}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"kafka": "localhost:9092", "http": "[::1]:8082"},
        {"kafka": "127.1.2.3:9092"},
        {**KEY, "listeners": "SASL_SSL://0.0.0.0:9092"},
        {**CLIENTS, "listeners": "SSL://:9092", "http": "https://0.0.0.0:8082"},
        {**KEY, "http": "https://0.0.0.0:8082", "authentication.method": "BASIC"},
        {**KEY, "listeners": "IN://127.0.0.1:1,SASL_SSL://10.0.0.1:2"},
        {**KEY, "listeners": "SSL://10.0.0.1:2", "listener.name.ssl.ssl.client.auth": "required"},
        {"kafka": "0.0.0.0:9092", "http": "0.0.0.0:8082", "tiered.insecure": "true"},
    ],
)
def test_loopback_and_protected_addresses_are_accepted(given: dict[str, str]) -> None:
    check_exposure(Settings.from_strings(given))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kafka": "0.0.0.0:9092"}, "listener PLAINTEXT at 0.0.0.0:9092: other machines reach it, and it has no TLS"),
        ({"kafka": "broker.example:9092"}, "listener PLAINTEXT at broker.example:9092"),
        ({"kafka": "[::]:9092"}, "listener PLAINTEXT at [::]:9092"),
        ({"listeners": "SASL_PLAINTEXT://10.0.0.1:9092"}, "and it has no TLS. Give it the protocol SASL_SSL"),
        ({**KEY, "listeners": "SSL://10.0.0.1:9092"}, "and it has no login. Give it"),
        ({**KEY, "listeners": "SSL://10.0.0.1:9092", "ssl.client.auth": "requested"}, "and it has no login"),
        ({"http": "0.0.0.0:8082"}, "http at 0.0.0.0:8082: other machines reach it, and it has no TLS and no login"),
        ({**KEY, "http": "https://0.0.0.0:8082"}, "http at 0.0.0.0:8082: other machines reach it, and it has no login"),
        ({"http": "0.0.0.0:8082", "authentication.method": "BASIC"}, "and it has no TLS. Give it http=https://HOST"),
    ],
)  # fmt: skip
def test_open_address_is_refused_with_what_to_do(given: dict[str, str], words: str) -> None:
    with pytest.raises(Refused) as refused:
        check_exposure(Settings.from_strings(given))
    assert words in refused.value.why and refused.value.code is Code.INVALID_CONFIG
    assert (
        "or bind 127.0.0.1; tiered.insecure=true accepts it as it is (docs/reference/security.md)" in refused.value.why
    )

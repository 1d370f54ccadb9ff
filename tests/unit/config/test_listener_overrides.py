"""Settings of single listeners: those that are in force, and refusals without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.config.settings import Settings
from tiered.errors import Code, Refused
from tiered.security.secret import Secret
from tiered_api.cli.broker.sources import load_settings

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
LISTENERS = {"listeners": "IN://127.0.0.1:1,OUT://127.0.0.1:2", "listener.security.protocol.map": "IN:SASL_SSL,OUT:SSL"}
KEY = {"ssl.keystore.location": "/shared.pem"}


def test_setting_of_a_listener_wins_there_and_nowhere_else() -> None:
    own = {
        "listener.name.out.ssl.keystore.location": "/out.pem",
        "listener.name.out.ssl.client.auth": "required",
        "listener.name.in.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.in.connections.max.reauth.ms": "1000",
    }
    settings = Settings.from_strings({**LISTENERS, **KEY, **own})
    inside, outside = settings.for_listener("IN"), settings.for_listener("OUT")
    assert (inside.ssl_keystore_location, inside.ssl_client_auth) == ("/shared.pem", "none")
    assert (outside.ssl_keystore_location, outside.ssl_client_auth) == ("/out.pem", "required")
    assert (inside.sasl_enabled_mechanisms, inside.connections_max_reauth_ms) == (("SCRAM-SHA-256",), 1000)
    assert settings.connections_max_reauth_ms == outside.connections_max_reauth_ms == 0
    assert settings.for_listener("HTTP") is settings
    later = Settings.from_strings({"ssl.keystore.location": "/new.pem"}, defaults=settings)
    assert later.for_listener("OUT").ssl_keystore_location == "/out.pem"


def test_limit_of_a_listener_is_that_of_the_broker_unless_it_has_its_own() -> None:
    own = {"listener.name.out.max.connections": "7", "max.connections": "9", "max.connection.creation.rate": "3"}
    settings = Settings.from_strings({**LISTENERS, **KEY, **own})
    assert settings.for_listener("OUT").max_connections == 7 and settings.for_listener("IN").max_connections == 9
    assert settings.for_listener("OUT").max_connection_creation_rate == 3


def test_users_of_plain_are_those_of_the_listener() -> None:
    value = f'{MODULE} required username="admin" password="s3cret" user_alice="s3cret";'
    given = {
        **LISTENERS,
        **KEY,
        "listener.name.in.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.in.plain.sasl.jaas.config": value,
    }
    settings = Settings.from_strings(given)
    assert settings.plain_users("IN") == {"alice": Secret("s3cret")} and not settings.plain_users("OUT")
    assert "s3cret" not in repr(settings) and "s3cret" not in str(settings.to_strings())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "the listener IN needs a key"),
        ({"listener.name.in.ssl.keystore.location": "/in.pem"}, "the listener OUT needs a key"),
        ({**KEY, "listener.name.other.ssl.client.auth": "none"}, "listener.name.other.ssl.client.auth: no listener"),
        ({**KEY, "listener.name.in.ssl.client.auth": "always"}, "listener.name.in.ssl.client.auth=always: it must be"),
        ({**KEY, "listener.name.in.node.id": "3"}, "a listener has no setting node.id of its own"),
        ({**KEY, "listener.name.in": "3"}, "listener.name.in: a listener has no setting without a name"),
        ({**KEY, "sasl.enabled.mechanisms": "PLAIN"}, "PLAIN needs users in listener.name.in.plain.sasl.jaas.config"),
        (
            {**KEY, "listener.name.in.plain.sasl.jaas.config": f"{MODULE} required user_a=s3cret"},
            "listener.name.in.plain.sasl.jaas.config: it must be the class of a login module",
        ),
        (
            {**KEY, "listener.name.in.plain.sasl.jaas.config": f"{MODULE} required password=s3cret;"},
            "listener.name.in.plain.sasl.jaas.config: it must have users",
        ),
        ({**KEY, "listener.name.in.ssl.key.password": ""}, ""),
    ],
)
def test_setting_that_no_listener_can_have_is_refused(given: dict[str, str], why: str) -> None:
    if not why:
        Settings.from_strings({**LISTENERS, **given})
        return
    with pytest.raises(Refused) as refused:
        Settings.from_strings({**LISTENERS, **given})
    assert why in refused.value.why and refused.value.code is Code.INVALID_CONFIG
    assert "s3cret" not in refused.value.why


def test_login_of_kafkas_brokers_has_no_effect(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    name = "listener.name.in.scram-sha-512.sasl.jaas.config"
    rows = {**LISTENERS, **KEY, name: 'a.ScramLoginModule required username="b" password="s3cret";'}
    file.write_text("".join(f"{key}={value}\n" for key, value in rows.items()))
    settings, (warning,) = load_settings(str(file), {}, [], {})
    assert not settings.listener_overrides
    assert warning.startswith(f"{name} has no effect") and "s3cret" not in warning

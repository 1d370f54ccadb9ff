"""TLS of a broker: the certificates that its listeners ask for, after a change of the cluster's settings."""

from __future__ import annotations

import logging

import pytest

from tiered.broker.encryption import ListenerTls
from tiered.config.settings import Settings

OPEN, LOOPBACK = "SSL://0.0.0.0:9092", "SSL://127.0.0.1:9092"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({"listeners": OPEN}, "required"),
        ({"listeners": LOOPBACK, "http": "https://0.0.0.0:8082"}, "required"),
        ({"listeners": LOOPBACK}, "none"),
        ({"listeners": OPEN, "tiered.insecure": "true"}, "none"),
    ],
)
def test_change_that_would_open_an_address_of_this_broker_is_not_used(
    given: dict[str, str], used: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller that accepted the change has other addresses."""
    caplog.set_level(logging.ERROR)
    common = {"http": "127.0.0.1:0", "ssl.keystore.location": "/broker.pem", "ssl.client.auth": "required"}
    start = Settings.from_strings({**common, **given})
    in_force = [start]
    tls = ListenerTls(lambda: in_force[0], start)
    assert tls.of_listener("SSL")._options().client_auth == "required"
    in_force[0] = Settings.from_strings({"ssl.client.auth": "none"}, defaults=start)
    assert [tls.of_listener("SSL")._options().client_auth for _ in range(2)] == [used] * 2
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (used == "required") and all("ssl.client.auth" in line for line in lines)
    in_force[0] = Settings.from_strings({"ssl.client.auth": "requested"}, defaults=start)
    assert tls.shared._options().client_auth == ("required" if used == "required" else "requested")

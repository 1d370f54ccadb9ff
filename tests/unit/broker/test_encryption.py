"""TLS of a broker: the certificates that its listeners ask for, after a change of the cluster's settings."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.certificates import sign
from tests.unit.hot.fixtures import FixedClock
from tiered.broker.encryption import ListenerTls, tls_options
from tiered.config.settings import Settings
from tiered.metrics import Metrics
from tiered.security.certificates import DAY_MS
from tiered.system.clock import SystemClock
from tiered.system.tls_contexts import find_distrust
from tiered.system.tls_options import Store

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
    tls = ListenerTls(lambda: in_force[0], start, SystemClock(), Metrics())
    assert tls.of_listener("SSL")._options().client_auth == "required"
    in_force[0] = Settings.from_strings({"ssl.client.auth": "none"}, defaults=start)
    assert [tls.of_listener("SSL")._options().client_auth for _ in range(2)] == [used] * 2
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (used == "required") and all("ssl.client.auth" in line for line in lines)
    in_force[0] = Settings.from_strings({"ssl.client.auth": "requested"}, defaults=start)
    assert tls.shared._options().client_auth == ("required" if used == "required" else "requested")


def test_certificates_of_all_listeners_stand_in_problems_and_metrics(tmp_path: Path) -> None:
    authority, clock, metrics = sign("CN=authority"), FixedClock(SystemClock().wall_ms()), Metrics()
    shared, own = tmp_path / "broker.pem", tmp_path / "own.pem"
    broker = sign("CN=broker", authority, days=(-1, 60))
    broker.write(shared)
    sign("CN=own", authority, days=(-1, 90)).write(own)
    settings = Settings.from_strings(
        {
            "listeners": "IN://127.0.0.1:0,OUT://127.0.0.1:0,PLAIN://127.0.0.1:0",
            "listener.security.protocol.map": "IN:SSL,OUT:SSL,PLAIN:PLAINTEXT",
            "inter.broker.listener.name": "IN",
            "http": "https://127.0.0.1:0",
            "ssl.keystore.location": str(shared),
            "listener.name.out.ssl.keystore.location": str(own),
        }
    )
    tls = ListenerTls(lambda: settings, settings, clock, metrics)
    expiry = metrics.gauge("tiered_tls_certificate_expiry_timestamp_seconds", "", ("listener",))
    rejected = metrics.gauge("tiered_tls_certificate_rejected", "", ("listener",))
    assert tls.list_certificates() == []
    for name in ("IN", "OUT"):
        tls.of_listener(name).check()
    assert list(tls.describe_problems()) == []
    assert expiry.value("IN") == expiry.value("http") == int(broker.certificate.not_valid_after_utc.timestamp())
    assert expiry.value("OUT") > expiry.value("IN") and "PLAIN" not in metrics.render()
    clock.wall += 47 * DAY_MS
    (problem,) = tls.describe_problems()
    assert problem.startswith("the certificate of listeners IN, http (CN=broker) expires at ")
    assert problem.endswith(", in 13.0 days: tiered.certificate.expiry.warning.days is 14")
    own.write_text("half a file")
    _, problem = tls.describe_problems()
    assert problem.startswith(
        "a new certificate or setting of TLS of listener OUT is not used, the old one stays: ssl.k"
    )
    assert [rejected.value(name) for name in ("IN", "OUT", "http")] == [0, 1, 0]


def test_certificate_that_the_own_trust_store_refuses_is_a_problem(tmp_path: Path) -> None:
    """Others verify only the listener for brokers by that trust store. Dates have problems of their own."""
    authority, clock = sign("CN=authority"), FixedClock(SystemClock().wall_ms())
    shared, trust = tmp_path / "broker.pem", tmp_path / "ca.pem"
    trust.write_text(authority.certificate_pem)
    sign("CN=stray", sign("CN=elsewhere"), days=(-1, 60)).write(shared)
    settings = Settings.from_strings(
        {
            "listeners": "IN://127.0.0.1:0,OUT://127.0.0.1:0",
            "listener.security.protocol.map": "IN:SSL,OUT:SSL",
            "inter.broker.listener.name": "IN",
            "http": "127.0.0.1:0",
            "ssl.client.auth": "required",
            "ssl.keystore.location": str(shared),
            "ssl.truststore.location": str(trust),
        }
    )
    tls = ListenerTls(lambda: settings, settings, clock, Metrics())
    for name in ("IN", "OUT"):
        tls.of_listener(name).check()
    (problem,) = tls.describe_problems()
    assert problem.startswith(
        "the certificate of listener IN (CN=stray) is refused by the trust store of this broker: brokers with the same"
    )
    assert "unable to get local issuer" in problem, problem
    sign("CN=good", authority, hosts=("elsewhere",), days=(-1, 60)).write(shared)
    assert list(tls.describe_problems()) == []
    sign("CN=old", authority, days=(-5, -1)).write(tmp_path / "old.pem")
    assert find_distrust(tls_options(settings)._replace(key=Store(location=str(tmp_path / "old.pem")))) == ""

"""TLS on either side: the same key of a new authority, on a second listener."""

from __future__ import annotations

from pathlib import Path

from bench.peer.brokers import MeasuredBroker
from tests.certificates import sign
from tests.ports import free_port

PROTOCOLS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
"""Kafka knows no protocol of its controller's listener by itself if another listener is not plain."""


def write_key(directory: Path) -> tuple[Path, Path]:
    """Returns the files of a key with its certificate, and of the authority that signed it. They are made once."""
    key, authority = directory / "broker.pem", directory / "authority.pem"
    if not key.exists():
        made = sign("CN=authority")
        authority.write_text(made.certificate_pem)
        sign("CN=localhost", made).write(key)
    return key, authority


def add_tls(broker: MeasuredBroker, directory: Path) -> dict[str, object]:
    """Gives a broker that does not run yet a second listener, with TLS. Returns the properties of clients that use it,
    for librdkafka."""
    key, authority = write_key(directory)
    address = f"127.0.0.1:{free_port()}"
    broker.settings |= {
        "listeners": f"PLAINTEXT://{broker.address},SSL://{address}",
        "listener.security.protocol.map": PROTOCOLS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(key),
    }
    return {"bootstrap.servers": address, "security.protocol": "ssl", "ssl.ca.location": str(authority)}

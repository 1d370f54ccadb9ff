"""TLS of a broker as users start it: the command line and a client of Kafka over it, renewed and bad certificates."""

from __future__ import annotations

import socket
from pathlib import Path

from confluent_kafka import Consumer, Producer

from tests.certificates import Signed, sign
from tests.e2e.serving import ServeProcess, run_tiered

AUTHORITY = sign("CN=authority")
PASSWORD = "eightyeight"


def write_certificates(folder: Path, authority: Signed = AUTHORITY) -> tuple[str, str]:
    """Writes the certificate of a broker and that of its authority; returns both paths."""
    folder.mkdir(exist_ok=True)
    trusted = folder / "ca.pem"
    trusted.write_text(authority.certificate_pem)
    broker = sign("CN=broker", authority)
    key = folder / "broker.pem"
    key.write_text(broker.encrypted_key_pem(PASSWORD) + broker.certificate_pem)
    return str(key), str(trusted)


def options(broker: ServeProcess, ca: str) -> tuple[str, ...]:
    """Returns the options of a command that reaches the broker with TLS."""
    return ("--brokers", broker.kafka, "-X", "security.protocol=SSL", "-X", f"ssl.ca.location={ca}")


def test_broker_and_its_clients_speak_tls(tmp_path: Path) -> None:
    key, ca = write_certificates(tmp_path / "certificates")
    files = (f"ssl.keystore.location={key}", f"ssl.key.password={PASSWORD}", f"ssl.truststore.location={ca}")
    settings = ("listeners=SSL://127.0.0.1:0", *files)
    pairs = [word for each in settings for word in ("-c", each)]
    with ServeProcess(tmp_path / "data", *pairs) as broker:
        created = run_tiered("topic", "create", "flights", *options(broker, ca))
        assert created.returncode == 0, created.stderr
        client = {"bootstrap.servers": broker.kafka, "security.protocol": "ssl", "ssl.ca.location": ca}
        producer = Producer({**client, "linger.ms": 5})
        values = [b"%d" % number * 500 for number in range(3000)]
        for value in values:
            producer.produce("flights", value)
        assert producer.flush(20) == 0
        consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["flights"])
        read: list[bytes | None] = []
        while len(read) < len(values):
            batch = consumer.consume(1000, 20)
            assert batch, broker.log.read_text()
            read += [message.value() for message in batch]
        consumer.close()
        assert read == values
        described = run_tiered("cluster", "config", "list", "--node", "1", *options(broker, ca))
        assert "ssl.key.password" in described.stdout and PASSWORD not in described.stdout, described.stderr

        plain = run_tiered("topic", "list", "--brokers", broker.kafka, "-X", "timeout=3")
        assert plain.returncode == 4 and "security.protocol=SSL" in plain.stderr, plain.stderr
        other = write_certificates(tmp_path / "others", sign("CN=authority"))[1]
        strange = run_tiered("topic", "list", *options(broker, other), "-X", "timeout=3")
        assert strange.returncode == 4 and "certificate of the other side is not accepted" in strange.stderr
        with socket.create_connection(("127.0.0.1", int(broker.kafka.rpartition(":")[2]))) as odd:
            odd.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert odd.recv(1000) != b"HTTP"
        log = broker.log.read_text()
    assert "reason=tls_handshake" in log and "Traceback" not in log and PASSWORD not in log


def test_tls_without_a_certificate_is_refused_at_the_start(tmp_path: Path) -> None:
    key, _ = write_certificates(tmp_path / "certificates")
    start = (
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--http",
        "127.0.0.1:0",
        "-c",
        "listeners=SSL://127.0.0.1:0",
    )
    refused = run_tiered(*start)
    assert refused.returncode == 2 and "ssl.keystore.location" in refused.stderr
    absent = run_tiered(*start, "-c", f"ssl.keystore.location={key}.absent")
    assert absent.returncode != 0 and "No such file" in absent.stderr
    locked = run_tiered(*start, "-c", f"ssl.keystore.location={key}", "-c", "ssl.key.password=wrong")
    assert locked.returncode != 0 and "ssl.key.password" in locked.stderr and "Traceback" not in locked.stderr

"""TLS of a broker as users start it: the command line and a client of Kafka over it, renewed and bad certificates."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, Producer

from tests.certificates import Signed, sign
from tests.e2e.serving import SECONDS, ServeProcess, run_tiered

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


def name_of_broker(broker: ServeProcess, ca: str) -> str:
    """Returns the name in the certificate that the broker shows now."""
    host, _, port = broker.kafka.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    with socket.create_connection((host, int(port))) as raw, context.wrap_socket(raw, server_hostname=host) as shown:
        certificate: Any = shown.getpeercert()
    return str(dict(part[0] for part in certificate["subject"])["commonName"])


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
        assert producer.flush(SECONDS) == 0
        consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["flights"])
        read: list[bytes | None] = []
        while len(read) < len(values):
            batch = consumer.consume(1000, 20)
            assert batch, broker.log.read_text()
            read += [message.value() for message in batch]
        consumer.close()
        assert read == values
        properties = tmp_path / "client.properties"
        properties.write_text(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={ca}\n")
        reach = ("--brokers", broker.kafka, "--command-config", str(properties))
        described = run_tiered("cluster", "config", "list", "--node", "1", *reach)
        assert "ssl.key.password" in described.stdout and PASSWORD not in described.stdout, described.stderr

        renewed = sign("CN=renewed", AUTHORITY)
        (tmp_path / "renewed.pem").write_text(renewed.encrypted_key_pem(PASSWORD) + renewed.certificate_pem)
        edit = f"ssl.keystore.location={tmp_path / 'renewed.pem'}"
        changed = run_tiered("cluster", "config", "set", edit, "--node", "1", *options(broker, ca))
        assert changed.returncode == 0, changed.stderr
        assert name_of_broker(broker, ca) == "renewed"

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


def test_start_with_a_key_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
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
    locked = run_tiered(*start, "-c", f"ssl.keystore.location={key}", "-c", "ssl.key.password=wrong")
    assert locked.returncode != 0 and "ssl.key.password" in locked.stderr and "Traceback" not in locked.stderr


@pytest.mark.also("tests/e2e/test_serve_tls.py::test_broker_and_its_clients_speak_tls")
def test_brokers_reach_each_other_with_certificates_of_their_own(tmp_path: Path) -> None:
    """A topic on both is written with acks=all, so the second one copies it over TLS."""
    key, ca = write_certificates(tmp_path / "certificates")
    settings = (
        "listeners=IN://127.0.0.1:0,OUT://127.0.0.1:0",
        "listener.security.protocol.map=IN:SSL,OUT:PLAINTEXT",
        "inter.broker.listener.name=IN",
        f"ssl.keystore.location={key}",
        f"ssl.key.password={PASSWORD}",
        f"ssl.truststore.location={ca}",
        "ssl.client.auth=required",
        "min.insync.replicas=2",
    )
    pairs = [word for each in settings for word in ("-c", each)]
    store = ("--store", f"file://{tmp_path}/bucket")
    with (
        ServeProcess(tmp_path / "one", *store, "--node-id", "1", *pairs) as first,
        ServeProcess(tmp_path / "two", *store, "--node-id", "2", *pairs),
    ):
        outside = ("--brokers", first.kafka.split(",")[1])
        created = run_tiered("topic", "create", "both", "-p", "2", "-r", "2", *outside)
        assert created.returncode == 0, created.stderr
        producer = Producer({"bootstrap.servers": first.kafka.split(",")[1], "acks": "all"})
        failed: list[object] = []

        def on_delivery(error: object, _: object) -> None:
            failed.extend([error] if error is not None else [])

        for number in range(200):
            producer.produce("both", b"%d" % number, partition=number % 2, on_delivery=on_delivery)
        assert producer.flush(SECONDS) == 0 and not failed
        inside = ("--brokers", first.kafka.split(",")[0], "-X", "security.protocol=SSL", "-X", f"ssl.ca.location={ca}")
        refused = run_tiered("topic", "list", *inside, "-X", "timeout=3")
        assert refused.returncode == 4, "it shows no certificate"


def test_http_is_served_with_tls_and_links_say_so(tmp_path: Path) -> None:
    key, ca = write_certificates(tmp_path / "certificates")
    pairs = ("-c", f"ssl.keystore.location={key}", "-c", f"ssl.key.password={PASSWORD}")
    context = ssl.create_default_context(cafile=ca)
    with ServeProcess(tmp_path / "data", *pairs, http="https://127.0.0.1:0") as broker:
        assert broker.url.startswith("https://127.0.0.1:")

        def get(path: str, **more: Any) -> Any:
            with urlopen(broker.url + path, timeout=SECONDS, **more) as response:
                return json.load(response)

        assert get("/healthz", context=context)["ok"]
        (cluster,) = get("/v3/clusters", context=context)["data"]
        assert cluster["metadata"]["self"].startswith(broker.url)
        with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
            get("/healthz")
        host, _, port = broker.url.partition("://")[2].rpartition(":")
        with socket.create_connection((host, int(port))) as plain:
            plain.settimeout(SECONDS)
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP")
        log = broker.log.read_text()
    assert "Traceback" not in log and PASSWORD not in log


@pytest.mark.also("tests/e2e/test_serve_tls.py::test_broker_and_its_clients_speak_tls")
def test_other_clients_speak_tls(tmp_path: Path) -> None:
    """Both have TLS of their own in Python, and send and read by the record."""
    key, ca = write_certificates(tmp_path / "certificates")
    pairs = (
        "-c",
        "listeners=SSL://127.0.0.1:0",
        "-c",
        f"ssl.keystore.location={key}",
        "-c",
        f"ssl.key.password={PASSWORD}",
    )
    values = [b"%d" % number for number in range(100)]
    with ServeProcess(tmp_path / "data", *pairs) as broker:
        assert run_tiered("topic", "create", "one", "two", *options(broker, ca)).returncode == 0
        settings = {"bootstrap_servers": broker.kafka, "security_protocol": "SSL"}
        sender = kafka.KafkaProducer(**settings, ssl_cafile=ca)
        for value in values:
            sender.send("one", value)
        sender.flush(SECONDS)
        sender.close()
        reader = kafka.KafkaConsumer(
            "one", **settings, ssl_cafile=ca, auto_offset_reset="earliest", consumer_timeout_ms=120_000
        )
        assert [message.value for _, message in zip(values, reader, strict=False)] == values
        reader.close()

        async def send_and_read() -> list[bytes]:
            context = ssl.create_default_context(cafile=ca)
            async with aiokafka.AIOKafkaProducer(**settings, ssl_context=context) as producer:
                for value in values:
                    await producer.send_and_wait("two", value)
            consumer = aiokafka.AIOKafkaConsumer("two", **settings, ssl_context=context, auto_offset_reset="earliest")
            async with consumer, asyncio.timeout(120):
                return [(await consumer.getone()).value for _ in values]

        assert asyncio.run(send_and_read()) == values


def test_certificates_that_are_not_used_make_the_cluster_unhealthy(tmp_path: Path) -> None:
    key, ca = tmp_path / "broker.pem", tmp_path / "ca.pem"
    ca.write_text(AUTHORITY.certificate_pem)
    sign("CN=broker", AUTHORITY).write(key)
    settings = ("listeners=SSL://127.0.0.1:0", f"ssl.keystore.location={key}")
    pairs = [word for each in settings for word in ("-c", each)]
    with ServeProcess(tmp_path / "data", *pairs, http="https://127.0.0.1:0") as broker:

        def fetch(path: str) -> str:
            with urlopen(
                broker.url + path, timeout=SECONDS, context=ssl.create_default_context(cafile=str(ca))
            ) as response:
                return bytes(response.read()).decode()

        assert json.loads(fetch("/healthz"))["problems"] == []
        sign("CN=late", AUTHORITY, days=(-3, -1)).write(key)
        (problem,) = json.loads(fetch("/healthz"))["problems"]
        assert "of listeners SSL, http is not used, the old one stays: the new certificate (CN=late) expired" in problem
        assert 'tiered_tls_certificate_rejected{listener="http"} 1' in fetch("/metrics")
        health = run_tiered("cluster", "health", *options(broker, str(ca)))
        assert health.returncode == 10 and f"broker 1: {problem}" in health.stdout, health.stderr
        shown = run_tiered("cluster", "certificates", "--format", "json", *options(broker, str(ca)))
        rows = [json.loads(line) for line in shown.stdout.splitlines()]
        assert [(row["listener"], row["subject"], row["state"]) for row in rows] == [
            ("SSL", "CN=broker", "valid"), ("http", "CN=broker", "valid"),
        ]  # fmt: skip
        assert shown.returncode == 10 and all("(CN=late) expired at" in row["reason"] for row in rows), shown.stderr
        sign("CN=good", AUTHORITY).write(key)
        assert json.loads(fetch("/healthz"))["problems"] == []
        assert name_of_broker(broker, str(ca)) == "good"
        assert run_tiered("cluster", "certificates", *options(broker, str(ca))).returncode == 0

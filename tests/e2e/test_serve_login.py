"""The login of a broker as users start it: the first users, the command line and librdkafka, and several brokers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from tests.e2e.serving import SECONDS, ServeProcess, run_tiered

PASSWORD = "eighty,eight"
USER = f"SCRAM-SHA-512=[name=admin,password={PASSWORD}]"


def options(brokers: str, password: str = PASSWORD) -> tuple[str, ...]:
    """Returns the options of a command that logs in."""
    pairs = ("security.protocol=SASL_PLAINTEXT", "sasl.username=admin", f"sasl.password={password}", "timeout=3")
    return ("--brokers", brokers, *(word for pair in pairs for word in ("-X", pair)))


def client(brokers: str, password: str = PASSWORD) -> dict[str, str | int]:
    """Returns the settings of a client of librdkafka that logs in."""
    return {
        "bootstrap.servers": brokers,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": password,
    }


def test_command_line_and_librdkafka_log_in(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"# the first user\n{USER}\n")
    start = ("--add-scram", f"@{users}", "-c", "listeners=SASL_PLAINTEXT://127.0.0.1:0")
    with ServeProcess(tmp_path / "data", *start) as broker:
        created = run_tiered("topic", "create", "flights", *options(broker.kafka))
        assert created.returncode == 0, created.stderr
        producer = Producer(client(broker.kafka))
        for number in range(100):
            producer.produce("flights", b"%d" % number)
        assert producer.flush(SECONDS) == 0
        consumer = Consumer({**client(broker.kafka), "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["flights"])
        read = consumer.consume(100, 20)
        assert [message.value() for message in read] == [b"%d" % number for number in range(100)]
        consumer.close()

        wrong = run_tiered("topic", "list", *options(broker.kafka, "seventyseven"))
        assert wrong.returncode != 0 and "the user or the password is wrong" in wrong.stderr
        silent = run_tiered("topic", "list", "--brokers", broker.kafka, "-X", "timeout=3")
        assert silent.returncode != 0 and "Traceback" not in silent.stderr
        errors: list[KafkaError] = []
        unauthorized = Producer({**client(broker.kafka, "seventyseven"), "error_cb": errors.append})
        end = time.monotonic() + SECONDS
        while KafkaError._AUTHENTICATION not in [error.code() for error in errors] and time.monotonic() < end:
            unauthorized.poll(1)
        assert KafkaError._AUTHENTICATION in [error.code() for error in errors]
        log = broker.log.read_text()
    assert "reason=login" in log and "Traceback" not in log and PASSWORD not in log


def test_user_that_cannot_be_read_is_refused_without_its_password(tmp_path: Path) -> None:
    start = ("serve", "--data-dir", str(tmp_path / "data"), "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0")
    for user in (f"PLAIN=[name=a,password={PASSWORD}]", f"SCRAM-SHA-256=[password={PASSWORD}]", "@/absent"):
        refused = run_tiered(*start, "--add-scram", user)
        assert refused.returncode == 2 and "--add-scram" in refused.stderr and PASSWORD not in refused.stderr


@pytest.mark.also("tests/e2e/test_serve_login.py::test_command_line_and_librdkafka_log_in")
def test_brokers_log_in_at_each_other(tmp_path: Path) -> None:
    """A topic on both is written with acks=all, so the second broker copies it over a login."""
    settings = ("listeners=SASL_PLAINTEXT://127.0.0.1:0", "min.insync.replicas=2")
    pairs = [*("--add-scram", USER), *(word for each in settings for word in ("-c", each))]
    store = ("--store", f"file://{tmp_path}/bucket")
    with (
        ServeProcess(tmp_path / "one", *store, "--node-id", "1", *pairs) as first,
        ServeProcess(tmp_path / "two", *store, "--node-id", "2", *pairs) as second,
    ):
        created = run_tiered("topic", "create", "both", "-p", "2", "-r", "2", *options(first.kafka))
        assert created.returncode == 0, created.stderr
        producer = Producer({**client(second.kafka), "acks": "all"})
        failed: list[object] = []

        def on_delivery(error: object, _: object) -> None:
            failed.extend([error] if error is not None else [])

        for number in range(200):
            producer.produce("both", b"%d" % number, partition=number % 2, on_delivery=on_delivery)
        assert producer.flush(SECONDS) == 0 and not failed

"""Test of two real brokers in two racks, and a consumer of librdkafka that names its rack."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.serving import SECONDS, ServeProcess, run_tiered

confluent_kafka = pytest.importorskip("confluent_kafka")


def fetched_bytes(broker: ServeProcess) -> int:
    """Returns the bytes of records that a broker sent to consumers."""
    _, text = broker.ask("GET", "/metrics")
    found = re.search(r"^tiered_kafka_fetched_bytes_total (\S+)", text, re.MULTILINE)
    return int(float(found.group(1))) if found else 0


def test_consumer_reads_in_its_rack(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'bucket'}"
    with ExitStack() as stack:
        brokers = {}
        for node, rack in ((1, "a"), (2, "b")):
            given = ("--store", store, "--node-id", str(node), "-c", f"broker.rack={rack}")
            brokers[node] = stack.enter_context(ServeProcess(tmp_path / f"b{node}", *given))
        at = ("--brokers", brokers[1].kafka)
        made = run_tiered("topic", "create", "t", "-p", "2", "-r", "2", *at)
        assert made.returncode == 0, made.stderr
        producer = confluent_kafka.Producer({"bootstrap.servers": brokers[1].kafka, "acks": "all"})
        for number in range(1_000):
            producer.produce("t", b"%04d" % number * 50, partition=number % 2)
        assert producer.flush(SECONDS) == 0
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": brokers[1].kafka,
                "group.id": "g",
                "client.rack": "b",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition("t", p, 0) for p in (0, 1)])
        got: set[bytes] = set()
        deadline = time.monotonic() + SECONDS
        while len(got) < 1_000 and time.monotonic() < deadline:
            got |= {message.value()[:4] for message in consumer.consume(100, 0.5) if message.error() is None}
        consumer.close()
        assert len(got) == 1_000
        assert fetched_bytes(brokers[1]) == 0 and fetched_bytes(brokers[2]) > 200_000

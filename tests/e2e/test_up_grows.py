"""Test of a cluster of one broker that is started with three: existing topics get replicas on all of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving import SECONDS, run_tiered
from tests.e2e.test_up import needs_proc, start_up

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

GIVEN = ("default.replication.factor=3", "offsets.topic.num.partitions=2", "group.initial.rebalance.delay.ms=0")
QUICK = [word for setting in GIVEN for word in ("-c", setting)]


def produce(brokers: str, *values: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": brokers, "acks": "all"})
    for value in values:
        producer.produce("t", value)
    assert producer.flush(SECONDS) == 0


def consume(brokers: str, count: int) -> list[str]:
    """Returns the records of a group that continues at its offset, and commits them."""
    group = {"group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": brokers, **group})
    consumer.subscribe(["t"])
    got: list[str] = []
    deadline = time.monotonic() + SECONDS
    while len(got) < count and time.monotonic() < deadline:
        got += [each.value().decode() for each in consumer.consume(10, 0.5) if each.error() is None]
    consumer.close()
    return sorted(got)


def isr_sizes(client: Any) -> dict[str, int]:
    """Returns the ISR sizes of all partitions of each topic."""
    found = client.list_topics(timeout=SECONDS)
    return {name: sum(len(each.isrs) for each in topic.partitions.values()) for name, topic in found.topics.items()}


@needs_proc
@pytest.mark.slow
def test_topics_and_groups_of_a_single_broker_gain_replicas_on_three(tmp_path: Path) -> None:
    with start_up(tmp_path / "data", 1, *QUICK) as alone:
        at = ("--brokers", alone.kafka[0])
        assert run_tiered("topic", "create", "t", "-p", "2", *at).returncode == 0
        assert run_tiered("topic", "create", "said", "-r", "1", *at).returncode == 0
        produce(alone.kafka[0], "a", "b", "c")
        assert consume(alone.kafka[0], 3) == ["a", "b", "c"]
        assert alone.stop() == 0
    with start_up(tmp_path / "data", 3, *QUICK) as three:
        deadline, client = time.monotonic() + SECONDS, admin.AdminClient({"bootstrap.servers": three.kafka[2]})
        while (found := isr_sizes(client)) != {"t": 6, "said": 1, "__consumer_offsets": 6}:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
        produce(three.kafka[1], "d")
        assert consume(three.kafka[2], 1) == ["d"]
        assert three.stop() == 0, three.log.read_text()

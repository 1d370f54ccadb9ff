"""Tests of `flush=bucket` with real processes: what was acknowledged survives the loss of all of them and of their
disks."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.e2e.serving import ServedCluster, ServeProcess, run_tiered

SECONDS = 60.0
BROKERS = (1, 2, 3)
SETTINGS = ("-c", "tiered.wal.window.ms=20")


class LosingCluster:
    """Three brokers that are killed together, and start again without their disks."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self.cluster = self._start()

    def _start(self) -> ServedCluster:
        store = f"file://{self._directory}/bucket"
        started = [
            self._stack.enter_context(
                ServeProcess(self._directory / f"b{node}", *SETTINGS, "--store", store, "--node-id", str(node))
            )
            for node in BROKERS
        ]
        return ServedCluster(started, store)

    def lose_all(self) -> None:
        """Kills all brokers, deletes their directories, and starts them again."""
        for broker in self.cluster.brokers:
            broker.stop(signal.SIGKILL)
        for node in BROKERS:
            shutil.rmtree(self._directory / f"b{node}")
        self.cluster = self._start()

    @property
    def bootstrap(self) -> dict[str, Any]:
        return {"bootstrap.servers": ",".join(self.cluster.kafka)}

    def close(self) -> None:
        self._stack.close()


@contextmanager
def losing_cluster(directory: Path) -> Iterator[LosingCluster]:
    made = LosingCluster(directory)
    try:
        yield made
    finally:
        made.close()


def write(cluster: LosingCluster, first: int, count: int, *, commits: bool = True) -> None:
    """Writes records in one transaction."""
    producer = Producer({**cluster.bootstrap, "transactional.id": "shop"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    for number in range(first, first + count):
        producer.produce("orders", str(number).encode(), key=str(number % 7).encode())
    producer.flush(SECONDS)
    (producer.commit_transaction if commits else producer.abort_transaction)(SECONDS)


def read(cluster: LosingCluster, group: str, count: int) -> list[int]:
    """Reads on in a group, commits, and returns the values."""
    consumer = Consumer(
        {
            **cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    values: list[int] = []
    while len(values) < count:
        for message in consumer.consume(count - len(values), SECONDS):
            assert message.error() is None, message.error()
            values.append(int(message.value() or b""))
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


@pytest.mark.slow
def test_drained_cluster_survives_the_loss_of_all_brokers_and_disks(tmp_path: Path) -> None:
    with losing_cluster(tmp_path) as cluster:
        admin = AdminClient(cluster.bootstrap)
        admin.create_topics([NewTopic("orders", 3, 1)])["orders"].result(SECONDS)
        write(cluster, 0, 100)
        write(cluster, 100, 50, commits=False)
        first = read(cluster, "billing", 40)
        drained = run_tiered("cluster", "drain", "--brokers", ",".join(cluster.cluster.kafka), "--format", "json")
        assert drained.returncode == 0, drained
        cluster.lose_all()
        second = read(cluster, "billing", 60)
        assert sorted(first + second) == list(range(100)), "each record once, and none of the aborted ones"
        write(cluster, 150, 10)
        cluster.lose_all()
        assert sorted(read(cluster, "billing", 10)) == list(range(150, 160))
        consumer = Consumer({**cluster.bootstrap, "group.id": "other"})
        ends = [consumer.get_watermark_offsets(TopicPartition("orders", p), SECONDS)[1] for p in range(3)]
        consumer.close()
        assert sum(ends) >= 160
        told = run_tiered("cluster", "losses", "--brokers", ",".join(cluster.cluster.kafka), "--format", "json")
        assert (told.returncode, told.stdout) == (0, ""), told

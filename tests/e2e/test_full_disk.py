"""Test of three broker processes of which a follower and then the leader cannot write, until they can again.

A limit of the size of files stands for a full disk: it needs no rights, and small files still take writes.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving import SECONDS, run_tiered
from tests.e2e.test_up import UpProcess, needs_proc, start_up

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

QUICK = ("-c", "default.replication.factor=3", "-c", "min.insync.replicas=2", "-c", "replica.lag.time.max.ms=2000")
FILE_BYTES = 1 << 20
VALUE = b"x" * 50_000
ROUND = 40
"""Records of a round: together more than a file may have."""


class Drill:
    """A topic of the cluster, with a producer that retries and counts what was acknowledged."""

    def __init__(self, cluster: UpProcess) -> None:
        self.address = cluster.kafka[0]
        self.nodes = dict(enumerate(cluster.pids(), 1))
        self.acked = 0
        self._admin = admin.AdminClient({"bootstrap.servers": self.address})
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": ",".join(cluster.kafka), "acks": "all", "enable.idempotence": True, "linger.ms": 0}
        )

    def partition(self) -> Any:
        return self.partitions("t")[0]

    def partitions(self, topic: str) -> Any:
        return self._admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions

    def produce(self) -> float:
        """Produces a round; returns the seconds until all of it is acknowledged."""
        began, before = time.monotonic(), self.acked

        def on_delivery(error: object, _: object) -> None:
            self.acked += error is None

        for _ in range(ROUND):
            self._producer.produce("t", VALUE, on_delivery=on_delivery)
        assert self._producer.flush(SECONDS) == 0 and self.acked == before + ROUND
        return time.monotonic() - began

    def problems(self) -> str:
        done = run_tiered("cluster", "health", "--brokers", self.address)
        return done.stdout + done.stderr

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.problems()
            time.sleep(0.2)

    @contextmanager
    def full(self, node: int) -> Iterator[None]:
        """Lets no file of a broker grow beyond a size within the context."""
        pid = self.nodes[node]
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES, before[1]))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.also("tests/sim/scenarios/test_full_disks.py")
@needs_proc
@pytest.mark.slow
def test_writes_go_on_while_a_follower_and_then_the_leader_is_full(tmp_path: Path) -> None:
    with start_up(tmp_path / "data", 3, *QUICK) as cluster:
        drill = Drill(cluster)
        assert run_tiered("topic", "create", "t", "-r", "3", "--brokers", drill.address).returncode == 0
        leader = drill.partition().leader
        follower = next(node for node in drill.nodes if node != leader)

        with drill.full(follower):
            drill.produce()
            drill.wait_until(lambda: follower not in drill.partition().isrs)
            drill.wait_until(lambda: f"broker {follower}: disk full since" in drill.problems())
            assert "File too large" in drill.problems()
            described = run_tiered("topic", "describe", "t", "--brokers", drill.address).stdout
            for shown in (described, drill.problems()):
                assert f"the disk of broker {follower} is full" in shown
            assert run_tiered("topic", "create", "u", "-p", "3", "-r", "2", "--brokers", drill.address).returncode == 0
            made = drill.partitions("u")
            assert not any(follower in each.replicas for each in made.values())
            done = run_tiered("cluster", "reassign", f"u/0={follower}", "--brokers", drill.address)
            assert f"the disk of broker {follower} is full" in done.stderr, done
            assert drill.partition().leader == leader
        drill.wait_until(lambda: follower in drill.partition().isrs)

        with drill.full(leader):
            drill.produce()
            assert drill.partition().leader != leader and leader not in drill.partition().isrs
            moved = f"partitions from broker {leader}: disk full"
            assert "moved leadership of " in drill.problems() and moved in drill.problems()
            cluster.wait_for_line(moved)
        drill.wait_until(lambda: rows_are_healthy(drill.address))
        drill.wait_until(lambda: drill.partitions("u")[0].replicas == [follower])
        assert sorted(drill.partition().isrs) == [1, 2, 3]
        assert count_records(drill.address) == drill.acked == 2 * ROUND
        assert cluster.stop() == 0, cluster.log.read_text()


def rows_are_healthy(address: str) -> bool:
    return run_tiered("cluster", "health", "--brokers", address).returncode == 0


def count_records(address: str) -> int:
    """Returns the number of records that a consumer gets from the beginning on."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "g"})
    consumer.assign([confluent_kafka.TopicPartition("t", 0, confluent_kafka.OFFSET_BEGINNING)])
    end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition("t", 0), SECONDS)[1]
    count, deadline = 0, time.monotonic() + SECONDS
    while count < end and time.monotonic() < deadline:
        count += sum(each.error() is None for each in consumer.consume(100, 0.5))
    consumer.close()
    return count

"""Test of a consumer group of confluent-kafka whose coordinator is killed, and whose offsets then move to another
broker."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.e2e.cli_cluster import CliCluster, error_lines
from tests.e2e.serving import SECONDS, ServeProcess, run_tiered
from tests.ports import free_port
from tiered.errors import Code
from tiered.system.network import SocketNet
from tiered_api.kafka.client.connection import open_connection
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tiered_api.kafka.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tiered_api.kafka.protocol.schema import Message

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="a port below the ephemeral ones is free again at once"),
]
confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

A = TypeVar("A", bound=Message)

GROUP, TOPIC, PARTITIONS = "readers", "t", 4
GIVEN = (
    "offsets.topic.num.partitions=1", "offsets.topic.replication.factor=2", "default.replication.factor=3",
    "group.initial.rebalance.delay.ms=0", "min.insync.replicas=1",
)  # fmt: skip
NOT_YET = {
    code.number for code in (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR)
}
RECORDS_PER_SECOND = 200
AT_ONCE = 20
"""Records per request of a member; it commits behind them."""


class RecordsRead:
    """The records that the members of the group got, checked at arrival: no record is skipped, and a repeated record
    was not committed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.next_offsets = dict.fromkeys(range(PARTITIONS), 0)
        self.committed = dict.fromkeys(range(PARTITIONS), 0)
        """Committed offset of each partition, from replies."""
        self.values: dict[tuple[int, int], bytes] = {}
        self.repeated = 0
        self.wrong: list[str] = []

    def check_record(self, partition: int, offset: int, value: bytes) -> None:
        with self.lock:
            if offset > self.next_offsets[partition]:
                self.wrong.append(f"{partition}: {offset} comes after {self.next_offsets[partition] - 1}")
            if offset < self.committed[partition]:
                self.wrong.append(f"{partition}: {offset} comes again, {self.committed[partition]} is committed")
            if self.values.setdefault((partition, offset), value) != value:
                self.wrong.append(f"{partition}: {offset} is another record")
            self.repeated += offset < self.next_offsets[partition]
            self.next_offsets[partition] = offset + 1


class ConsumerThread:
    """A consumer in a thread of its own. It commits its records while `commits` is set."""

    def __init__(self, address: str, read: RecordsRead, commits: threading.Event) -> None:
        self._read = read
        self._commits = commits
        self._ending = threading.Event()
        self.commit_lock = threading.Lock()
        """A lock that the thread holds during a commit."""
        self.assigned: list[int] = []
        self.refused: list[str] = []
        """Commits that failed."""
        self._uncommitted: dict[int, int] = {}
        """Records that are read and not committed yet."""
        group = {"group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0}
        group |= {"heartbeat.interval.ms": 500, "session.timeout.ms": 6000}
        self._consumer = confluent_kafka.Consumer({"bootstrap.servers": address, **group})
        self._consumer.subscribe([TOPIC], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _on_assign(self, consumer: Any, places: Any) -> None:
        self.assigned, self._uncommitted = [each.partition for each in places], {}

    def _on_revoke(self, consumer: Any, places: Any) -> None:
        self.assigned, self._uncommitted = [], {}

    def _run(self) -> None:
        while not self._ending.is_set():
            for message in self._consumer.consume(AT_ONCE, 0.1):
                if message.error() is None:
                    self._read.check_record(message.partition(), message.offset(), message.value())
                    self._uncommitted[message.partition()] = message.offset() + 1
            with self.commit_lock:
                if self._uncommitted and self._commits.is_set():
                    self._commit()

    def _commit(self) -> None:
        """Commits; if no coordinator answers, the next commit tries again."""
        ends = [confluent_kafka.TopicPartition(TOPIC, *each) for each in self._uncommitted.items()]
        try:
            found = self._consumer.commit(offsets=ends, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            self.refused.append(str(error))
            return
        done = {each.partition: each.offset for each in found if each.error is None}
        self.refused += [str(each.error) for each in found if each.error is not None]
        with self._read.lock:
            self._read.committed |= done
        self._uncommitted = {
            partition: end for partition, end in self._uncommitted.items() if done.get(partition) != end
        }

    def close(self) -> None:
        """Leaves the group without another commit."""
        self._ending.set()
        self._thread.join(SECONDS)
        self._consumer.close()


class BackgroundProducer:
    """A producer that writes continuously; it keeps the acknowledged values by partition and offset."""

    def __init__(self, address: str) -> None:
        self.acked: dict[tuple[int, int], bytes] = {}
        self.failures: list[str] = []
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": address, "acks": "all", "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ending.wait(1 / RECORDS_PER_SECOND):
            value = b"%d" % number
            self._producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=self._on_delivery)
            self._producer.poll(0)
            number += 1
        if self._producer.flush(SECONDS):
            self.failures.append("not everything is acknowledged")

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acked[message.partition(), message.offset()] = message.value()

    def close(self) -> None:
        """Waits for all replies."""
        self._ending.set()
        self._thread.join(SECONDS)


class ProcessCluster:
    """Three brokers, one of which may be killed and started again."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._ports = {node: free_port() for node in (1, 2, 3)}
        self.address = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        with ThreadPoolExecutor() as pool:
            self.served = dict(zip(self._ports, pool.map(self.start, self._ports), strict=True))
        self._client = admin.AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def start(self, node: int) -> ServeProcess:
        options = ["--store", f"file://{self._directory / 'bucket'}", "--node-id", str(node)]
        options += ["--kafka", f"127.0.0.1:{self._ports[node]}", *(word for each in GIVEN for word in ("-c", each))]
        return self._stack.enter_context(ServeProcess(self._directory / f"b{node}", *options))

    def create(self) -> None:
        """Creates the topic on all three brokers."""
        (made,) = self._client.create_topics([admin.NewTopic(TOPIC, PARTITIONS, 3)]).values()
        made.result(SECONDS)

    def find_coordinator(self) -> int:
        """Returns the coordinator that every running broker names; -1 while they disagree."""
        told = {asyncio.run(_coordinator(each.kafka)) for each in self.served.values() if each.process.poll() is None}
        return told.pop() if len(told) == 1 else -1

    def fetch_committed(self) -> dict[int, int]:
        """Returns the committed offsets for a client that is no member, once a coordinator has loaded the group."""
        found: list[dict[int, int]] = []

        def is_fetched() -> bool:
            node = self.find_coordinator()
            if node > 0:
                found.extend(asyncio.run(_committed(self.served[node].kafka)))
            return bool(found)

        wait_until(is_fetched, lambda: "no coordinator")
        return found[0]

    def offsets_partition(self) -> Any:
        """Returns the one partition of `__consumer_offsets`."""
        name = "__consumer_offsets"
        return self._client.list_topics(name, timeout=SECONDS).topics[name].partitions[0]


async def _ask(address: str, request: Message, answer: type[A], version: int) -> A:
    host, _, port = address.partition(":")
    link = await open_connection(SocketNet(), host, int(port), "test", SECONDS)
    try:
        return await link.send(request, answer, SECONDS, version)
    finally:
        link.close()


async def _coordinator(address: str) -> int:
    found = await _ask(address, FindCoordinatorRequest(GROUP), FindCoordinatorResponse, 3)
    assert found.error_code == 0 or found.node_id == -1
    return found.node_id


async def _committed(address: str) -> list[dict[int, int]]:
    """Returns the committed offsets; none while the coordinator does not reply."""
    found = await _ask(address, OffsetFetchRequest(GROUP, None), OffsetFetchResponse, 5)
    if found.error_code in NOT_YET:
        return []
    assert found.error_code == 0, found.error_code
    return [{each.partition_index: each.committed_offset for topic in found.topics for each in topic.partitions}]


def wait_until(condition: Callable[[], bool], describe: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.02)


class CoordinatorScenario:
    """The cluster, its clients, and their observations."""

    def __init__(self, cluster: ProcessCluster, stack: ExitStack) -> None:
        self.cluster = cluster
        self.read = RecordsRead()
        self.commits = threading.Event()
        self.commits.set()
        self.writing = BackgroundProducer(cluster.address)
        stack.callback(self.writing.close)
        self.members = [ConsumerThread(cluster.address, self.read, self.commits) for _ in range(2)]
        for each in self.members:
            stack.callback(each.close)

    def wait_progress(self) -> None:
        """Waits until every partition is read and committed beyond its present offset."""
        before = dict(self.read.committed)
        wait_until(
            lambda: all(end > before[partition] for partition, end in self.read.committed.items()),
            lambda: (before, self.read.committed, [(each.assigned, each.refused) for each in self.members]),
        )

    @contextmanager
    def pause_commits(self) -> Iterator[dict[int, int]]:
        """Stops commits to the end of the context; yields the offsets of the members and of the coordinator."""
        self.commits.clear()
        for each in self.members:
            with each.commit_lock:  # one that is under way is over
                pass
        assert self.cluster.fetch_committed() == self.read.committed
        yield dict(self.read.committed)
        self.commits.set()


def test_group_keeps_its_offsets_when_its_coordinator_dies_or_moves(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = ProcessCluster(tmp_path, stack)
        cluster.create()
        scenario = CoordinatorScenario(cluster, stack)
        wait_until(lambda: all(each.assigned for each in scenario.members), lambda: "not shared out")
        scenario.wait_progress()

        first = cluster.find_coordinator()
        held = set(cluster.offsets_partition().replicas)
        assert first in held and len(held) == 2
        with scenario.pause_commits() as committed:
            cluster.served[first].stop(signal.SIGKILL)
            assert cluster.fetch_committed() == committed
        second = cluster.find_coordinator()
        assert held == {first, second}
        scenario.wait_progress()

        cluster.served[first] = cluster.start(first)
        (third,) = {1, 2, 3} - held
        with scenario.pause_commits() as committed:
            asked = ("cluster", "reassign", f"__consumer_offsets/0={third},{first}", "--brokers", cluster.address)
            moved = run_tiered(*asked)
            assert moved.returncode == 0, moved.stderr
            wait_until(lambda: cluster.find_coordinator() in (third, first), lambda: "the coordinator stays")
            assert cluster.fetch_committed() == committed
        assert set(cluster.offsets_partition().replicas) == {third, first}
        scenario.wait_progress()

        for each in scenario.members:
            each.close()
        begun, committed = scenario.read.next_offsets, dict(scenario.read.committed)
        assert cluster.fetch_committed() == committed
        scenario.writing.close()
        scenario.members = [ConsumerThread(cluster.address, scenario.read, scenario.commits)]
        stack.callback(scenario.members[0].close)
        ends = {place: max(offset for at, offset in scenario.writing.acked if at == place) + 1 for place in begun}
        wait_until(
            lambda: scenario.read.committed == ends,
            lambda: (scenario.read.committed, ends, scenario.members[0].assigned, scenario.members[0].refused),
        )
    assert scenario.read.values == scenario.writing.acked
    assert not scenario.read.wrong and not scenario.writing.failures, (scenario.read.wrong, scenario.writing.failures)


def test_command_that_consumes_goes_on_when_its_coordinator_is_killed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = ProcessCluster(tmp_path, stack)
        cluster.create()
        commands = CliCluster("ours", cluster.address)
        stack.callback(commands.close)
        reader = commands.start("topic", "consume", TOPIC, "-g", GROUP, "-f", r"%v\n", "-n", "20")
        assert reader.stdout is not None
        commands.produce(TOPIC, "".join(f"{number}\n" for number in range(10)), "-p", "0")
        read = [reader.stdout.readline() for _ in range(10)]
        wait_until(lambda: cluster.fetch_committed().get(0) == 10, lambda: "not committed")
        cluster.served[cluster.find_coordinator()].stop(signal.SIGKILL)
        wait_until(lambda: cluster.find_coordinator() > 0, lambda: "no coordinator")
        commands.produce(TOPIC, "".join(f"{number}\n" for number in range(10, 20)), "-p", "0")
        out, err = commands.end(reader)
        assert (reader.returncode, error_lines(err)) == (0, [])
        assert [*read, *out.splitlines(keepends=True)] == [b"%d\n" % number for number in range(20)]
        assert cluster.fetch_committed()[0] == 20

"""Three brokers, three replicas, acks=all: throughput, and the time without acknowledgements after a broker fails."""

from __future__ import annotations

import itertools
import signal
import statistics
import threading
import time
from functools import partial

from confluent_kafka import KafkaError, Message, Producer

from bench.peer.clients import FAST_RETRY, create_topics, iterate_partitions, produce_to_each
from bench.peer.lifecycle import PARTITIONS_A_TOPIC
from bench.peer.machine import CpuWindow
from bench.peer.throughput import PER_GB, PRODUCER, run_rounds
from bench.peer.trio import NODES, BenchCluster
from bench.peer.wire import create_topic
from bench.peer.workload import MEMORY, QUICK, Figures, Leg, Metric, Workload, cpu, rate

REPLICAS = 3
RECORDS = 700_000
"""Records of one round: three copies are as many bytes as a round of one broker writes."""
TOPIC = "beating"
PARTITIONS = 12
ROUND_SECONDS = 0.02
WARM_UP_SECONDS = 3.0
LEG_SECONDS = 120.0
CHANGE_SECONDS = 2.0
KILLS, RESTARTS = 5, 3
PARTITIONS_TOTAL = 1_000


class AckProbe:
    """Sends a record to each partition fifty times a second, and notes when each was acknowledged."""

    def __init__(self, address: str) -> None:
        self._producer = Producer({**FAST_RETRY, "acks": "all", "bootstrap.servers": address})
        self.acked: list[tuple[int, float, float]] = []
        """(partition, time sent, time acknowledged)."""
        self._failed: list[str] = []

    def send_round(self) -> None:
        """Sends one record to each partition, and handles the acknowledgements that have arrived."""
        until = time.perf_counter() + ROUND_SECONDS
        for partition in range(PARTITIONS):
            on_delivery = partial(self._on_delivery, partition, time.perf_counter())
            self._producer.produce(TOPIC, b"x" * 100, partition=partition, on_delivery=on_delivery)
        while (left := until - time.perf_counter()) > 0:
            self._producer.poll(left)
        if self._failed:
            raise RuntimeError(f"a record was not taken: {self._failed[0]}")

    def _on_delivery(self, partition: int, sent: float, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acked.append((partition, sent, time.perf_counter()))
        else:
            self._failed.append(str(error))

    def warm_up(self, seconds: float = WARM_UP_SECONDS) -> None:
        """Forgets earlier acknowledgements, also those that arrived while nothing polled, then sends for some time."""
        self._producer.flush(LEG_SECONDS)
        self.acked.clear()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self.send_round()

    def measure_recovery(self, since: float) -> list[float]:
        """Sends until each partition acknowledged a record sent after `since`. Returns the seconds of each."""
        until = time.perf_counter() + LEG_SECONDS
        while time.perf_counter() < until:
            self.send_round()
            first: dict[int, float] = {}
            for partition, sent, acked in self.acked:
                if sent >= since:
                    first.setdefault(partition, acked - since)
            if len(first) == PARTITIONS:
                return list(first.values())
        raise RuntimeError(f"not all partitions are back after {LEG_SECONDS:g} s")

    def longest_wait(self) -> float:
        """Returns the longest time that a record waited for its acknowledgement."""
        return max(acked - sent for _, sent, acked in self.acked)


def measure_produce(leg: Leg) -> Figures:
    options = ["-s", "1024", "-n", str(RECORDS)]
    with BenchCluster(leg.root, leg.broker) as trio:
        return run_rounds(leg.scale, trio, options, {**PRODUCER, "acks": "all"}, REPLICAS)


def measure_failover(leg: Leg) -> Figures:
    kills, restarts = (1, 1) if leg.scale is QUICK else (KILLS, RESTARTS)
    with BenchCluster(leg.root, leg.broker) as trio:
        create_topics(trio.address, {TOPIC: PARTITIONS}, REPLICAS)
        probe = AckProbe(trio.address)
        window = CpuWindow(trio.pids)
        probe.warm_up(leg.scale.warm_seconds)
        kill_seconds = [_measure_kill(trio, probe, choose_victim(trio, controller=False)) for _ in range(kills)]
        controllers = [_measure_kill(trio, probe, choose_victim(trio, controller=True)) for _ in range(kills)]
        restart_seconds = [_measure_restart(trio, probe) for _ in range(restarts)]
        changes = [_measure_topic_creation(trio) for _ in range(restarts)]
        return {
            "killed_seconds": max(kill_seconds),
            "killed_median_seconds": statistics.median(kill_seconds),
            "controller_seconds": max(controllers),
            "controller_median_seconds": statistics.median(controllers),
            "restart_seconds": max(restart_seconds),
            "change_seconds": max(changes),
            "foreign": window.close().foreign_share,
        }


def choose_victim(trio: BenchCluster, *, controller: bool) -> int:
    """Returns the controller, or another broker that leads some partition."""
    controller_id = trio.controller()
    if controller:
        return controller_id
    leaders = trio.leaders(TOPIC)
    return next(leader for leader in leaders.values() if leader != controller_id)


def _measure_kill(trio: BenchCluster, probe: AckProbe, node: int) -> float:
    """Returns the seconds from kill -9 to an acknowledged record on all partitions."""
    probe.warm_up()
    since = time.perf_counter()
    trio.brokers[node].stop(signal.SIGKILL)
    seconds = max(probe.measure_recovery(since))
    trio.brokers[node].spawn()
    trio.wait_in_sync()
    return seconds


def _measure_restart(trio: BenchCluster, probe: AckProbe) -> float:
    """Returns the longest wait of a record on any partition while a leader is stopped in order and started again."""
    broker = trio.brokers[choose_victim(trio, controller=False)]
    probe.warm_up()

    def restart() -> None:
        broker.stop()
        broker.start()

    thread = threading.Thread(target=restart)
    thread.start()
    while thread.is_alive():
        probe.send_round()
    probe.measure_recovery(time.perf_counter())
    trio.wait_in_sync()
    return probe.longest_wait()


_numbers = itertools.count()


def _measure_topic_creation(trio: BenchCluster) -> float:
    """Returns the seconds from kill -9 of the controller to a created topic."""
    controller = trio.controller()
    other = trio.brokers[next(node for node in NODES if node != controller)]
    since = time.perf_counter()
    trio.brokers[controller].stop(signal.SIGKILL)
    while not create_topic(other.port, f"changed-{next(_numbers)}", 2, CHANGE_SECONDS):
        if time.perf_counter() - since > LEG_SECONDS:
            raise RuntimeError(f"no topic was made for {LEG_SECONDS:g} s: {other.output_tail()}")
    seconds = time.perf_counter() - since
    trio.brokers[controller].spawn()
    trio.wait_in_sync()
    return seconds


def measure_many_partitions(leg: Leg) -> Figures:
    topics = {f"many-{number}": PARTITIONS_A_TOPIC for number in range(PARTITIONS_TOTAL // PARTITIONS_A_TOPIC)}
    each = list(iterate_partitions(topics))
    with BenchCluster(leg.root, leg.broker) as trio:
        window, started = CpuWindow(trio.pids), time.perf_counter()
        create_topics(trio.address, topics, REPLICAS)
        created = time.perf_counter() - started
        acked = produce_to_each(trio.address, each, started, trio.check_alive, acks="all")
        trio.wait_in_sync()
        usage = window.close()
        controller = trio.controller()
        victim = next(node for node in NODES if node != controller)
        since = time.perf_counter()
        trio.brokers[victim].stop(signal.SIGKILL)
        recovered = produce_to_each(trio.address, each, since, trio.check_alive, acks="all")
        return {
            "created_seconds": created,
            "written_seconds": acked.last,
            "led_seconds": recovered.last,
            "create_cpu": usage.broker_cpu,
            "foreign": usage.foreign_share,
        }


WORKLOADS = (
    Workload(
        "replicated-1k", "three brokers, three replicas, acks=all, 1 KiB, 6 partitions (CPU and memory of all three)",
        (rate("records/s", 2.0), cpu(PER_GB, 0.4), MEMORY), measure_produce,
    ),
    Workload(
        "failover", "three brokers, 12 partitions of three replicas: worst of several kills and restarts",
        (
            Metric("killed_seconds", "s", 1.0, is_own=True), Metric("killed_median_seconds", "s"),
            Metric("controller_seconds", "s"), Metric("controller_median_seconds", "s"),
            Metric("restart_seconds", "s", 0.2, is_own=True), Metric("change_seconds", "s", 3.0, is_own=True),
        ),
        measure_failover,
    ),
    Workload(
        "replicated-1000", "1,000 partitions of three replicas created, acknowledged on each; again after a kill",
        (
            Metric("created_seconds", "s"), Metric("written_seconds", "s", 10.0, is_own=True),
            Metric("led_seconds", "s", 3.0, is_own=True), Metric("create_cpu", "s of CPU"),
        ),
        measure_many_partitions,
    ),
)  # fmt: skip

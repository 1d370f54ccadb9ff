"""Three brokers, three replicas, acks=all: throughput, and how long nobody acknowledges when a broker goes."""

from __future__ import annotations

import itertools
import signal
import statistics
import threading
import time
from functools import partial

from confluent_kafka import KafkaError, Message, Producer

from bench.peer.clients import IMPATIENT, create_topics, every_partition, one_on_each
from bench.peer.lifecycle import PARTITIONS_A_TOPIC
from bench.peer.machine import Window
from bench.peer.throughput import PER_GB, PRODUCER, rounds
from bench.peer.trio import NODES, Trio
from bench.peer.wire import create_topic
from bench.peer.workload import MEMORY, QUICK, Figures, Leg, Metric, Workload, cpu, rate

REPLICAS = 3
RECORDS = 700_000
"""Of one round: three copies are as many bytes as a round of one broker writes."""
TOPIC = "beating"
PARTITIONS = 12
TICK_SECONDS = 0.02
CALM_SECONDS = 3.0
LEG_SECONDS = 120.0
CHANGE_SECONDS = 2.0
KILLS, RESTARTS = 5, 3
MANY = 1_000


class Pulse:
    """Sends a record to each partition fifty times a second and knows when each was acknowledged."""

    def __init__(self, address: str) -> None:
        self._producer = Producer({**IMPATIENT, "acks": "all", "bootstrap.servers": address})
        self.acked: list[tuple[int, float, float]] = []
        """Partition, when it was sent, when it was acknowledged."""
        self._failed: list[str] = []

    def beat(self) -> None:
        """One record to each, and what was told meanwhile."""
        until = time.perf_counter() + TICK_SECONDS
        for partition in range(PARTITIONS):
            told = partial(self._told, partition, time.perf_counter())
            self._producer.produce(TOPIC, b"x" * 100, partition=partition, on_delivery=told)
        while (left := until - time.perf_counter()) > 0:
            self._producer.poll(left)
        if self._failed:
            raise RuntimeError(f"a record was not taken: {self._failed[0]}")

    def _told(self, partition: int, sent: float, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acked.append((partition, sent, time.perf_counter()))
        else:
            self._failed.append(str(error))

    def calm(self, seconds: float = CALM_SECONDS) -> None:
        """Beats for some time, forgets what was before, also what was acknowledged while nobody listened."""
        self._producer.flush(LEG_SECONDS)
        self.acked.clear()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self.beat()

    def back(self, since: float) -> list[float]:
        """Beats until each partition acknowledged a record sent after `since`: the seconds of each."""
        until = time.perf_counter() + LEG_SECONDS
        while time.perf_counter() < until:
            self.beat()
            first: dict[int, float] = {}
            for partition, sent, acked in self.acked:
                if sent >= since:
                    first.setdefault(partition, acked - since)
            if len(first) == PARTITIONS:
                return list(first.values())
        raise RuntimeError(f"not all partitions are back after {LEG_SECONDS:g} s")

    def longest(self) -> float:
        """The longest that a record waited for its acknowledgement."""
        return max(acked - sent for _, sent, acked in self.acked)


def produce(leg: Leg) -> Figures:
    options = ["-s", "1024", "-n", str(RECORDS)]
    with Trio(leg.root, leg.broker) as trio:
        return rounds(leg.scale, trio, options, {**PRODUCER, "acks": "all"}, REPLICAS)


def failover(leg: Leg) -> Figures:
    kills, restarts = (1, 1) if leg.scale is QUICK else (KILLS, RESTARTS)
    with Trio(leg.root, leg.broker) as trio:
        create_topics(trio.address, {TOPIC: PARTITIONS}, REPLICAS)
        pulse = Pulse(trio.address)
        window = Window(trio.pids)
        pulse.calm(leg.scale.warm_seconds)
        killed = [_killed(trio, pulse, _victim(trio, controller=False)) for _ in range(kills)]
        controllers = [_killed(trio, pulse, _victim(trio, controller=True)) for _ in range(kills)]
        restarted = [_restarted(trio, pulse) for _ in range(restarts)]
        changes = [_next_change(trio) for _ in range(restarts)]
        return {
            "killed_seconds": max(killed),
            "killed_median_seconds": statistics.median(killed),
            "controller_seconds": max(controllers),
            "controller_median_seconds": statistics.median(controllers),
            "restart_seconds": max(restarted),
            "change_seconds": max(changes),
            "foreign": window.close().foreign,
        }


def _victim(trio: Trio, *, controller: bool) -> int:
    """A broker that leads some partition and is, or is not, the controller."""
    chief = trio.controller()
    if controller:
        return chief
    leaders = trio.leaders(TOPIC)
    return next(leader for leader in leaders.values() if leader != chief)


def _killed(trio: Trio, pulse: Pulse, node: int) -> float:
    """Seconds from kill -9 to a record acknowledged on all partitions."""
    pulse.calm()
    since = time.perf_counter()
    trio.brokers[node].stop(signal.SIGKILL)
    seconds = max(pulse.back(since))
    trio.brokers[node].spawn()
    trio.wait_whole()
    return seconds


def _restarted(trio: Trio, pulse: Pulse) -> float:
    """The longest that a record of any partition waits while a leader is stopped in order and started again."""
    broker = trio.brokers[_victim(trio, controller=False)]
    pulse.calm()

    def again() -> None:
        broker.stop()
        broker.start()

    thread = threading.Thread(target=again)
    thread.start()
    while thread.is_alive():
        pulse.beat()
    pulse.back(time.perf_counter())
    trio.wait_whole()
    return pulse.longest()


_numbers = itertools.count()


def _next_change(trio: Trio) -> float:
    """Seconds from kill -9 of the controller to a topic made."""
    chief = trio.controller()
    other = trio.brokers[next(node for node in NODES if node != chief)]
    since = time.perf_counter()
    trio.brokers[chief].stop(signal.SIGKILL)
    while not create_topic(other.port, f"changed-{next(_numbers)}", 2, CHANGE_SECONDS):
        if time.perf_counter() - since > LEG_SECONDS:
            raise RuntimeError(f"no topic was made for {LEG_SECONDS:g} s: {other.last_words()}")
    seconds = time.perf_counter() - since
    trio.brokers[chief].spawn()
    trio.wait_whole()
    return seconds


def many(leg: Leg) -> Figures:
    topics = {f"many-{number}": PARTITIONS_A_TOPIC for number in range(MANY // PARTITIONS_A_TOPIC)}
    each = list(every_partition(topics))
    with Trio(leg.root, leg.broker) as trio:
        window, started = Window(trio.pids), time.perf_counter()
        create_topics(trio.address, topics, REPLICAS)
        created = time.perf_counter() - started
        written = one_on_each(trio.address, each, started, trio.check_alive, acks="all")
        trio.wait_whole()
        spent = window.close()
        chief = trio.controller()
        victim = next(node for node in NODES if node != chief)
        since = time.perf_counter()
        trio.brokers[victim].stop(signal.SIGKILL)
        led = one_on_each(trio.address, each, since, trio.check_alive, acks="all")
        return {
            "created_seconds": created,
            "written_seconds": written.last,
            "led_seconds": led.last,
            "create_cpu": spent.broker_cpu,
            "foreign": spent.foreign,
        }


WORKLOADS = (
    Workload(
        "replicated-1k", "three brokers, three replicas, acks=all, 1 KiB, 6 partitions (CPU and memory of all three)",
        (rate("records/s", 2.0), cpu(PER_GB, 0.4), MEMORY), produce,
    ),
    Workload(
        "failover", "three brokers, 12 partitions of three replicas: worst of several kills and restarts",
        (
            Metric("killed_seconds", "s"), Metric("killed_median_seconds", "s"),
            Metric("controller_seconds", "s"), Metric("controller_median_seconds", "s"),
            Metric("restart_seconds", "s"), Metric("change_seconds", "s"),
        ),
        failover,
    ),
    Workload(
        "replicated-1000", "1,000 partitions of three replicas created, acknowledged on each; again after a kill",
        (
            Metric("created_seconds", "s"), Metric("written_seconds", "s"), Metric("led_seconds", "s"),
            Metric("create_cpu", "s of CPU"),
        ),
        many,
    ),
)  # fmt: skip

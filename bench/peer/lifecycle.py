"""Starts, idleness, many partitions, and what comes after `kill -9`."""

from __future__ import annotations

import signal
import time
from functools import partial

from bench.peer.brokers import Broker, wait_taken
from bench.peer.clients import create_topics, every_partition, one_on_each
from bench.peer.machine import Window
from bench.peer.throughput import MB, PRODUCER, fill
from bench.peer.wire import produce, produce_error_at
from bench.peer.workload import Figures, Leg, Metric, Workload

TOPIC = "one"
SETTLE_SECONDS = 5.0
PARTITIONS_A_TOPIC = 100
UNFLUSHED_PARTITIONS = 100
UNFLUSHED_RECORDS = 2_000_000


def first_produce(broker: Broker) -> float:
    """Seconds from the process's start to a record acknowledged, asked for by a bare socket."""
    started = broker.spawn()
    wait_taken(broker, produce(TOPIC, 0, b"x" * 100), produce_error_at(TOPIC))
    return time.perf_counter() - started


def start(leg: Leg) -> Figures:
    with leg.broker(leg.root) as broker:
        create_topics(broker.address, {TOPIC: 1})
        broker.stop()
        seconds = first_produce(broker)
        time.sleep(SETTLE_SECONDS)
        window = Window(broker.pids)
        time.sleep(leg.scale.idle_seconds)
        spent = window.close()
        return {
            "start_seconds": seconds,
            "idle_rss_mb": broker.rss() / MB,
            "idle_cpu_percent": 100 * spent.broker_cpu / spent.seconds,
            "foreign": spent.foreign,
        }


def partitions(leg: Leg, *, count: int) -> Figures:
    topics = {f"many-{number}": PARTITIONS_A_TOPIC for number in range(count // PARTITIONS_A_TOPIC)}
    each = list(every_partition(topics))
    with leg.broker(leg.root, keeps=True) as broker:
        time.sleep(SETTLE_SECONDS)
        before = broker.rss()
        window, started = Window(broker.pids), time.perf_counter()
        create_topics(broker.address, topics)
        created = time.perf_counter() - started
        written = one_on_each(broker.address, each, started, broker.check_alive)
        spent = window.close()
        time.sleep(SETTLE_SECONDS)
        grown = broker.rss() - before
        stopped = broker.stop()
        started = broker.spawn()
        window = Window(broker.pids)
        again = one_on_each(broker.address, each, started, broker.check_alive)
        restart = window.close()
        return {
            "create_seconds": created,
            "written_seconds": written.last,
            "create_cpu": spent.broker_cpu,
            "rss_kb_each": grown / 1e3 / count,
            "stop_seconds": stopped,
            "restart_first_seconds": again.first,
            "restart_seconds": again.last,
            "restart_cpu": restart.broker_cpu,
            "foreign": max(spent.foreign, restart.foreign),
        }


def after_kill(leg: Leg) -> Figures:
    with leg.broker(leg.root) as broker:
        options = ["-s", "1024", "-n", str(UNFLUSHED_RECORDS)]
        fill(broker, TOPIC, UNFLUSHED_PARTITIONS, options, {**PRODUCER, "batch.size": 16384})
        broker.stop(signal.SIGKILL)
        started = broker.spawn()
        window = Window(broker.pids)
        back = one_on_each(
            broker.address, list(every_partition({TOPIC: UNFLUSHED_PARTITIONS})), started, broker.check_alive
        )
        spent = window.close()
        return {
            "first_seconds": back.first,
            "all_seconds": back.last,
            "cpu": spent.broker_cpu,
            "foreign": spent.foreign,
        }


def _partitions(count: int) -> Workload:
    return Workload(
        f"partitions-{count}", f"{count:,} partitions created, a record acknowledged on each, clean restart",
        (
            Metric("written_seconds", "s", 0.2), Metric("create_cpu", "s of CPU"),
            Metric("rss_kb_each", "kB each", 0.5),
            Metric("stop_seconds", "s"), Metric("restart_seconds", "s", 0.1), Metric("restart_cpu", "s of CPU"),
        ),
        partial(partitions, count=count),
    )  # fmt: skip


WORKLOADS = (
    Workload(
        "start", "process start to a record acknowledged; idle with one topic",
        (
            Metric("start_seconds", "s", 0.25), Metric("idle_rss_mb", "MB", 0.2),
            Metric("idle_cpu_percent", "% of a core", 0.33),
        ),
        start,
    ),
    _partitions(1_000),
    _partitions(10_000),
    Workload(
        "after-kill", "kill -9 with 2 GB unflushed in 100 partitions, page cache intact",
        (Metric("first_seconds", "s", 0.1), Metric("all_seconds", "s"), Metric("cpu", "s of CPU")),
        after_kill,
    ),
)  # fmt: skip

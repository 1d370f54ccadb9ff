"""Start, idle use, many partitions, and the restart after `kill -9`."""

from __future__ import annotations

import signal
import time
from functools import partial

from bench.peer.brokers import MeasuredBroker, wait_acknowledged
from bench.peer.clients import create_topics, iterate_partitions, produce_to_each
from bench.peer.machine import CpuWindow
from bench.peer.throughput import MB, PRODUCER, fill
from bench.peer.wire import produce_error_offset, produce_request
from bench.peer.workload import Figures, Leg, Metric, Workload

TOPIC = "one"
SETTLE_SECONDS = 5.0
PARTITIONS_A_TOPIC = 100
UNFLUSHED_PARTITIONS = 100
UNFLUSHED_RECORDS = 2_000_000


def measure_first_produce(broker: MeasuredBroker) -> float:
    """Returns the seconds from the process's start to an acknowledged record, requested over a bare socket."""
    started = broker.spawn()
    wait_acknowledged(broker, produce_request(TOPIC, 0, b"x" * 100), produce_error_offset(TOPIC))
    return time.perf_counter() - started


def measure_start(leg: Leg) -> Figures:
    with leg.broker(leg.root) as broker:
        create_topics(broker.address, {TOPIC: 1})
        broker.stop()
        seconds = measure_first_produce(broker)
        time.sleep(SETTLE_SECONDS)
        window = CpuWindow(broker.pids)
        time.sleep(leg.scale.idle_seconds)
        spent = window.close()
        return {
            "start_seconds": seconds,
            "idle_rss_mb": broker.rss() / MB,
            "idle_cpu_percent": 100 * spent.broker_cpu / spent.seconds,
            "foreign": spent.foreign_share,
        }


def measure_partitions(leg: Leg, *, count: int) -> Figures:
    topics = {f"many-{number}": PARTITIONS_A_TOPIC for number in range(count // PARTITIONS_A_TOPIC)}
    each = list(iterate_partitions(topics))
    with leg.broker(leg.root, keep_files=True) as broker:
        time.sleep(SETTLE_SECONDS)
        before = broker.rss()
        window, started = CpuWindow(broker.pids), time.perf_counter()
        create_topics(broker.address, topics)
        created = time.perf_counter() - started
        acked = produce_to_each(broker.address, each, started, broker.check_alive)
        usage = window.close()
        time.sleep(SETTLE_SECONDS)
        added_bytes = broker.rss() - before
        stopped = broker.stop()
        started = broker.spawn()
        window = CpuWindow(broker.pids)
        again = produce_to_each(broker.address, each, started, broker.check_alive)
        restart = window.close()
        return {
            "create_seconds": created,
            "written_seconds": acked.last,
            "create_cpu": usage.broker_cpu,
            "rss_kb_each": added_bytes / 1e3 / count,
            "stop_seconds": stopped,
            "restart_first_seconds": again.first,
            "restart_seconds": again.last,
            "restart_cpu": restart.broker_cpu,
            "foreign": max(usage.foreign_share, restart.foreign_share),
        }


def measure_after_kill(leg: Leg) -> Figures:
    with leg.broker(leg.root) as broker:
        options = ["-s", "1024", "-n", str(UNFLUSHED_RECORDS)]
        fill(broker, TOPIC, UNFLUSHED_PARTITIONS, options, {**PRODUCER, "batch.size": 16384})
        broker.stop(signal.SIGKILL)
        started = broker.spawn()
        window = CpuWindow(broker.pids)
        acked = produce_to_each(
            broker.address, list(iterate_partitions({TOPIC: UNFLUSHED_PARTITIONS})), started, broker.check_alive
        )
        usage = window.close()
        return {
            "first_seconds": acked.first,
            "all_seconds": acked.last,
            "cpu": usage.broker_cpu,
            "foreign": usage.foreign_share,
        }


def _partitions(count: int, *, written: float, restart: float) -> Workload:
    return Workload(
        f"partitions-{count}", f"{count:,} partitions created, a record acknowledged on each, clean restart",
        (
            Metric("written_seconds", "s", written), Metric("create_cpu", "s of CPU"),
            Metric("rss_kb_each", "kB each", 0.5),
            Metric("stop_seconds", "s"), Metric("restart_seconds", "s", restart), Metric("restart_cpu", "s of CPU"),
        ),
        partial(measure_partitions, count=count),
    )  # fmt: skip


WORKLOADS = (
    Workload(
        "start", "process start to a record acknowledged; idle with one topic",
        (
            Metric("start_seconds", "s", 0.25), Metric("idle_rss_mb", "MB", 0.2),
            Metric("idle_cpu_percent", "% of a core", 0.33),
        ),
        measure_start,
    ),
    _partitions(1_000, written=0.1, restart=0.06),
    _partitions(10_000, written=0.2, restart=0.1),
    Workload(
        "after-kill", "kill -9 with 2 GB unflushed in 100 partitions, page cache intact",
        (Metric("first_seconds", "s", 0.05), Metric("all_seconds", "s"), Metric("cpu", "s of CPU")),
        measure_after_kill,
    ),
)  # fmt: skip

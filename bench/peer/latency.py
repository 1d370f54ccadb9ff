"""Latency of single records: open loop end to end, and closed loops of single-record requests."""

from __future__ import annotations

from functools import partial

from bench.peer.brokers import wait_acknowledged
from bench.peer.clients import create_topics, leader_addresses, run_loader
from bench.peer.machine import measure_wakeup_delay
from bench.peer.throughput import CONSUMER, count_partitions, run_load
from bench.peer.wire import produce_error_offset, produce_request
from bench.peer.workload import MEMORY, Figures, Leg, Metric, Workload, cpu, rate

RECORDS_A_SECOND = 1000
VALUE = b"x" * 100
TOPIC = "paced"
PROPERTIES: dict[str, object] = {"linger.ms": 0, "acks": "all"}
QUANTILES = ("p50_us", "p99_us", "p999_us", "max_us")


def measure_open_loop(leg: Leg) -> Figures:
    p99, p999 = measure_wakeup_delay(leg.scale.timed_seconds)
    with leg.broker(leg.root) as broker:
        create_topics(broker.address, {TOPIC: 1})
        scale = leg.scale
        options = ["-s", str(len(VALUE)), "-r", str(RECORDS_A_SECOND)]
        options += ["-w", str(scale.latency_warm_seconds), "-T", str(scale.latency_seconds)]
        done = run_load(broker, "latency", TOPIC, options, {**PROPERTIES, **CONSUMER})
        return {
            **{name: done.counts[name] for name in QUANTILES},
            "cpu": done.usage.broker_cpu / done.counts["records"] * 1e6,
            "peak_rss_mb": broker.peak_rss() / 1e6,
            "seconds": done.counts["seconds"],
            "floor_p99_us": p99 * 1e6,
            "floor_p999_us": p999 * 1e6,
            "foreign": done.usage.foreign_share,
        }


def measure_closed_loop(leg: Leg, *, connections: int) -> Figures:
    """Each connection asks the leader of one partition; every process leads as many partitions."""
    with leg.broker(leg.root) as broker:
        partitions = count_partitions(broker)
        create_topics(broker.address, {TOPIC: partitions})
        requests = [produce_request(TOPIC, each, VALUE) for each in range(partitions)]
        leaders = leader_addresses(broker.address, TOPIC)
        for request, leader in zip(requests, leaders, strict=True):
            wait_acknowledged(broker, request, produce_error_offset(TOPIC), int(leader.rpartition(":")[2]))
        frames = leg.root / "frames"
        frames.write_bytes(b"".join(requests))
        options = ["-f", str(frames), "-s", str(produce_error_offset(TOPIC)), "-g", str(connections)]
        options += ["-w", str(leg.scale.warm_seconds), "-T", str(leg.scale.timed_seconds)]
        done = run_loader("closed", broker.pids, ",".join(leaders), TOPIC, options, {})
        return {
            "rate": done.counts["requests"] / done.counts["seconds"],
            **{name: done.counts[name] for name in QUANTILES},
            "cpu": done.usage.broker_cpu / done.counts["requests"] * 1e6,
            "broker_cores": done.usage.broker_cpu / done.usage.seconds,
            "client_cores": done.counts["client_cpu"] / done.counts["seconds"],
            "peak_rss_mb": broker.peak_rss() / 1e6,
            **broker.memory(),
            "seconds": done.counts["seconds"],
            "foreign": done.usage.foreign_share,
        }


WORKLOADS = (
    Workload(
        "open-loop", "end to end at 1,000 records/s of 100 B, from the intended send time",
        (
            Metric("p50_us", "us"), Metric("p99_us", "us", 0.5), Metric("p999_us", "us", 0.33), Metric("max_us", "us"),
            Metric("floor_p99_us", "us"), Metric("floor_p999_us", "us"), cpu("us/record"), MEMORY,
        ),
        measure_open_loop,
    ),
    Workload(
        "closed-64", "64 connections, one record of 100 B a request",
        (rate("requests/s", 1.3), cpu("us/request", 0.5), Metric("p50_us", "us"), Metric("p99_us", "us"), MEMORY),
        partial(measure_closed_loop, connections=64),
    ),
    Workload(
        "closed-1", "the same on 1 connection",
        (rate("requests/s"), cpu("us/request"), Metric("p50_us", "us"), Metric("p99_us", "us")),
        partial(measure_closed_loop, connections=1),
    ),
)  # fmt: skip

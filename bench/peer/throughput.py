"""Throughput in and out at full speed, and at a steady rate to many groups."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.peer.brokers import MeasuredBroker
from bench.peer.clients import LoadResult, count_records, create_topics, delete_topic, run_loader
from bench.peer.tls import add_tls
from bench.peer.trio import BenchCluster
from bench.peer.workload import MEMORY, Figures, Leg, Metric, Scale, Workload, cpu, rate

GB = 1e9
MB = 1e6
PARTITIONS = 6
RECORDS = {1024: 2_000_000, 100: 10_000_000}
"""Records of one round: long enough to time, too short to meet the kernel's write-back throttle."""
CODEC_RECORDS = 1_500_000
JSON_LINES = 1000
JSON_BYTES = 1024
DELETE_SECONDS = 10.0
WARM_SECONDS, TIMED_SECONDS = 40.0, 15.0
"""Limits of warm-up and of timing, in whole rounds."""
PRODUCER: dict[str, object] = {
    "linger.ms": 50,
    "batch.num.messages": 10_000,
    "delivery.report.only.error": "true",
    "acks": 1,
}
PRODUCER |= {"queue.buffering.max.messages": 200_000, "queue.buffering.max.kbytes": 1_000_000}
CONSUMER: dict[str, object] = {
    "fetch.queue.backoff.ms": 2,
    "queued.min.messages": 1_000_000,
    "enable.auto.commit": "false",
}
FANOUT_BYTES_A_SECOND = 50 * MB
GROUPS = 8


def count_partitions(broker: MeasuredBroker) -> int:
    """Returns the number of a topic's partitions: as many for each process."""
    return -(-PARTITIONS // broker.processes) * broker.processes


def json_lines(directory: Path) -> Path:
    """Returns 1,000 lines as services log them, about 1 KiB each, the same in every run."""
    path = directory / "lines.json"
    if not path.exists():
        rng = random.Random(4)
        path.write_text("".join(_event_line(rng, number) + "\n" for number in range(JSON_LINES)))
    return path


def _event_line(rng: random.Random, number: int) -> str:
    """Returns one event of a web shop: names and enumerations that repeat, ids and numbers that do not."""
    event = {
        "event_id": f"{rng.getrandbits(128):032x}",
        "type": rng.choice(["page_view", "add_to_cart", "checkout", "search", "refund"]),
        "at": f"2026-11-21T12:{number // 60 % 60:02d}:{number % 60:02d}.{rng.randrange(1000):03d}Z",
        "user": {"id": rng.randrange(10**9), "country": rng.choice(["DE", "US", "IN", "BR", "JP"]), "plan": "pro"},
        "session": f"{rng.getrandbits(160):040x}",
        "device": {
            "os": rng.choice(["ios 26.1", "android 16", "windows 11"]),
            "ip": f"10.{rng.randrange(256)}.0.7",
        },
        "items": [],
    }
    text = json.dumps(event)
    items: list[dict[str, object]] = []
    while len(text) < JSON_BYTES - 40:
        sku = f"{rng.getrandbits(112):028x}"
        items.append({"sku": sku, "price": rng.randrange(99999) / 100, "n": rng.randrange(9)})
        text = json.dumps({**event, "items": items})
    return text


def sum_loads(loads: list[LoadResult], broker: MeasuredBroker | BenchCluster) -> Figures:
    """Returns the figures of several timed rounds as one."""
    records = sum(each.counts["records"] for each in loads)
    volume = sum(each.counts["bytes"] for each in loads)
    seconds = sum(each.counts["seconds"] for each in loads)
    used = sum(each.usage.broker_cpu for each in loads)
    return {
        "rate": records / seconds,
        "mb_per_second": volume / MB / seconds,
        "cpu": used / (volume / GB),
        "broker_cores": used / seconds,
        "client_cores": sum(each.counts["client_cpu"] for each in loads) / seconds,
        "peak_rss_mb": broker.peak_rss() / MB,
        **broker.memory(),
        "seconds": seconds,
        "foreign": sum(each.usage.foreign_share * each.usage.seconds for each in loads) / seconds,
    }


def run_load(
    broker: MeasuredBroker | BenchCluster,
    mode: str,
    topic: str,
    options: Sequence[str],
    properties: Mapping[str, object],
) -> LoadResult:
    return run_loader(mode, broker.pids, broker.address, topic, options, properties)


def wait_deleted(broker: MeasuredBroker | BenchCluster, limit: float) -> None:
    """Waits until the files of deleted topics are deleted too."""
    until = time.perf_counter() + DELETE_SECONDS
    while broker.disk_bytes() > limit and time.perf_counter() < until:
        time.sleep(0.1)


def fill(
    broker: MeasuredBroker | BenchCluster,
    topic: str,
    partitions: int,
    options: Sequence[str],
    properties: Mapping[str, object],
    replicas: int = 1,
) -> LoadResult:
    """Runs the producer once into a new topic, and checks that all acknowledged records are there."""
    create_topics(broker.address, {topic: partitions}, replicas)
    done = run_load(broker, "produce", topic, ["-p", str(partitions), *options], properties)
    found = count_records(broker.address, topic, partitions)
    if found != done.counts["records"] + partitions:
        raise RuntimeError(f"{broker.name} has {found} records of {done.counts['records']:.0f}")
    return done


def measure_produce(leg: Leg, *, size: int, codec: str = "none", secured: bool = False) -> Figures:
    options = ["-s", str(size), "-n", str(RECORDS[size] if codec == "none" else CODEC_RECORDS)]
    properties = {**PRODUCER, "compression.codec": codec}
    if codec != "none":
        options += ["-f", str(json_lines(leg.root))]
    broker = leg.broker(leg.root)
    if secured:
        properties |= add_tls(broker, leg.root)
    with broker:
        return run_rounds(leg.scale, broker, options, properties, partitions=count_partitions(broker))


def run_rounds(
    scale: Scale,
    broker: MeasuredBroker | BenchCluster,
    options: Sequence[str],
    properties: Mapping[str, object],
    replicas: int = 1,
    partitions: int = PARTITIONS,
) -> Figures:
    """Runs the producer several times, each into a fresh topic: some rounds warm the broker, the rest count."""
    warm: list[LoadResult] = []
    timed: list[LoadResult] = []
    empty = broker.disk_bytes()
    while not _has_enough(timed, scale.timed_rounds, TIMED_SECONDS):
        number = len(warm) + len(timed)
        if number:
            delete_topic(broker.address, f"round-{number - 1}")
            wait_deleted(broker, empty + 64 * MB)
        done = fill(broker, f"round-{number}", partitions, options, properties, replicas)
        (timed if _has_enough(warm, scale.warm_rounds, WARM_SECONDS) else warm).append(done)
    return sum_loads(timed, broker)


def _has_enough(done: Sequence[LoadResult], rounds: int, seconds: float) -> bool:
    """True after enough rounds, or after enough time if clients that compress make rounds long."""
    return len(done) >= rounds or sum(each.counts["seconds"] for each in done) >= seconds


def measure_consume(leg: Leg, *, size: int, secured: bool = False) -> Figures:
    broker = leg.broker(leg.root)
    properties = {**CONSUMER, **add_tls(broker, leg.root)} if secured else CONSUMER
    with broker:
        records, partitions = RECORDS[size], count_partitions(broker)
        fill(broker, "cached", partitions, ["-s", str(size), "-n", str(records)], PRODUCER)
        options = ["-p", str(partitions), "-n", str(records + partitions)]
        options += ["-w", str(leg.scale.warm_seconds), "-T", str(leg.scale.timed_seconds)]
        return sum_loads([run_load(broker, "consume", "cached", options, properties)], broker)


def measure_fan_out(leg: Leg) -> Figures:
    with leg.broker(leg.root) as broker:
        create_topics(broker.address, {"tailed": PARTITIONS})
        options = ["-p", str(PARTITIONS), "-s", "1024", "-r", str(FANOUT_BYTES_A_SECOND / 1024), "-g", str(GROUPS)]
        options += ["-w", str(leg.scale.warm_seconds), "-T", str(leg.scale.timed_seconds)]
        properties = {"linger.ms": 5, "acks": 1, "delivery.report.only.error": "true", "auto.offset.reset": "earliest"}
        done = run_load(broker, "fanout", "tailed", options, {**properties, **CONSUMER})
        figures = sum_loads([done], broker)
        figures["cpu"] = done.usage.broker_cpu / (done.counts["delivered_bytes"] / GB)
        figures |= {"p50_us": done.counts["p50_us"], "p99_us": done.counts["p99_us"]}
        return figures


PER_GB = "s/GB"
WORKLOADS = (
    Workload(
        "produce-1k", "produce 1 KiB, acks=1, 6 partitions", (rate("records/s", 1.2), cpu(PER_GB, 0.4), MEMORY),
        partial(measure_produce, size=1024),
    ),
    Workload(
        "produce-100", "produce 100 B, acks=1, 6 partitions", (rate("records/s", 1.0), cpu(PER_GB, 0.4), MEMORY),
        partial(measure_produce, size=100),
    ),
    Workload(
        "produce-lz4", "produce 1 KiB JSON, lz4", (rate("records/s", 1.0), cpu(PER_GB, 0.25), MEMORY),
        partial(measure_produce, size=1024, codec="lz4"),
    ),
    Workload(
        "produce-zstd", "produce 1 KiB JSON, zstd", (rate("records/s", 1.0), cpu(PER_GB, 0.25), MEMORY),
        partial(measure_produce, size=1024, codec="zstd"),
    ),
    Workload(
        "consume-1k", "consume 1 KiB from the page cache", (rate("records/s", 1.3), cpu(PER_GB, 0.45), MEMORY),
        partial(measure_consume, size=1024),
    ),
    Workload(
        "consume-100", "consume 100 B from the page cache", (rate("records/s", 1.0), cpu(PER_GB, 0.45), MEMORY),
        partial(measure_consume, size=100),
    ),
    Workload(
        "produce-1k-tls", "produce 1 KiB over TLS", (rate("records/s", 1.0), cpu(PER_GB, 0.6), MEMORY),
        partial(measure_produce, size=1024, secured=True),
    ),
    Workload(
        "consume-1k-tls", "consume 1 KiB over TLS", (rate("records/s", 1.0), cpu(PER_GB, 0.6), MEMORY),
        partial(measure_consume, size=1024, secured=True),
    ),
    Workload(
        "fanout", "50 MB/s in, 8 groups tailing (CPU per GB delivered)",
        (cpu(PER_GB, 0.3), Metric("p50_us", "us"), Metric("p99_us", "us"), MEMORY), measure_fan_out,
    ),
)  # fmt: skip

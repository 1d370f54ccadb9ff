"""The latency of new records while readers replay history from the bucket.

Four readers replay at full speed, each with as little of a core as it can get: in production they have machines of
their own. Kafka has no bucket here. It reads the same history from its disk.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peer.brokers import MeasuredBroker, bytes_below
from bench.peer.clients import build_loader, create_topics
from bench.peer.latency import PROPERTIES, RECORDS_A_SECOND, TOPIC, VALUE
from bench.peer.machine import CpuWindow
from bench.peer.throughput import CONSUMER, PRODUCER, run_load
from bench.peer.workload import QUICK, Figures, Leg, Metric, Workload

MIB = 1 << 20
HISTORY, PARTITIONS, READERS = "history", 4, 4
FULL_RECORDS, QUICK_RECORDS = 2_000_000, 1_000_000
SEGMENT_BYTES = 64 * MIB
UPLOAD_SECONDS = 300.0
ENDLESS_SECONDS = 3600
SETTINGS = {"log.retention.check.interval.ms": "1000"}
OUR_SETTINGS = {"remote.log.manager.task.interval.ms": "1000"}


def measure(leg: Leg) -> Figures:
    """Returns the latency of paced records without readers of history, and beside them."""
    records = QUICK_RECORDS if leg.scale is QUICK else FULL_RECORDS
    broker = leg.broker(leg.root, SETTINGS)
    if broker.name == "ours":
        broker.settings |= OUR_SETTINGS
    with broker:
        fill(broker, records)
        create_topics(broker.address, {TOPIC: 1})
        options = ["-s", str(len(VALUE)), "-r", str(RECORDS_A_SECOND)]
        options += ["-w", str(leg.scale.latency_warm_seconds), "-T", str(leg.scale.latency_seconds)]
        idle = run_load(broker, "latency", TOPIC, options, {**PROPERTIES, **CONSUMER})
        with replays(broker, records):
            window, sent = CpuWindow(broker.pids), loopback_bytes()
            busy = run_load(broker, "latency", TOPIC, options, {**PROPERTIES, **CONSUMER})
            usage, sent = window.close(), loopback_bytes() - sent
        return {
            "idle_p99_us": idle.counts["p99_us"],
            "p50_us": busy.counts["p50_us"],
            "p99_us": busy.counts["p99_us"],
            "p999_us": busy.counts["p999_us"],
            "p99_to_idle": busy.counts["p99_us"] / idle.counts["p99_us"],
            "replayed_mb_per_second": sent / 1e6 / usage.seconds,
            "broker_cores": usage.broker_cpu / usage.seconds,
            "peak_rss_mb": broker.peak_rss() / 1e6,
            "foreign": idle.usage.foreign_share,
        }


def fill(broker: MeasuredBroker, records: int) -> None:
    """Writes the history. Ours has it in the bucket alone, but for the newest segments."""
    configs = {"segment_bytes": str(SEGMENT_BYTES)}
    if broker.name == "ours":
        configs["local_retention_bytes"] = "1"
    create_topics(broker.address, {HISTORY: PARTITIONS}, 1, **configs)
    run_load(broker, "produce", HISTORY, ["-p", str(PARTITIONS), "-s", "1024", "-n", str(records)], PRODUCER)
    until = time.perf_counter() + UPLOAD_SECONDS
    while broker.name == "ours" and local_bytes(broker.directory) > PARTITIONS * (SEGMENT_BYTES + MIB):
        if time.perf_counter() > until:
            raise RuntimeError(f"history stays on the disk: {broker.output_tail()}")
        time.sleep(0.5)
    os.sync()  # else the kernel holds up later writes for the write-back of these


def loopback_bytes() -> int:
    """Returns what the machine has sent to itself: nearly all of it are records that are replayed."""
    rows = Path("/proc/net/dev").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.split()[0] == "lo:")


def local_bytes(directory: Path) -> int:
    return sum(bytes_below(each) for each in (directory / "data" / "log").glob(f"{HISTORY}-*"))


@contextmanager
def replays(broker: MeasuredBroker, records: int) -> Iterator[None]:
    """Lets readers replay the history again and again."""
    options = ["-p", str(PARTITIONS), "-n", str(records), "-w", str(ENDLESS_SECONDS), "-T", "1"]
    command = ["nice", "-n", "19", str(build_loader()), "consume", "-b", broker.address, "-t", HISTORY, *options]
    for name, value in CONSUMER.items():
        command += ["-X", f"{name}={value}"]
    readers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(READERS)]
    try:
        yield
        for each in readers:
            if each.poll() is not None:
                raise RuntimeError(f"a reader ended with {each.returncode}")
    finally:
        for each in readers:
            each.kill()
            each.wait()


WORKLOADS = (
    Workload(
        "replay-latency", "end to end at 1,000 records/s of 100 B while four readers replay history",
        (
            Metric("p50_us", "us"), Metric("p99_us", "us"), Metric("p999_us", "us"), Metric("idle_p99_us", "us"),
            Metric("p99_to_idle", "", 1.1, is_own=True), Metric("broker_cores", ""),
        ),
        measure,
    ),
)  # fmt: skip

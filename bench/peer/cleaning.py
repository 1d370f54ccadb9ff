"""Cleans of a compacted topic on the disk: their speed and CPU, and what producers feel of them meanwhile."""

from __future__ import annotations

import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from bench.peer.brokers import KafkaBroker, MeasuredBroker, wait_acknowledged
from bench.peer.clients import create_topics
from bench.peer.latency import PROPERTIES, RECORDS_A_SECOND, VALUE
from bench.peer.machine import CpuWindow
from bench.peer.throughput import CONSUMER, run_load
from bench.peer.wire import TIMEOUT_SECONDS, exchange, produce_batch_request, produce_error_offset
from bench.peer.workload import QUICK, Figures, Leg, Metric, Workload, cpu, rate
from tiered.records.batch import encode_batch

MIB = 1 << 20
TOPIC, PACED = "cleaned", "paced"
RECORD_BYTES, KEYED_VALUE = 100, b"x" * 84
BATCH_RECORDS = 5000
FULL_BYTES, QUICK_BYTES = 5 << 30, 512 * MIB
CLEAN_SECONDS = 1800.0
LONG_LAG_MS = 7 * 86_400_000
WARM_SECONDS = 3.0
CHECKPOINT_MS = 1000
"""Only what was fsynced is cleaned here. Closed segments are, at each checkpoint."""
LOOK_SECONDS = 0.02


def settings(map_bytes: int) -> dict[str, str]:
    """Returns the settings of both brokers: one thread, and the same memory for keys."""
    return {
        "log.cleaner.threads": "1", "log.cleaner.dedupe.buffer.size": str(map_bytes), "log.cleaner.backoff.ms": "100",
        "log.flush.offset.checkpoint.interval.ms": str(CHECKPOINT_MS), "remote.log.storage.system.enable": "false",
    }  # fmt: skip


def measure_clean(leg: Leg, *, keys: int, map_bytes: int) -> Figures:
    with leg.broker(leg.root, settings(map_bytes)) as broker:
        fill(broker, _size(leg), keys)
        window = CpuWindow(broker.pids)
        records = clean(broker)
        usage = window.close()
        return {
            "rate": records / usage.seconds,
            "cpu": usage.broker_cpu / records * 1e6,
            "records": records,
            "seconds": usage.seconds,
            "peak_rss_mb": broker.peak_rss() / 1e6,
            "foreign": usage.foreign_share,
        }


def measure_latency(leg: Leg) -> Figures:
    """Returns the latency of paced records without a clean, and from the moment on when one may begin."""
    with leg.broker(leg.root, settings(128 * MIB)) as broker, ThreadPoolExecutor(1) as pool:
        fill(broker, _size(leg), 1_000_000)
        create_topics(broker.address, {PACED: 1})
        options = ["-s", str(len(VALUE)), "-r", str(RECORDS_A_SECOND)]
        options += ["-w", str(WARM_SECONDS), "-T", str(leg.scale.latency_seconds)]
        run = partial(run_load, broker, "latency", PACED, options, {**PROPERTIES, **CONSUMER})
        idle = run()
        busy = pool.submit(run)
        time.sleep(WARM_SECONDS)
        began = time.perf_counter()
        clean(broker)
        clean_seconds = time.perf_counter() - began
        cleaning = busy.result()
        return {
            "idle_p99_us": idle.counts["p99_us"],
            "p99_us": cleaning.counts["p99_us"],
            "p999_us": cleaning.counts["p999_us"],
            "p99_to_idle": cleaning.counts["p99_us"] / idle.counts["p99_us"],
            "clean_share": min(1.0, clean_seconds / cleaning.counts["seconds"]),
            "foreign": cleaning.usage.foreign_share,
        }


def fill(broker: MeasuredBroker, size: int, keys: int) -> None:
    """Produces records of all keys, round after round, to a topic of which nothing may be cleaned yet."""
    create_topics(
        broker.address, {TOPIC: 1}, cleanup_policy="compact", segment_bytes=str(64 * MIB),
        min_cleanable_dirty_ratio="0.01", min_compaction_lag_ms=str(LONG_LAG_MS), max_message_bytes=str(2 * MIB),
    )  # fmt: skip
    now_ms, rng = int(time.time() * 1000), random.Random(1)
    at = produce_error_offset(TOPIC)
    wait_acknowledged(broker, produce_batch_request(TOPIC, 0, encode_batch([(now_ms, b"first", b"", ())])), at)
    numbers, frames = list(range(keys)), list[bytes]()
    rng.shuffle(numbers)
    for first in range(0, keys, BATCH_RECORDS):
        records = [(now_ms, b"%08d" % each, KEYED_VALUE, ()) for each in numbers[first : first + BATCH_RECORDS]]
        frames.append(produce_batch_request(TOPIC, 0, encode_batch(records)))
    with socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_SECONDS) as connection:
        for _ in range(max(1, round(size / RECORD_BYTES / keys))):
            rng.shuffle(frames)
            for frame in frames:
                code = struct.unpack_from(">h", exchange(connection, frame), at)[0]
                if code:
                    raise RuntimeError(f"{broker.name} refused a batch with error {code}")
    time.sleep(5 * CHECKPOINT_MS / 1000)


def clean(broker: MeasuredBroker) -> int:
    """Lets the topic be cleaned. Returns how many offsets were cleaned: all below the active segment."""
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 2})
    entry = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", TOPIC, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_SECONDS)
    until = time.perf_counter() + CLEAN_SECONDS
    while time.perf_counter() < until:
        broker.check_alive()
        bases = [int(each.stem) for each in _log_directory(broker).glob("*.log")]
        if bases and _cleaned_to(broker) >= max(bases):
            return max(bases)
        time.sleep(LOOK_SECONDS)
    raise RuntimeError(f"{broker.name} did not clean the topic: {broker.output_tail()}")


def _log_directory(broker: MeasuredBroker) -> Path:
    return next(broker.directory.rglob(f"{TOPIC}-0"), broker.directory)


def _cleaned_to(broker: MeasuredBroker) -> int:
    """Returns the offset below which all is clean, as the broker's own files say; 0 before the first clean."""
    directory = _log_directory(broker)
    is_kafka = isinstance(broker, KafkaBroker)
    file = directory.parent / "cleaner-offset-checkpoint" if is_kafka else directory / "compaction"
    try:
        rows = [line.split() for line in file.read_text().splitlines()[2:]]
    except OSError:
        return 0
    return next((int(row[-1] if is_kafka else row[0]) for row in rows if not is_kafka or row[0] == TOPIC), 0)


def _size(leg: Leg) -> int:
    return QUICK_BYTES if leg.scale is QUICK else FULL_BYTES


MEMORY = Metric("peak_rss_mb", "MB")
WORKLOADS = (
    Workload(
        "clean", "a clean of 5 GiB of 100 B records with 1 M keys, 128 MiB for keys (quick: 512 MiB)",
        (rate("records/s", 5.0), cpu("us/record", 0.3), MEMORY),
        partial(measure_clean, keys=1_000_000, map_bytes=128 * MIB),
    ),
    Workload(
        "clean-10m", "the same with 10 M keys and 256 MiB for keys",
        (rate("records/s", 5.0), cpu("us/record", 0.3), Metric("seconds", "s"), MEMORY),
        partial(measure_clean, keys=10_000_000, map_bytes=256 * MIB),
    ),
    Workload(
        "clean-latency", "end to end at 1,000 records/s of 100 B while 5 GiB are cleaned",
        (
            Metric("p99_us", "us", 0.5), Metric("p999_us", "us"), Metric("idle_p99_us", "us"),
            Metric("p99_to_idle", "", 1.1, is_own=True), Metric("clean_share", ""),
        ),
        measure_latency,
    ),
)  # fmt: skip

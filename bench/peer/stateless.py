"""Records that are acknowledged from the bucket (`flush=bucket`): latency of a trickle, rate, and requests.

The bucket is an S3 server in this process, whose requests take 60 ms (puts) and 30 ms (all others). Kafka cannot do
this: its figures are those of records that are in its page cache alone. So the goals are for our figures. They come
from s2-lite 0.43, measured on the same store and as many cores: p50 115 ms and p99 239 ms at 13 puts a second, 45 MB/s,
317 requests that write for a GiB, 740 MB of memory.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, Message, Producer

from bench.peer.brokers import MeasuredBroker
from bench.peer.clients import create_topics
from bench.peer.throughput import PRODUCER, fill, sum_loads
from bench.peer.workload import MEMORY, Figures, Leg, Metric, Workload, cpu
from tests.fakes3 import BUCKET, FakeS3, HttpFault, s3_fake
from tiered.object_store.faulty import FaultKind

PARTITIONS = 16
RECORDS_A_SECOND = 200
VALUE = b"x" * 1024
PUT_SECONDS, OTHER_SECONDS = 0.06, 0.03
WINDOW_MS = 75
"""So many windows a second as s2-lite puts."""
FULL_RECORDS = 1_000_000
WRITES = ("PUT", "POST", "LIST")
"""The verbs that S3 sells as requests that write."""
FLUSH_SECONDS = 60.0


@contextmanager
def slow_store(broker: MeasuredBroker) -> Iterator[FakeS3]:
    """Yields the server. The broker, which is not started yet, uses it if it is ours."""
    with s3_fake() as fake:
        fake.first_byte_seconds = OTHER_SECONDS
        fake.faults.append(HttpFault(FaultKind.DELAY, verbs=("PUT", "POST"), seconds=PUT_SECONDS - OTHER_SECONDS))
        before = dict(os.environ)
        os.environ.update(fake.environment)
        if broker.name == "ours":
            broker.settings |= {
                "store": f"s3://{BUCKET}/bench", "log.flush": "bucket", "tiered.wal.window.ms": str(WINDOW_MS)
            }  # fmt: skip
        try:
            yield fake
        finally:
            os.environ.clear()
            os.environ.update(before)


def count_writes(fake: FakeS3) -> int:
    return sum(fake.requests[verb] for verb in WRITES)


def trickle(address: str, topic: str, seconds: float) -> list[float]:
    """Writes by the clock, in turn to all partitions. Returns the latency of each record, from its time."""
    latencies: list[float] = []
    failed: list[str] = []
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 0})
    began = time.perf_counter()

    def note(due: float) -> object:
        def on_delivery(error: KafkaError | None, _: Message) -> None:
            if error is None:
                latencies.append(time.perf_counter() - due)
            else:
                failed.append(str(error))

        return on_delivery

    for number in range(round(RECORDS_A_SECOND * seconds)):
        due = began + number / RECORDS_A_SECOND
        while (left := due - time.perf_counter()) > 0:
            producer.poll(min(left, 0.002))
        producer.produce(topic, VALUE, partition=number % PARTITIONS, on_delivery=note(due))  # type: ignore[arg-type]
    producer.flush(FLUSH_SECONDS)
    if failed or not latencies:
        raise RuntimeError(f"records were not acknowledged: {failed[:1]}")
    return sorted(latencies)


def measure(leg: Leg) -> Figures:
    broker = leg.broker(leg.root)
    with slow_store(broker) as fake, broker:
        create_topics(broker.address, {"paced": PARTITIONS})
        trickle(broker.address, "paced", leg.scale.warm_seconds / 2)
        before, began = count_writes(fake), time.perf_counter()
        latencies = trickle(broker.address, "paced", leg.scale.timed_seconds)
        puts = (count_writes(fake) - before) / (time.perf_counter() - began)
        options = ["-s", str(len(VALUE)), "-n", str(FULL_RECORDS)]
        properties = {**PRODUCER, "acks": "all", "linger.ms": 20}
        before = count_writes(fake)
        full = sum_loads([fill(broker, "full", PARTITIONS, options, properties)], broker)
        gib = FULL_RECORDS * len(VALUE) / (1 << 30)
        return {
            "p50_ms": statistics.median(latencies) * 1000,
            "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
            "puts": puts,
            "mb_per_second": full["mb_per_second"],
            "writes_per_gib": (count_writes(fake) - before) / gib,
            "cpu": full["cpu"],
            "peak_rss_mb": full["peak_rss_mb"],
            "foreign": full["foreign"],
        }


WORKLOADS = (
    Workload(
        "stateless", "acknowledged from a bucket with puts of 60 ms (Kafka: from its page cache)",
        (
            Metric("p50_ms", "ms", 104, is_own=True), Metric("p99_ms", "ms", 143, is_own=True), Metric("puts", "/s"),
            Metric("mb_per_second", "MB/s", 225, at_most=False, is_own=True),
            Metric("writes_per_gib", "/GiB", 63, is_own=True), cpu("s/GB"), MEMORY,
        ),
        measure,
    ),
)  # fmt: skip

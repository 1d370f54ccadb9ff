"""Requests that a cluster makes to its bucket for each GiB that is written."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from bench.figures import Figure
from bench.peer.brokers import TieredBroker
from bench.peer.clients import create_topics
from bench.peer.throughput import PRODUCER, run_load
from bench.peer.trio import BenchCluster
from tests.fakes3 import BUCKET, FakeS3, s3_fake

GIB = 1 << 30
RECORDS = 4 * GIB // 1024
PARTITIONS, REPLICAS = 6, 3
SEGMENT_BYTES = 128 << 20
PUT_CLASS = ("PUT", "POST", "LIST")
"""Requests that S3 bills as PUT. DELETE is free, GET and HEAD cost a tenth."""
QUIET_SECONDS = 20.0
LIMIT_SECONDS = 300.0


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory, s3_fake() as s3:
        os.environ.update(s3.environment)
        with BenchCluster(Path(directory), TieredBroker, {"store": f"s3://{BUCKET}/bench"}) as trio:
            create_topics(trio.address, {"t": PARTITIONS}, REPLICAS, segment_bytes=str(SEGMENT_BYTES))
            s3.requests.clear()
            done = run_load(
                trio,
                "produce",
                "t",
                ["-p", str(PARTITIONS), "-s", "1024", "-n", str(RECORDS)],
                {**PRODUCER, "acks": "all"},
            )
            _wait_quiet(s3)
            request_counts = dict(s3.requests)
    volume = done.counts["bytes"] / GIB
    note = ", ".join(f"{verb} {count}" for verb, count in sorted(request_counts.items()))
    per_gib = sum(request_counts.get(verb, 0) for verb in PUT_CLASS) / volume
    what = f"{volume:.1f} GiB over {PARTITIONS} partitions of {REPLICAS} replicas, 128 MiB segments"
    return [Figure("PUT-class requests for a GiB written", per_gib, "", 12, at_most=True, note=f"{what}: {note}")]


def _wait_quiet(s3: FakeS3) -> None:
    """Waits until nothing was written for a while: then all closed segments are in the bucket."""
    until = time.monotonic() + LIMIT_SECONDS
    last, since = s3.requests["PUT"], time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS and time.monotonic() < until:
        time.sleep(0.5)
        if s3.requests["PUT"] != last:
            last, since = s3.requests["PUT"], time.monotonic()

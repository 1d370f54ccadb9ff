"""`tiered sql` on tables in a bucket whose requests take 30 ms, each query a process of its own."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

from bench.broker import BrokerProcess
from bench.figures import Figure
from tests.fakes3 import BUCKET, s3_fake
from tiered.records.batch import Codec, encode_batch

ROWS, PARTITIONS, BATCH_ROWS, REQUEST_BATCHES = 8_000_000, 4, 4_000, 16
KEYS = 1_000_000
STARTED_MS = int(time.time() * 1000)
FIRST_BYTE_SECONDS = 0.03
TURNS = 3
COLD_SECONDS = 600.0
QUERIES = {
    "count": "SELECT count(*) FROM t",
    "one record": 'SELECT CAST(value AS VARCHAR) FROM t WHERE "partition" = 2 AND "offset" = 1234567',
    "a join": 'SELECT a."offset" % 10 AS d, count(*) FROM t a JOIN t b ON a."offset" = b."offset"'
    ' WHERE a."partition" = 0 AND b."partition" = 1 AND a."offset" BETWEEN 500000 AND 549999'
    ' AND b."offset" BETWEEN 500000 AND 549999 GROUP BY 1 ORDER BY 1',
    "one key": "SELECT count(*) FROM t WHERE key = 'key-0777777'::BLOB",
}
CLI = [sys.executable, "-m", "tiered_api.cli.main"]


def row(number: int) -> tuple[int, bytes, bytes, tuple[()]]:
    """Returns a record, whose value compresses to about half."""
    text = blake2b(number.to_bytes(8, "big"), digest_size=20).hexdigest().encode()
    value = b'{"id":%d,"text":"%s"}' % (number, text)
    return STARTED_MS + number // 100, b"key-%07d" % (number % KEYS), value, ()


def fill(broker: BrokerProcess) -> None:
    """Writes the rows, all of them to the bucket."""
    broker.create_topic("t", PARTITIONS, segment_bytes=64 << 20, retention_ms=-1)
    for partition in range(PARTITIONS):
        path, body = f"/topics/t/partitions/{partition}/records", bytearray()
        for number, base in enumerate(range(0, ROWS // PARTITIONS, BATCH_ROWS), 1):
            body += encode_batch([row(each) for each in range(base, base + BATCH_ROWS)], codec=Codec.ZSTD)
            if number % REQUEST_BATCHES == 0 or base + BATCH_ROWS >= ROWS // PARTITIONS:
                status, answer = broker.request("POST", path, bytes(body), "application/octet-stream")
                if status != 200:
                    raise RuntimeError(f"raw produce: {status} {answer!r}")
                body.clear()
    until = time.monotonic() + COLD_SECONDS
    for partition in range(PARTITIONS):
        while (state := broker.partition("t", partition))["cold_end_offset"] < state["high_watermark"]:
            if time.monotonic() > until:
                raise RuntimeError(f"not cold in time: {state}")
            time.sleep(0.2)


def run_cli(environment: Mapping[str, str], *arguments: str) -> tuple[float, str]:
    """Returns the seconds of a command from its start, and what it printed."""
    began = time.perf_counter()
    done = subprocess.run([*CLI, *arguments], env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{arguments}: {done.stderr[-1000:]}")
    return time.perf_counter() - began, done.stdout


def main() -> list[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="tiered-bench-") as directory, s3_fake() as fake:
        store, lake = f"s3://{BUCKET}/log", f"s3://{BUCKET}/lake"
        settings = ("tiered.upload.max.lag.ms=2000",)
        with BrokerProcess(Path(directory) / "data", *settings, store=store, env=fake.environment) as broker:
            fill(broker)
        run_cli(
            fake.environment, "load", "--topic", "t", "--store", store, "--warehouse", lake, "--engine", "native",
            "--no-progress",
        )  # fmt: skip
        fake.first_byte_seconds = FIRST_BYTE_SECONDS
        for name, query in QUERIES.items():
            fake.requests.clear()
            seconds: list[float] = []
            for _ in range(TURNS):
                took, printed = run_cli(
                    fake.environment, "sql", "--warehouse", lake, "--format", "json", "--no-progress", query
                )
                seconds.append(took)
                if not printed.strip():
                    raise RuntimeError(f"{query}: no row")
            gets = round(sum(fake.requests.values()) / TURNS)
            figures.append(
                Figure(
                    f"`tiered sql` on S3, 8,000,000 rows: {name}", statistics.median(seconds), "s", 1.0, at_most=True,
                    note=f"{gets} requests of 30 ms",
                )
            )  # fmt: skip
    return figures

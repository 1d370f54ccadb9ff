"""Starts on an empty disk with `flush=bucket`: all that was acknowledged is in a bucket whose gets take 30 ms."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from bench.broker import BrokerProcess
from bench.figures import Figure
from tests.fakes3 import BUCKET, HttpFault, s3_fake
from tiered.object_store.faulty import FaultKind
from tiered.records.batch import encode_batch

PUT_SECONDS, OTHER_SECONDS = 0.06, 0.03
CHAIN_SECONDS = 60.0
FEW, MANY = 16, 1_000
WRITERS = 16
LIMIT_SECONDS = 120.0


@contextmanager
def slow_bucket() -> Iterator[dict[str, str]]:
    """Yields the environment of brokers that use the bucket."""
    with s3_fake() as fake:
        fake.first_byte_seconds = OTHER_SECONDS
        fake.faults.append(HttpFault(FaultKind.DELAY, verbs=("PUT", "POST"), seconds=PUT_SECONDS - OTHER_SECONDS))
        yield fake.environment


def append(broker: BrokerProcess, partition: int) -> int:
    """Appends a record with `acks=all`. Returns the HTTP status."""
    batch = encode_batch([(int(time.time() * 1000), None, b"x" * 1024, ())])
    path = f"/topics/t/partitions/{partition}/records"
    return broker.request("POST", path, bytes(batch), "application/octet-stream")[0]


def require(broker: BrokerProcess, partition: int) -> None:
    """Appends a record, and tries again until the partition is led."""
    until = time.monotonic() + LIMIT_SECONDS
    while (status := append(broker, partition)) != 200:
        if time.monotonic() > until:
            raise RuntimeError(f"partition {partition} is not written: {status}")
        time.sleep(0.01)


def require_each(broker: BrokerProcess, partitions: int, seconds: float = 0.0) -> None:
    """Appends a record to each partition, side by side, and goes on for so many seconds."""
    until = time.monotonic() + seconds

    def write(partition: int) -> None:
        require(broker, partition)
        while time.monotonic() < until:
            require(broker, partition)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(partitions)))


def seconds_to_lead(log: str) -> float:
    """Returns the time of the last start from the registration of a broker until it led all its partitions."""
    times = [
        datetime.fromisoformat(line[:23])
        for line in log.splitlines()
        if "broker is controller now" in line or "broker serves" in line
    ]
    return (times[-1] - times[-2]).total_seconds()


def measure(root: Path, partitions: int, seconds: float) -> tuple[float, float]:
    """Returns how long a broker took to lead on an empty disk what one before it led, and its whole start.

    The one before had written to each partition for so many seconds, and was killed.
    """
    with slow_bucket() as environment:
        store, settings = f"s3://{BUCKET}/bench", ("log.flush=bucket",)
        broker = BrokerProcess(root / "data", *settings, store=store, env=environment)
        broker.create_topic("t", partitions)
        require_each(broker, partitions, seconds)
        broker.kill()
        shutil.rmtree(root / "data")
        with BrokerProcess(root / "data", *settings, store=store, env=environment) as again:
            require_each(again, FEW)
        return seconds_to_lead(Path(again.log.name).read_text()), again.ready_seconds


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="tiered-bench-") as directory:
        roots = [Path(directory, name) for name in ("chain", "many")]
        for each in roots:
            each.mkdir()
        takeover = measure(roots[0], FEW, CHAIN_SECONDS)[0]
        many = measure(roots[1], MANY, 0.0)[1]
    return [
        Figure("takeover with 60 s of chain, 16 partitions", takeover, "s", 2.0, at_most=True),
        Figure("start on an empty disk, 1,000 partitions in the bucket", many, "s", 3.0, at_most=True),
    ]

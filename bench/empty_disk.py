"""Starts on an empty disk with `flush=bucket`: all that was acknowledged is in a bucket whose gets take 30 ms."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

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
ALL_LED = "records of chains are read led="


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


def require_each(broker: BrokerProcess, partitions: Iterable[int], seconds: float = 0.0) -> None:
    """Appends a record to each partition, side by side, and goes on for so many seconds."""
    until = time.monotonic() + seconds

    def write(partition: int) -> None:
        require(broker, partition)
        while time.monotonic() < until:
            require(broker, partition)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, partitions))


def seconds_to_lead(log: Path) -> float:
    """Returns the time of the last start from the registration of a broker until it led all its partitions."""
    until = time.monotonic() + LIMIT_SECONDS
    while (line := last_line(log, ALL_LED)) is None:
        if time.monotonic() > until:
            raise RuntimeError(f"the broker does not lead all its partitions; see {log}")
        time.sleep(0.05)
    begin = last_line(log, "broker is controller now")
    return (datetime.fromisoformat(line[:23]) - datetime.fromisoformat((begin or line)[:23])).total_seconds()


def last_line(log: Path, words: str) -> str | None:
    """Returns the last line of a log that has these words; None if there is none."""
    return next((line for line in reversed(log.read_text().splitlines()) if words in line), None)


class Start(NamedTuple):
    """Times of a start in seconds: from the registration until all partitions are led, from the start of the process
    until clients have written to some partitions, and until all are led."""

    takeover: float
    first_writes: float
    whole: float


def measure(root: Path, partitions: int, seconds: float) -> Start:
    """Returns how long a broker took to lead on an empty disk what one before it led.

    The one before had written to each partition for so many seconds, and was killed.
    """
    with slow_bucket() as environment:
        store, settings = f"s3://{BUCKET}/bench", ("log.flush=bucket",)
        broker = BrokerProcess(root / "data", *settings, store=store, env=environment)
        broker.create_topic("t", partitions)
        require_each(broker, range(partitions), seconds)
        broker.kill()
        shutil.rmtree(root / "data")
        started = time.monotonic()
        with BrokerProcess(root / "data", *settings, store=store, env=environment) as again:
            require_each(again, range(FEW))
            first_writes = time.monotonic() - started
            takeover = seconds_to_lead(Path(again.log.name))
            return Start(takeover, first_writes, time.monotonic() - started)


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="tiered-bench-") as directory:
        roots = [Path(directory, name) for name in ("chain", "many")]
        for each in roots:
            each.mkdir()
        few = measure(roots[0], FEW, CHAIN_SECONDS)
        many = measure(roots[1], MANY, 0.0)
    return [
        Figure("takeover with 60 s of chain, 16 partitions", few.takeover, "s", 2.0, at_most=True),
        Figure("start on an empty disk, 16 of 1,000 partitions written", many.first_writes, "s", 3.0, at_most=True),
        Figure("start on an empty disk, all of 1,000 partitions led", many.whole, "s"),
    ]

"""Start, idle use and restart: the cost of a broker before clients use it, and after a kill."""

from __future__ import annotations

import concurrent.futures
import statistics
import tempfile
import time
from pathlib import Path

from bench.broker import BrokerProcess
from bench.figures import Figure
from tiered.records.batch import encode_batch

IDLE_SECONDS = 60.0
BATCH_BYTES = 16 * 1024


def start_and_idle(root: Path) -> list[Figure]:
    with BrokerProcess(root / "start"):
        pass
    seconds = []
    for _ in range(5):
        with BrokerProcess(root / "start") as broker:
            seconds.append(broker.ready_seconds)
    with BrokerProcess(root / "start") as broker:
        broker.create_topic("idle", 1)
        time.sleep(5)
        cpu, requests = broker.cpu_seconds(), broker.metric("tiered_store_requests_total")
        time.sleep(IDLE_SECONDS)
        idle_cpu = (broker.cpu_seconds() - cpu) / IDLE_SECONDS * 100
        idle_requests = (broker.metric("tiered_store_requests_total") - requests) / IDLE_SECONDS * 60
        memory = broker.memory() / 1e6
    return [
        Figure("start to ready (file store)", statistics.median(seconds), "s", 0.5, at_most=True),
        Figure("idle RSS", memory, "MB", 45, at_most=True),
        Figure("idle CPU", idle_cpu, "% of a core", 1.0, at_most=True),
        Figure("idle bucket requests", idle_requests, "a minute", 1.0, at_most=True),
    ]


def fill(broker: BrokerProcess, topic: str, partitions: int, total: int) -> None:
    """Writes `total` bytes in batches of 16 KiB of an idempotent producer, many to a request."""
    value = bytes(range(256)) * 4
    now = int(time.time() * 1000)
    count = BATCH_BYTES // (len(value) + 12)
    records = [(now, None, value, ())] * count
    per_request = 64

    def one(partition: int) -> None:
        sequence = 0
        for _ in range(total // partitions // (BATCH_BYTES * per_request)):
            body = bytearray()
            for _ in range(per_request):
                body += encode_batch(records, producer_id=1000 + partition, producer_epoch=0, base_sequence=sequence)
                sequence += count
            path = f"/topics/{topic}/partitions/{partition}/records"
            status, answer = broker.request("POST", path, bytes(body), "application/octet-stream")
            if status != 200:
                raise RuntimeError(f"raw produce: {status} {answer!r}")

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(partitions)))


def restart_after_kill(root: Path, gigabytes: int, goal: float) -> Figure:
    """Measures kill -9 with this much data in segments that were never fsynced; the page cache stays whole."""
    directory = root / f"kill{gigabytes}"
    broker = BrokerProcess(directory, "remote.log.storage.system.enable=false")
    broker.create_topic("t", 100)
    fill(broker, "t", 100, gigabytes << 30)
    broker.kill()
    with BrokerProcess(directory, "remote.log.storage.system.enable=false") as again:
        return Figure(f"kill -9 with {gigabytes} GB unflushed to ready", again.ready_seconds, "s", goal, at_most=True)


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="tiered-bench-") as directory:
        root = Path(directory)
        return [*start_and_idle(root), restart_after_kill(root, 2, 1.0), restart_after_kill(root, 10, 2.0)]

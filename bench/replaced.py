"""Copies made by a broker that lost its disk: the hot tail from other brokers, nothing of the cold part."""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
import time
import urllib.request
from pathlib import Path

from bench.figures import Figure
from bench.peer.brokers import MeasuredBroker, TieredBroker, bytes_below
from bench.peer.clients import create_topics
from bench.peer.throughput import PRODUCER, run_load
from bench.peer.trio import BenchCluster

GIB = 1 << 30
COLD_BYTES, HOT_BYTES = 20 * GIB, 2 * GIB
PARTITIONS, REPLICAS = 6, 3
LIMIT_SECONDS = 600.0
QUIET_SECONDS = 40.0
STEP_SECONDS = 1.0
MOVED = {"copied from leaders": "tiered_replica_copied_bytes_total", "of the bucket": "tiered_store_bytes_total"}


def main() -> list[Figure]:
    settings = {"local.retention.bytes": str(HOT_BYTES // PARTITIONS), "segment.bytes": str(128 << 20)}
    with tempfile.TemporaryDirectory() as directory, BenchCluster(Path(directory), TieredBroker) as trio:
        create_topics(trio.address, {"t": PARTITIONS}, REPLICAS, **settings)
        options = ["-p", str(PARTITIONS), "-s", "1024", "-n", str((COLD_BYTES + HOT_BYTES) // 1024)]
        run_load(trio, "produce", "t", options, {**PRODUCER, "acks": "all"})
        _wait_idle(trio)
        controller = trio.controller()
        broker = next(each for node, each in trio.brokers.items() if node != controller)
        hot, cold = broker.disk_bytes(), bytes_below(trio.directory / "bucket")
        broker.stop(signal.SIGKILL)
        shutil.rmtree(broker.directory / "data")
        since = time.perf_counter()
        broker.spawn()
        trio.wait_in_sync()
        seconds = time.perf_counter() - since
        moved = {name: _read_counter(broker, metric) for name, metric in MOVED.items()}
    note = ", ".join(f"{count / (1 << 20):,.0f} MiB {name}" for name, count in moved.items())
    share = sum(moved.values()) / (hot + cold)
    what = f"{cold / GIB:.1f} GiB cold and {hot / GIB:.2f} GiB hot: {note}; in sync after {seconds:.1f} s"
    return [Figure("bytes moved to replace a broker, of those it held", share, "", 0.15, at_most=True, note=what)]


def _wait_idle(trio: BenchCluster) -> None:
    """Waits until no more data goes to the bucket or off the disks.

    A closed segment may wait for the next one that closes.
    """
    until = time.monotonic() + LIMIT_SECONDS
    last, since = 0, time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        trio.check_alive()
        if time.monotonic() > until:
            raise RuntimeError(f"the brokers do not come to rest: {trio.output_tail()}")
        time.sleep(STEP_SECONDS)
        held = trio.disk_bytes() + bytes_below(trio.directory / "bucket")
        if held != last:
            last, since = held, time.monotonic()


def _read_counter(broker: MeasuredBroker, metric: str) -> float:
    """Returns a counter of this broker over all its labels, since its last start."""
    places = re.findall(r"ready: http://(\S+)", (broker.directory / "output").read_text())
    with urllib.request.urlopen(f"http://{places[-1]}/metrics", timeout=10) as answer:
        found = re.findall(rf"^{metric}(?:{{[^}}]*}})? (\S+)$", answer.read().decode(), re.MULTILINE)
    return sum(map(float, found))

"""Append to the hot log in process: compared with a bare write loop, and small batches per second."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from bench.figures import Figure, median_ratio, run_pairs
from tiered.config.settings import TopicConfig
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_recovery import LogRecovery
from tiered.metrics import Metrics
from tiered.records.batch import encode_batch
from tiered.system.clock import SystemClock
from tiered.system.local_disk import LocalDisk

MIB = 1 << 20
TOTAL = 1 << 30
"""Bytes of one leg: long enough to time, too short to meet the kernel's write-back throttle."""


def batch_of(size: int, value_bytes: int) -> bytes:
    """Returns one batch of about `size` bytes, with values of `value_bytes`."""
    count = max(1, (size - 61) // (value_bytes + 12))
    value = os.urandom(value_bytes)
    now = int(time.time() * 1000)
    return encode_batch([(now, None, value, ()) for _ in range(count)])


def open_log(root: Path, name: str) -> DiskLog:
    disk = LocalDisk(str(root))
    return asyncio.run(
        DiskLog.open(
            disk,
            SystemClock(),
            f"log/{name}-0",
            TopicConfig(),
            LogRecovery(same_boot=True, clean=True),
            metrics=Metrics(),
            topic_id="AAAAAAAAAAAAAAAAAAAAAA",
            name=name,
        )
    )  # fmt: skip


def append_rate(root: Path, batch: bytes, total: int) -> float:
    """Returns bytes per second through DiskLog.append, with header and CRC checked."""
    log = open_log(root, f"t{time.monotonic_ns()}")
    data = bytearray(batch)
    now = int(time.time() * 1000)
    rounds = total // len(batch)
    start = time.perf_counter()
    for _ in range(rounds):
        log.append(data, leader_epoch=0, now_ms=now)
    seconds = time.perf_counter() - start
    log.close()
    return rounds * len(batch) / seconds


def write_rate(root: Path, batch: bytes, total: int) -> float:
    """Returns bytes per second through os.write alone: same bytes, same directory."""
    path = root / f"bare{time.monotonic_ns()}"
    rounds = total // len(batch)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    start = time.perf_counter()
    for _ in range(rounds):
        os.write(fd, batch)
    seconds = time.perf_counter() - start
    os.close(fd)
    path.unlink()
    return rounds * len(batch) / seconds


def run(root: Path) -> list[Figure]:
    large, small = batch_of(MIB, 1000), batch_of(1024, 100)

    def leg(rate: float) -> float:
        for old in root.glob("log/*/*"):
            old.unlink()
        return rate

    append_rate(root, large, TOTAL)  # touch the page cache's memory once
    pairs = list(
        run_pairs(6, lambda: leg(append_rate(root, large, TOTAL)), lambda: leg(write_rate(root, large, TOTAL)))
    )
    ratio, low, high = median_ratio(pairs)
    rates = sorted(leg(append_rate(root, small, 200 * MIB)) / len(small) for _ in range(5))
    ours = sorted(a for a, _ in pairs)[len(pairs) // 2]
    return [
        Figure(
            "append 1 MiB batches, CRC checked / bare write loop", ratio, "x", 0.8,
            note=f"{ours / 1e9:.2f} GB/s; pairs {low:.2f}-{high:.2f}",
        ),
        Figure("append 1 KiB batches", rates[2], "batches/s", 100_000),
    ]  # fmt: skip


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="tiered-bench-") as directory:
        return run(Path(directory))

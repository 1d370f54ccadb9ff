"""The cold tier in process: replay of one partition over slow links, and the memory of an upload."""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bench.append import MIB, batch_of
from bench.figures import Figure
from tiered.cold.cache import ChunkCache
from tiered.cold.disk_cache import DiskCache
from tiered.cold.manifest import Manifest
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.reader import ColdReader
from tiered.cold.uploader import Uploader
from tiered.config.settings import TopicConfig
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_recovery import LogRecovery
from tiered.ids import PartitionId, TopicId
from tiered.metrics import Metrics
from tiered.object_store.directory import DirectoryStore
from tiered.object_store.faulty import Faults, faulty
from tiered.system.clock import SystemClock, SystemRng
from tiered.system.local_disk import LocalDisk

PID = PartitionId(TopicId("AAAAAAAAAAAAAAAAAAAAAA"), 0)
FIRST_BYTE_SECONDS = 0.03
BYTES_PER_SECOND = 85e6


async def make_cold(root: Path, segment_bytes: int, total: int) -> Manifest:
    """Writes `total` bytes to one partition. All but the active segment are in the bucket."""
    clock, rng, metrics = SystemClock(), SystemRng(), Metrics()
    store = DirectoryStore(str(root / "bucket"), clock, rng)
    manifests = ManifestStore(store, clock, rng, metrics)
    uploader = Uploader(store, manifests, clock, rng, metrics)
    manifest = await manifests.change(PID, "bench", 0, lambda current, _: current.adopt_epoch(0))
    config = replace(TopicConfig(), segment_bytes=segment_bytes)
    log = await DiskLog.open(
        LocalDisk(str(root)),
        clock,
        "log/bench-0",
        config,
        LogRecovery(same_boot=True, clean=True),
        metrics=metrics,
        topic_id=PID.topic_id,
        name="bench",
    )  # fmt: skip
    batch = bytearray(batch_of(MIB, 1000))
    for _ in range(total // len(batch)):
        log.append(batch, leader_epoch=0, now_ms=clock.wall_ms())
    log.roll()
    while (uploaded := await uploader.upload_next(log, manifest, 0, log.end_offset)) is not None:
        manifest = uploaded
    log.close()
    await store.close()
    return manifest


async def replay(root: Path, manifest: Manifest, disk_bytes: int = 0) -> tuple[float, float]:
    """Returns (bytes per second, gets per GiB) of one reader from the first offset to the last. With `disk_bytes` it
    keeps so many bytes of chunks on disk, and takes what an earlier replay has kept."""
    clock, rng, metrics = SystemClock(), SystemRng(), Metrics()
    link = Faults(first_byte_seconds=FIRST_BYTE_SECONDS, bytes_per_second=BYTES_PER_SECOND)
    store = faulty(DirectoryStore(str(root / "bucket"), clock, rng), link, clock)
    manifests = ManifestStore(store, clock, rng, metrics)
    kept = DiskCache(LocalDisk(str(root)), clock, metrics, disk_bytes)
    keeping = asyncio.create_task(kept.run())
    await asyncio.sleep(0.1)
    reader = ColdReader(store, manifests, ChunkCache(metrics), metrics, clock, disk_cache=kept)
    start, total = time.perf_counter(), 0
    async for piece in reader.iterate(PID, 0, manifest=manifest):
        total += len(piece.data)
    seconds = time.perf_counter() - start
    reader.close()
    keeping.cancel()
    await store.close()
    return total / seconds, store.calls["get"] / (total / (1 << 30))


def peak_rss() -> int:
    """Returns bytes. Does not use ru_maxrss, which a process inherits from its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _upload_peak(root: str, segment_bytes: int, report: multiprocessing.SimpleQueue[int]) -> None:
    asyncio.run(make_cold(Path(root), segment_bytes, segment_bytes * 2))
    report.put(peak_rss())


def upload_peak(root: Path, segment_bytes: int) -> int:
    """Returns the peak RSS of a separate process that fills and uploads two segments of this size."""
    context = multiprocessing.get_context("spawn")
    report: multiprocessing.SimpleQueue[int] = context.SimpleQueue()
    process = context.Process(target=_upload_peak, args=(str(root / f"peak{segment_bytes}"), segment_bytes, report))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"the uploading process ended with {process.exitcode}")
    return report.get()


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="tiered-bench-") as directory:
        root = Path(directory)
        manifest = asyncio.run(make_cold(root, 128 * MIB, 2 << 30))
        legs = sorted(asyncio.run(replay(root, manifest)) for _ in range(5))
        rate, gets = legs[len(legs) // 2]
        first_rate, _ = asyncio.run(replay(root, manifest, 4 << 30))
        again = sorted(asyncio.run(replay(root, manifest, 4 << 30)) for _ in range(3))
        again_rate, again_gets = again[1]
        small, large = upload_peak(root, 64 * MIB), upload_peak(root, 1024 * MIB)
    return [
        Figure(
            "cold replay, one partition, 30 ms and 85 MB/s a get", rate / 1e6, "MB/s", 800,
            note=f"{gets:.0f} gets/GiB; 5 runs {legs[0][0] / 1e6:.0f}-{legs[-1][0] / 1e6:.0f}",
        ),
        Figure(
            "the same again, from the cache on disk", again_rate / 1e6, "MB/s", 800,
            note=f"{again_gets:.0f} gets/GiB; {first_rate / 1e6:.0f} MB/s while it is filled",
        ),
        Figure(
            "memory of uploading 1 GiB segments over 64 MiB ones", (large - small) / 1e6, "MB", 16, at_most=True,
            note=f"peak RSS {small / 1e6:.0f} and {large / 1e6:.0f} MB",
        ),
    ]  # fmt: skip

"""The cost of compaction in the bucket: bytes and requests of cleans for what producers wrote, and their speed."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from bench.append import MIB
from bench.cold import PID
from bench.figures import Figure
from tiered.cold.cache import ChunkCache
from tiered.cold.cleaner import ColdCleaner
from tiered.cold.collector import Collector
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.reader import ColdReader
from tiered.cold.uploader import Uploader
from tiered.config.settings import TopicConfig
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_cleaning import CleanerResources
from tiered.hot.log_recovery import LogRecovery
from tiered.metrics import Metrics
from tiered.object_store.directory import DirectoryStore
from tiered.object_store.metered import MeteredStore
from tiered.records.batch import encode_batch
from tiered.replication.cold_tier import CLEANER_BYTES
from tiered.system.clock import SystemClock, SystemRng
from tiered.system.local_disk import LocalDisk

T = TypeVar("T")
KEYS = 60_000
RECORD_BYTES = 1000
BATCH_RECORDS = 100
ROUND_BYTES = 12 * MIB
ROUNDS = 60


@dataclass
class Cost:
    """Sums over a run from the first clean to the last one. `dirty_bytes` were uploaded and cleaned.

    A request is one call of the object store: a get, a put, an upload, or a delete of at most 1,000 keys. An upload of
    a segment takes four: the object, a get of its end, a get and a put of the manifest. Deletes are those of cleans.
    """

    dirty_bytes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    clean_requests: int = 0
    upload_requests: int = 0
    cleaned_bytes: int = 0
    cleans: int = 0
    largest: int = 0
    seconds: float = 0.0


async def run_inline(call: Callable[[], T]) -> T:
    """Runs the call."""
    return call()


async def admit(_: int) -> None:
    """Waits for nothing."""


async def clean_rounds(root: Path, dirty_ratio: float) -> Cost:
    """Updates random keys round after round, and cleans whenever the dirty ratio says so."""
    clock, rng, metrics = SystemClock(), SystemRng(), Metrics()
    store = MeteredStore(DirectoryStore(str(root / "bucket"), clock, rng), clock, metrics)
    manifests = ManifestStore(store, clock, rng, metrics)
    uploader = Uploader(store, manifests, clock, rng, metrics)
    collector = Collector(store, manifests, uploader.keys_in_flight, clock, metrics, grace_ms=0)
    reader = ColdReader(
        store,
        manifests,
        ChunkCache(metrics, CLEANER_BYTES),
        metrics,
        clock,
        window_bytes=CLEANER_BYTES // 2,
    )
    cleaner = ColdCleaner(store, manifests, reader, collector, rng, metrics)
    config = replace(TopicConfig(), cleanup_policy=("compact",), min_cleanable_dirty_ratio=dirty_ratio)
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
    resources = CleanerResources(run_inline, admit, 128 * MIB, 512 << 10, 0.9, b"seed")
    manifest = await manifests.take_over(PID, "bench", 0)
    drawn, value, cost, waiting = random.Random(1), random.Random(2).randbytes(RECORD_BYTES), Cost(), 0
    for _ in range(ROUNDS):
        _append(log, drawn, value, ROUND_BYTES, clock.wall_ms())
        before = store.request_count()
        while (uploaded := await uploader.upload_next(log, manifest, 0, log.end_offset)) is not None:
            manifest = uploaded
        waiting += store.request_count() - before
        cost.largest = max(cost.largest, manifest.cold_bytes)
        found = await cleaner.find_cleanable(manifest, config, clock.wall_ms())
        if not found.is_due(config):
            continue
        is_first, before, began = manifest.clean_to < 0, store.request_count(), time.perf_counter()
        result = await cleaner.clean(manifest, 0, config, clock.wall_ms(), resources, log)
        await collector.delete_expired()
        manifest = result.manifest
        uploads, waiting = waiting, 0
        if is_first:
            continue
        cost.seconds += time.perf_counter() - began
        cost.cleans += 1
        cost.upload_requests += uploads
        cost.clean_requests += store.request_count() - before
        cost.dirty_bytes += found.dirty_bytes
        cost.bytes_read += result.bytes_read
        cost.bytes_written += result.bytes_written
        cost.cleaned_bytes += result.bytes_before
    log.close()
    reader.close()
    await store.close()
    return cost


def _append(log: DiskLog, drawn: random.Random, value: bytes, size: int, now_ms: int) -> None:
    for _ in range(size // (BATCH_RECORDS * RECORD_BYTES)):
        keys = (drawn.randrange(KEYS) for _ in range(BATCH_RECORDS))
        log.append(
            bytearray(encode_batch([(now_ms, b"%08d" % key, value, ()) for key in keys])), leader_epoch=0, now_ms=now_ms
        )
    log.roll()


def main() -> list[Figure]:
    figures: list[Figure] = []
    for ratio in (0.5, 0.2, 0.05):
        with tempfile.TemporaryDirectory(prefix="tiered-bench-") as directory:
            cost = asyncio.run(clean_rounds(Path(directory), ratio))
        moved = cost.bytes_read + cost.bytes_written
        figures += [
            Figure(
                f"bytes read and written in the bucket per dirty byte, dirty ratio {ratio}",
                moved / cost.dirty_bytes, "", 2.2, at_most=True,
                note=f"read {cost.bytes_read / cost.dirty_bytes:.2f}, written "
                f"{cost.bytes_written / cost.dirty_bytes:.2f}; {KEYS} keys of {RECORD_BYTES} B",
            ),
            Figure(
                f"requests of cleans per request of uploads, dirty ratio {ratio}",
                cost.clean_requests / cost.upload_requests, "", 0.7 if ratio == 0.5 else None, at_most=ratio == 0.5,
                note=f"{cost.clean_requests} of {cost.cleans} cleans and {cost.upload_requests}; at most "
                f"{cost.largest / KEYS / RECORD_BYTES:.1f} times the last records are in the bucket",
            ),
            Figure(
                f"log cleaned per second, dirty ratio {ratio}", cost.cleaned_bytes / cost.seconds / 1e6, "MB/s",
                note="a directory as the bucket, one thread",
            ),
        ]  # fmt: skip
    return figures

"""The cold tier of one broker, which all its partitions share. Binds the parts and has no rule of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tiered.cold.cache import CACHE_BYTES, ChunkCache
from tiered.cold.cleaner import OBJECT_BYTES, ColdCleaner
from tiered.cold.collector import GRACE_MS, Collector
from tiered.cold.disk_cache import DiskCache
from tiered.cold.fetch_throttle import FetchThrottle
from tiered.cold.manifest import FAN
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.reader import ColdReader
from tiered.cold.uploader import PUTS_AT_ONCE, Uploader
from tiered.ids import PartitionId
from tiered.metrics import Metrics
from tiered.object_store.paced import PacedStore
from tiered.ports import Clock, ObjectStore, Rng

CLEANER_BYTES = 64 << 20
"""Memory for chunks that cleans read. They do not displace what readers need."""


@dataclass(frozen=True)
class ColdTier:
    """The parts of the cold tier, one of each per broker."""

    manifests: ManifestStore
    reader: ColdReader
    uploader: Uploader
    collector: Collector
    cleaner: ColdCleaner

    @classmethod
    def build(
        cls,
        store: ObjectStore,
        clock: Clock,
        rng: Rng,
        metrics: Metrics,
        admit_request: Callable[[], Awaitable[None]],
        *,
        fan: int = FAN,
        cache_bytes: int = CACHE_BYTES,
        grace_ms: int = GRACE_MS,
        clean_object_bytes: int = OBJECT_BYTES,
        fetch_throttle: FetchThrottle | None = None,
        puts_at_once: int = PUTS_AT_ONCE,
        disk_cache: DiskCache | None = None,
    ) -> ColdTier:
        """Builds the parts over one store. `admit_request` waits until cleans may make one request more."""
        manifests = ManifestStore(store, clock, rng, metrics, fan=fan)
        uploader = Uploader(store, manifests, clock, rng, metrics, puts_at_once=puts_at_once)

        def list_keys_in_flight(partition_id: PartitionId) -> frozenset[str]:
            return uploader.keys_in_flight(partition_id) | cleaner.keys_in_flight(partition_id)

        collector = Collector(store, manifests, list_keys_in_flight, clock, metrics, grace_ms=grace_ms)
        paced = PacedStore(store, admit_request, metrics)
        own = Metrics()  # the figures of readers do not count what cleans read
        cleaner = ColdCleaner(
            paced, manifests,
            ColdReader(paced, manifests, ChunkCache(own, CLEANER_BYTES), own, clock, window_bytes=CLEANER_BYTES // 2),
            collector, rng, metrics, object_bytes=clean_object_bytes,
        )  # fmt: skip
        cache = ChunkCache(metrics, cache_bytes, disk_cache.invalidate if disk_cache is not None else None)
        reader = ColdReader(
            store, manifests, cache, metrics, clock, fetch_throttle=fetch_throttle, disk_cache=disk_cache
        )
        return cls(manifests, reader, uploader, collector, cleaner)

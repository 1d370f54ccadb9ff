"""A bucket without a broker: the metadata of the cluster, the manifests, and a cold reader. For tools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tiered.cold.cache import ChunkCache
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.reader import ColdReader
from tiered.errors import Code, Refused
from tiered.metadata.image import Image
from tiered.metadata.layout import apply_entries
from tiered.metadata.log_reader import load_image, read_boundary, read_entries
from tiered.metadata.parts.topics import TopicImage
from tiered.metrics import Metrics
from tiered.object_store.metered import MeteredStore
from tiered.object_store.url import open_store
from tiered.ports import ObjectStore
from tiered.system.clock import SystemClock, SystemRng

READ_AHEAD_BYTES = 64 << 20


class Bucket:
    """An open store. Its metadata is loaded once, at the first use. Belongs to one event loop."""

    def __init__(self, store: ObjectStore, read_ahead_bytes: int) -> None:
        clock, rng, metrics = SystemClock(), SystemRng(), Metrics()
        store = MeteredStore(store, clock, metrics)
        self.store = store
        self.manifests = ManifestStore(store, clock, rng, metrics)
        cache = ChunkCache(metrics, read_ahead_bytes)
        self.reader = ColdReader(store, self.manifests, cache, metrics, clock, window_bytes=read_ahead_bytes)
        self._image: Image | None = None

    def count_requests(self) -> dict[str, int]:
        """Returns the number of requests so far by verb."""
        return self.store.count_by_verb()

    async def read_image(self) -> Image:
        """Returns the metadata of the cluster. Raises `Refused` if the store has no cluster, `Unavailable` and
        `Corrupt`."""
        if self._image is None:
            self._image = await load_image(self.store)
        return self._image

    async def refresh_image(self) -> Image:
        """Returns the metadata as it is now: reads the new slots of the log only, two gets if there are none.

        Raises what `read_image` raises.
        """
        known = self._image
        if known is None:
            return await self.read_image()
        entries, _ = await read_entries(self.store, known.slot + 1)
        boundary, _ = await read_boundary(self.store)
        if boundary.collected > known.slot:  # slots that were read as absent may be collected ones
            self._image = await load_image(self.store)
        elif entries:
            self._image = apply_entries(known, entries)
        return self._image or known

    async def find_topic(self, name: str) -> TopicImage:
        """Returns a topic by its name. Raises `Refused` with UNKNOWN_TOPIC_OR_PARTITION."""
        found = (await self.read_image()).topics.get(name)
        if found is None:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name} in {self.store.url}")
        return found


@asynccontextmanager
async def open_bucket(url: str, *, read_ahead_bytes: int = READ_AHEAD_BYTES) -> AsyncIterator[Bucket]:
    """Opens the bucket of a store URL, and closes it at the end."""
    store = open_store(url, SystemClock(), SystemRng(), create=False)
    bucket = Bucket(store, read_ahead_bytes)
    try:
        yield bucket
    finally:
        bucket.reader.close()
        await store.close()

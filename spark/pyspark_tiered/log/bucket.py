"""Reads topics, bounds and batches from the bucket without a broker: for Spark's driver and its tasks."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, closing
from pathlib import Path
from typing import NamedTuple

from pyspark_tiered.delta.log_folder import open_table_bucket
from pyspark_tiered.log.offsets import Bound, BoundKind
from pyspark_tiered.log.plan import ColdPartition, ColdTopic, Split
from tiered.cold.layout import topic_prefix
from tiered.cold.manifest import Manifest
from tiered.cold.stream import ColdBatches
from tiered.errors import Code, Refused
from tiered.ids import PartitionId, TopicId
from tiered.metadata.parts.topics import TopicImage
from tiered.offline.bucket import Bucket, open_bucket
from tiered.offline.committed import find_undecided_offset, read_committed_batches
from tiered.records.model import WalkedBatch

DELTA_LOG = "_delta_log"
"""Folder of a table with its commits."""
MANIFEST = "manifest"
"""Name of the manifest below the prefix of its partition."""
MANIFESTS_AT_ONCE = 128
LIST_KEYS = 10_000
"""Objects that are listed at once. A bucket gives 1,000 in one request, and says which request is the last."""
TASK_READ_AHEAD_BYTES = 32 << 20
"""Bytes that one task reads ahead. A machine runs one task for each core."""


async def cold_topic(
    bucket: Bucket, name: str, starts: Mapping[int, int] | None = None, *, read_committed: bool = True
) -> ColdTopic:
    """Returns the cold part of a topic now; of each partition only segments that end above `starts`.

    Without `read_committed` no offset counts as undecided.

    Raises `Refused` if there is no such topic.
    """
    return await ColdTopics(bucket, read_committed=read_committed).read(name, starts)


class _KnownPartition(NamedTuple):
    """A manifest as it was read, with its version in the store. `undecided_offset`: see `ColdPartition`."""

    version: str
    manifest: Manifest | None
    undecided_offset: int | None


class ColdTopics:
    """The cold parts of topics in an open bucket. A later read gets only what has changed since the one before."""

    def __init__(self, bucket: Bucket, *, read_committed: bool = True) -> None:
        self._bucket = bucket
        self._read_committed = read_committed
        self._known: dict[TopicId, dict[int, _KnownPartition]] = {}

    async def find_topic(self, name: str, *, refresh: bool = True) -> TopicImage:
        """Returns a topic by its name, without `refresh` as it was at the last look. Raises `Refused` if there is
        none."""
        if refresh:
            await self._bucket.refresh_image()
        return await self._bucket.find_topic(name)

    async def read(self, name: str, starts: Mapping[int, int] | None = None) -> ColdTopic:
        """Returns the cold part of a topic now; of each partition only segments that end above `starts`.

        Raises `Refused` if there is no such topic.
        """
        found = await self.find_topic(name)
        before = self._known.get(found.topic_id)
        numbers = range(len(found.partitions))
        listed = {} if before is None else await self._list_manifests(found.topic_id)
        known = dict(before or {})
        changed = [
            number for number in numbers if number not in known or listed.get(number, "") != known[number].version
        ]
        for at in range(0, len(changed), MANIFESTS_AT_ONCE):
            some = changed[at : at + MANIFESTS_AT_ONCE]
            loaded = await asyncio.gather(*(self._load(PartitionId(found.topic_id, number)) for number in some))
            known |= dict(zip(some, loaded, strict=True))
        self._known[found.topic_id] = known
        partitions = [await self._partition(number, known[number], (starts or {}).get(number, 0)) for number in numbers]
        return ColdTopic(name, found.topic_id, tuple(partitions))

    async def has_changed(self, topic_id: TopicId) -> bool:
        """True if a list shows another manifest than the last read did, or if the topic was never read."""
        known = self._known.get(topic_id)
        if known is None:
            return True
        listed = await self._list_manifests(topic_id)
        changed = any(listed.get(number, "") != each.version for number, each in known.items())
        return changed or any(number not in known for number in listed)

    def digest(self, topic_id: TopicId) -> str:
        """Returns a digest of the manifests that the last read saw; two reads with one digest saw the same records."""
        return _digest({number: each.version for number, each in self._known.get(topic_id, {}).items()})

    async def list_digest(self, topic_id: TopicId) -> str:
        """Returns the digest of the manifests that a list shows now."""
        return _digest(await self._list_manifests(topic_id))

    def forget(self, topic_id: TopicId) -> None:
        """Drops what is known of a topic."""
        self._known.pop(topic_id, None)

    async def _list_manifests(self, topic_id: TopicId) -> dict[int, str]:
        """Returns the versions of the topic's manifests by partition."""
        prefix = topic_prefix(topic_id)
        found: dict[int, str] = {}
        last = ""
        while page := await self._bucket.store.list(prefix, last, LIST_KEYS):
            for each in page:
                number, _, name = each.key.removeprefix(prefix).partition("/")
                if name == MANIFEST and number.isdecimal():
                    found[int(number)] = each.version
            last = page[-1].key
            if len(page) < LIST_KEYS:  # what a short page hides is found by the next read
                break
        return found

    async def _load(self, partition_id: PartitionId) -> _KnownPartition:
        manifest, version = await self._bucket.manifests.load_versioned(partition_id)
        undecided = None
        if manifest is not None and self._read_committed:
            undecided = await find_undecided_offset(self._bucket, manifest)
        return _KnownPartition(version, manifest, undecided)

    async def _partition(self, number: int, known: _KnownPartition, start: int) -> ColdPartition:
        manifest = known.manifest
        if manifest is None:
            return ColdPartition(number, 0, 0, ())
        entries = tuple([entry async for entry in self._bucket.manifests.list_segments(manifest, start)])
        return ColdPartition(
            number, manifest.log_start_offset, manifest.cold_end_offset, entries, known.undecided_offset
        )


def _digest(versions: Mapping[int, str]) -> str:
    lines = (f"{number} {version}\n" for number, version in sorted(versions.items()) if version)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def _open_on_loop(opened: AbstractAsyncContextManager[Bucket]) -> tuple[asyncio.AbstractEventLoop, Bucket]:
    """Opens a bucket on an event loop of its own, which is closed if that fails."""
    loop = asyncio.new_event_loop()  # not asyncio.run: its handling of Ctrl-C formats every result as text
    try:
        return loop, loop.run_until_complete(opened.__aenter__())
    except BaseException:
        loop.close()
        raise


class ColdTopicReader:
    """`ColdTopics` of a store for plain, blocking code. It has its own event loop."""

    def __init__(self, url: str) -> None:
        self._opened = open_bucket(url)
        self._loop, self._bucket = _open_on_loop(self._opened)
        self._topics = ColdTopics(self._bucket)

    def topic_id(self, name: str, *, refresh: bool = True) -> TopicId:
        """Returns a topic's id, without `refresh` as it was at the last look. Raises `Refused` if there is none."""
        return self._loop.run_until_complete(self._topics.find_topic(name, refresh=refresh)).topic_id

    def topic_names(self) -> dict[str, TopicId]:
        """Returns the ids of all topics by name, as they are now."""
        topics = self._loop.run_until_complete(self._bucket.refresh_image()).topics
        return {name: topic.topic_id for name, topic in topics.items()}

    def broker_addresses(self) -> tuple[str, ...]:
        """Returns the URLs of HTTP of the brokers that run, as clients use them."""
        brokers = self._loop.run_until_complete(self._bucket.refresh_image()).brokers.values()
        return tuple(each.advertised_http or f"http://{each.http}" for each in brokers if each.live and each.http)

    def read(self, name: str, starts: Mapping[int, int]) -> ColdTopic:
        """Returns the cold part of a topic now; of each partition only segments that end above `starts`."""
        return self._loop.run_until_complete(self._topics.read(name, starts))

    def has_changed(self, topic_id: TopicId) -> bool:
        """True if the topic may have new cold records since the last read. One list, without a look at the metadata."""
        return self._loop.run_until_complete(self._topics.has_changed(topic_id))

    def digest(self, topic_id: TopicId) -> str:
        """Returns a digest of the manifests that the last read saw."""
        return self._topics.digest(topic_id)

    def list_digest(self, topic_id: TopicId) -> str:
        """Returns the digest of the manifests that a list shows now."""
        return self._loop.run_until_complete(self._topics.list_digest(topic_id))

    def forget(self, topic_id: TopicId) -> None:
        """Drops what is known of a topic."""
        self._topics.forget(topic_id)

    def count_requests(self) -> dict[str, int]:
        """Returns the number of requests so far by verb."""
        return self._bucket.count_requests()

    def close(self) -> None:
        """Closes the bucket."""
        try:
            self._loop.run_until_complete(self._opened.__aexit__(None, None, None))
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


def check_topic(store: str, name: str) -> None:
    """Raises `Refused` if the store has no such topic: before Spark starts, which takes a while."""

    async def look() -> None:
        async with open_bucket(store) as bucket:
            await bucket.find_topic(name)

    asyncio.run(look())


def check_table(topic: str, url: str) -> None:
    """Raises `Refused` if there is no table at a URL of Hadoop: before Spark starts, which takes a while.

    Looks for Delta's log. Kinds of URL that this package cannot list are left to Spark.
    """
    if url.startswith("file:"):
        found = any(Path(url.removeprefix("file:"), DELTA_LOG).glob("*"))
    elif url.startswith("s3a:"):
        found = asyncio.run(_has_log(url))
    else:
        return
    if not found:
        raise never_loaded(topic, url)


def never_loaded(topic: str, url: str) -> Refused:
    """Returns the error for a topic without a table."""
    return Refused(Code.INVALID_REQUEST, f"{topic} was never loaded: there is no table at {url}")


async def _has_log(url: str) -> bool:
    store, prefix = open_table_bucket(url)
    try:
        return bool(await store.list(f"{prefix}{DELTA_LOG}/", limit=1))
    finally:
        await store.close()


async def bound_offset(bucket: Bucket, topic: ColdTopic, number: int, bound: Bound) -> int:
    """Returns the offset that a bound means. A timestamp after the last readable record means the readable end, or is
    refused."""
    partition = topic.partitions[number]
    match bound.kind:
        case BoundKind.EARLIEST:
            return partition.log_start_offset
        case BoundKind.LATEST:
            return partition.readable_end_offset
        case BoundKind.OFFSET:
            return bound.value
        case BoundKind.TIMESTAMP:
            partition_id = PartitionId(topic.topic_id, number)
            found = await bucket.reader.offset_for_timestamp(partition_id, bound.value)
            end = partition.readable_end_offset
            return found[0] if found is not None and found[0] < end else bound.take_end(topic.name, number, end)


class BatchReader:
    """Batches of splits from one open bucket, for plain, blocking code. Every CRC is checked."""

    def __init__(self, url: str, *, read_committed: bool = True) -> None:
        self._opened = open_bucket(url, read_ahead_bytes=TASK_READ_AHEAD_BYTES)
        self._read_committed = read_committed
        self._loop, self._bucket = _open_on_loop(self._opened)

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the bucket."""
        try:
            self._loop.run_until_complete(self._opened.__aexit__(None, None, None))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    def count_requests(self) -> dict[str, int]:
        """Returns the number of requests so far by verb."""
        return self._bucket.count_requests()

    def read(self, split: Split) -> Generator[tuple[memoryview, list[WalkedBatch]]]:
        """Yields the batches of a split, some MiB at a time, with read-ahead.

        `read_committed`: without the batches of aborted transactions. Raises `Corrupt` with object and byte, also if an
        object is gone, and `Unavailable` after the store's own retries.
        """
        found = _read_pieces(self._bucket, split, self._read_committed)
        try:
            while (piece := self._loop.run_until_complete(anext(found, None))) is not None:
                yield piece.data, piece.batches
        finally:
            self._loop.run_until_complete(found.aclose())


def read_batches(
    url: str, split: Split, *, read_committed: bool = True
) -> Generator[tuple[memoryview, list[WalkedBatch]]]:
    """Yields the batches of a split as `BatchReader.read` does, from a bucket that is open meanwhile."""
    with BatchReader(url, read_committed=read_committed) as reader, closing(reader.read(split)) as found:
        yield from found


async def _read_pieces(bucket: Bucket, split: Split, read_committed: bool) -> AsyncGenerator[ColdBatches]:
    partition_id, manifest = PartitionId(split.topic_id, split.partition), split.manifest()
    if read_committed:
        walk = read_committed_batches(bucket, partition_id, split.start, split.end, manifest=manifest)
    else:
        walk = bucket.reader.iterate(partition_id, split.start, split.end, manifest=manifest)
    async with aclosing(walk):
        async for piece in walk:
            yield piece

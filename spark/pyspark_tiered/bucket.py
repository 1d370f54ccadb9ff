"""Reads topics, bounds and batches from the bucket without a broker: for Spark's driver and its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from pathlib import Path

from pyspark_tiered.offsets import Bound, BoundKind
from pyspark_tiered.plan import ColdPartition, ColdTopic, Split
from tiered.cold.manifest import Manifest
from tiered.cold.stream import ColdBatches
from tiered.errors import Code, Refused
from tiered.ids import PartitionId
from tiered.object_store.url import open_store
from tiered.offline.bucket import Bucket, open_bucket
from tiered.offline.committed import find_undecided_offset, read_committed_batches
from tiered.records.model import WalkedBatch
from tiered.system.clock import SystemClock, SystemRng

DELTA_LOG = "_delta_log"
"""Folder of a table with its commits."""
TASK_READ_AHEAD_BYTES = 32 << 20
"""Bytes that one task reads ahead. A machine runs one task for each core."""


async def cold_topic(
    bucket: Bucket, name: str, starts: Mapping[int, int] | None = None, *, read_committed: bool = True
) -> ColdTopic:
    """Returns the cold part of a topic now; of each partition only segments that end above `starts`.

    Without `read_committed` no offset counts as undecided.

    Raises `Refused` if there is no such topic.
    """
    found = await bucket.find_topic(name)
    pids = [PartitionId(found.topic_id, number) for number in range(len(found.partitions))]
    manifests = await asyncio.gather(*(bucket.manifests.load(partition_id) for partition_id in pids))
    partitions = [
        await _load_partition(
            bucket, partition_id.partition, manifest, (starts or {}).get(partition_id.partition, 0), read_committed
        )
        for partition_id, manifest in zip(pids, manifests, strict=True)
    ]
    return ColdTopic(name, found.topic_id, tuple(partitions))


async def _load_partition(
    bucket: Bucket, number: int, manifest: Manifest | None, start: int, read_committed: bool
) -> ColdPartition:
    if manifest is None:
        return ColdPartition(number, 0, 0, ())
    entries = tuple([entry async for entry in bucket.manifests.list_segments(manifest, start)])
    undecided = await find_undecided_offset(bucket, manifest) if read_committed else None
    return ColdPartition(number, manifest.log_start_offset, manifest.cold_end_offset, entries, undecided)


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
        found = asyncio.run(_has_objects(url, f"{DELTA_LOG}/"))
    else:
        return
    if not found:
        raise never_loaded(topic, url)


def never_loaded(topic: str, url: str) -> Refused:
    """Returns the error for a topic without a table."""
    return Refused(Code.INVALID_REQUEST, f"{topic} was never loaded: there is no table at {url}")


async def _has_objects(url: str, prefix: str) -> bool:
    store = open_store(url, SystemClock(), SystemRng(), create=False)
    try:
        return bool(await store.list(prefix, limit=1))
    finally:
        await store.close()


async def bound_offset(bucket: Bucket, topic: ColdTopic, number: int, bound: Bound) -> int:
    """Returns the offset that a bound means. A timestamp after the last readable record means the readable end."""
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
            return end if found is None else min(found[0], end)


def read_batches(
    url: str, split: Split, *, read_committed: bool = True
) -> Generator[tuple[memoryview, list[WalkedBatch]]]:
    """Yields the batches of a split, some MiB at a time, with read-ahead, every CRC checked. Plain, blocking code.

    `read_committed`: without the batches of aborted transactions. Raises `Corrupt` with object and byte, also if an
    object is gone, and `Unavailable` after the store's own retries.
    """
    loop = asyncio.new_event_loop()  # not asyncio.run: its handling of Ctrl-C formats every result as text
    found = _read_pieces(url, split, read_committed)
    try:
        while (piece := loop.run_until_complete(anext(found, None))) is not None:
            yield piece.data, piece.batches
    finally:
        loop.run_until_complete(found.aclose())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _read_pieces(url: str, split: Split, read_committed: bool) -> AsyncGenerator[ColdBatches]:
    partition_id, manifest = PartitionId(split.topic_id, split.partition), split.manifest()
    async with open_bucket(url, read_ahead_bytes=TASK_READ_AHEAD_BYTES) as bucket:
        if read_committed:
            walk = read_committed_batches(bucket, partition_id, split.start, split.end, manifest=manifest)
        else:
            walk = bucket.reader.iterate(partition_id, split.start, split.end, manifest=manifest)
        async with aclosing(walk):
            async for piece in walk:
                yield piece

"""Offsets without a row in a table, and the reason for each: from the log itself, or from the log start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from pyspark_tiered.log.plan import ColdTopic, cleaned_ranges
from tiered.cold.manifest import Manifest
from tiered.ids import PartitionId
from tiered.offline.bucket import Bucket, open_bucket
from tiered.offline.committed import read_decided_batches
from tiered.records.model import CONTROL

EXPIRED = "expired before it was loaded"
EMPTY = "no record in the log has this offset"
COMPACTED = "removed by compaction"
CONTROL_RECORD = "control record, the end of a transaction"
ABORTED = "aborted transaction"
UNDECIDED = "not decided yet: the end of a transaction is not in the bucket"
PRESENT = "the log has this record"
"""No reason for a gap: the table lacks a record."""


class Gap(NamedTuple):
    """Offsets `[start, end)` without a row, and why that is correct."""

    partition: int
    start: int
    end: int
    why: str


def explain_gap(partition: int, start: int, end: int, log_start: int) -> Sequence[Gap]:
    """Splits a hole in the table at the log start. Below it records expired first; above it the log has no record."""
    expired, empty = (start, min(end, log_start)), (max(start, log_start), end)
    return [Gap(partition, low, high, why) for (low, high), why in ((expired, EXPIRED), (empty, EMPTY)) if low < high]


def undecided_gaps(cold: ColdTopic) -> list[Gap]:
    """Returns the ends of partitions in the bucket that no load passes, because a transaction is open there."""
    return [
        Gap(each.partition, each.readable_end_offset, each.cold_end_offset, UNDECIDED)
        for each in cold.partitions
        if each.readable_end_offset < each.cold_end_offset
    ]


def explain_from_log(store: str, cold: ColdTopic, gaps: Sequence[Gap], limit: int) -> list[Gap]:
    """Returns the gaps with the reasons that the log gives, split where the reason changes. At most `limit`.

    A part with the reason `PRESENT` is no gap: the log has a committed record there. Raises `Unavailable` and
    `Corrupt`.
    """

    async def explain() -> list[Gap]:
        found: list[Gap] = []
        async with open_bucket(store) as bucket:
            for gap in gaps:
                parts = _read_reasons(bucket, cold, gap)
                async with aclosing(parts):
                    async for part in parts:
                        _append_joined(found, part)
                        if len(found) > limit:
                            return found[:limit]
        return found

    return asyncio.run(explain())


async def _read_reasons(bucket: Bucket, cold: ColdTopic, gap: Gap) -> AsyncGenerator[Gap]:
    """Yields the parts of a gap, a batch of the log each, and the offsets between batches.

    Others may have inserted rows into the table: of partitions that the topic does not have, and beyond its end.
    """
    known = 0 <= gap.partition < len(cold.partitions)
    end = min(gap.end, cold.partitions[gap.partition].readable_end_offset) if known else gap.start
    if gap.why != EMPTY or end <= gap.start:
        yield gap
        return
    offset, partition_id = gap.start, PartitionId(cold.topic_id, gap.partition)
    cleaned = cleaned_ranges(cold).get(gap.partition, [])
    pieces = read_decided_batches(bucket, partition_id, gap.start, end, manifest=_manifest(cold, gap.partition))
    async with aclosing(pieces):
        async for piece, committed in pieces:
            kept = {batch.base_offset for batch in committed}
            for batch in piece.batches:
                low, high = max(batch.base_offset, offset), min(batch.last_offset + 1, end)
                if low >= high:
                    continue
                for absent in _explain_absent(gap.partition, offset, low, cleaned):
                    yield absent
                is_dense = batch.count == batch.last_offset - batch.base_offset + 1
                if batch.attributes & CONTROL:
                    why = CONTROL_RECORD
                elif batch.base_offset not in kept:
                    why = ABORTED
                elif is_dense:
                    why = PRESENT
                else:
                    why = COMPACTED if piece.entry.is_cleaned else EMPTY
                yield Gap(gap.partition, low, high, why)
                offset = high
    for absent in _explain_absent(gap.partition, offset, gap.end, cleaned):
        yield absent


def _explain_absent(partition: int, start: int, end: int, cleaned: Sequence[tuple[int, int]]) -> Iterator[Gap]:
    """Yields offsets without a batch in the log, split where a cleaned part of it begins or ends."""
    for low, high in cleaned:
        low, high = max(low, start), min(high, end)
        if low < high:
            if start < low:
                yield Gap(partition, start, low, EMPTY)
            yield Gap(partition, low, high, COMPACTED)
            start = high
    if start < end:
        yield Gap(partition, start, end, EMPTY)


def _manifest(cold: ColdTopic, number: int) -> Manifest:
    """Returns the segments of a partition in the form that the cold reader takes."""
    partition = cold.partitions[number]
    return Manifest(
        topic=cold.name,
        topic_id=cold.topic_id,
        partition=number,
        log_start_offset=partition.log_start_offset,
        cold_end_offset=partition.cold_end_offset,
        nodes=partition.entries,
    )


def _append_joined(found: list[Gap], part: Gap) -> None:
    """Adds a part of a gap. Joins it with the last one if that ends there with the same reason."""
    if found and (found[-1].partition, found[-1].end, found[-1].why) == (part.partition, part.start, part.why):
        part = part._replace(start=found.pop().start)
    found.append(part)

"""Tests of committed batches from the bucket: transactions within a segment, across segments, and undecided ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.spark import filling
from tests.spark.filling import Segment, TransactionalLog
from tiered.cold.manifest import Manifest
from tiered.errors import Corrupt, Refused
from tiered.ids import PartitionId
from tiered.offline.bucket import Bucket, open_bucket
from tiered.offline.committed import FalseTransactionIndex, find_undecided_offset, read_committed_batches
from tiered.producers.aborted_txns import AbortedTxn
from tiered.records.model import CONTROL

TOPIC = filling.topic_id(1)
PID = PartitionId(TOPIC, 0)
ONE, TWO, PLAIN = 11, 12, -1


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/store"
    filling.create_topic(url, "t", TOPIC, 1)
    return url


async def load_manifest(bucket: Bucket) -> Manifest:
    manifest = await bucket.manifests.load(PID)
    assert manifest is not None
    return manifest


def read(store: str, start: int = 0, end: int | None = None, segments: Sequence[int] | None = None) -> list[int]:
    """Returns the offsets of data batches. `segments` are the positions of those that the manifest names."""

    async def run() -> list[int]:
        async with open_bucket(store) as bucket:
            manifest = await load_manifest(bucket)
            stop = manifest.cold_end_offset if end is None else end
            if segments is not None:
                entries = tuple(manifest.entries[at] for at in segments)
                manifest = Manifest("t", TOPIC, 0, 1, entries[0].base_offset, entries[-1].next_offset, entries)
            return [
                offset
                async for piece in read_committed_batches(bucket, PID, start, stop, manifest=manifest)
                for batch in piece.batches
                if not batch.attributes & CONTROL
                for offset in range(batch.base_offset, batch.last_offset + 1)
            ]

    return asyncio.run(run())


def undecided(store: str) -> int | None:
    async def run() -> int | None:
        async with open_bucket(store) as bucket:
            return await find_undecided_offset(bucket, await load_manifest(bucket))

    return asyncio.run(run())


def test_records_of_aborted_transactions_are_left_out(store: str) -> None:
    log = TransactionalLog()
    log.write(ONE, 3)
    kept = log.write(TWO, 2)
    log.end(ONE, commit=False)
    log.end(TWO, commit=True)
    kept += log.write(PLAIN, 2, transactional=False)
    log.write(ONE, 1)
    log.end(ONE, commit=False)
    filling.upload(store, "t", PID, [log.roll()])
    assert read(store) == kept
    assert undecided(store) is None


def three_segments(commit: bool) -> tuple[list[Segment], list[int]]:
    """Returns a transaction that begins in the first segment and ends in the last, and the offsets of the others."""
    log = TransactionalLog()
    others = log.write(TWO, 1)
    log.end(TWO, commit=True)
    log.write(ONE, 2)
    first = log.roll()
    others += log.write(TWO, 1)
    log.write(ONE, 2)
    log.end(TWO, commit=True)
    second = log.roll()
    others += log.write(TWO, 1)
    log.end(ONE, commit=commit)
    log.end(TWO, commit=True)
    others += log.write(PLAIN, 1, transactional=False)
    return [first, second, log.roll()], others


def test_transaction_that_ends_in_a_later_segment_is_found(store: str) -> None:
    segments, others = three_segments(commit=False)
    filling.upload(store, "t", PID, segments)
    assert read(store) == others
    assert read(store, 3) == [offset for offset in others if offset >= 3]
    assert read(store, 0, 4, [0]) == [0]


def test_committed_transaction_across_segments_is_whole(store: str) -> None:
    segments, others = three_segments(commit=True)
    filling.upload(store, "t", PID, segments)
    assert read(store) == sorted([*others, 2, 3, 5, 6])


def test_transaction_without_its_end_in_the_bucket_is_not_read(store: str) -> None:
    segments, _ = three_segments(commit=False)
    filling.upload(store, "t", PID, segments[:2])
    assert undecided(store) == 2
    assert read(store, 0, 2) == [0]
    with pytest.raises(Refused, match="open from offset 2 of t-0"):
        read(store)


def test_topic_without_transactions_costs_no_index(store: str) -> None:
    rows = [(filling.BASE_MS, b"k", b"v", ())] * 20
    (segment,) = filling.segments(rows)
    filling.upload(store, "t", PID, [segment._replace(producers=b"broken")])
    assert read(store) == [*range(20)]


@pytest.mark.parametrize("commit", [True, False])
def test_index_that_differs_from_the_marker_is_damage(store: str, commit: bool) -> None:
    segments, _ = three_segments(commit=commit)
    false_index = AbortedTxn(ONE, 2, 9, 10).encode() if commit else b""
    filling.upload(store, "t", PID, [*segments[:2], segments[2]._replace(txn_index=false_index)])
    with pytest.raises(FalseTransactionIndex, match="by its marker at offset 9"):
        read(store)


def test_transactions_without_a_producer_snapshot_are_damage(store: str) -> None:
    segments, _ = three_segments(commit=True)
    filling.upload(store, "t", PID, [segment._replace(producers=b"") for segment in segments])
    with pytest.raises(Corrupt, match="no producer snapshot"):
        read(store)

"""Tests of the comparison of copies, at brokers and in the bucket: each difference is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.audit import AuditFindings, ProducerEpoch
from tests.chaos.copies import (
    BucketPartition,
    StoredBatch,
    compare_brokers,
    compare_cold,
    producer_lookup,
    read_log_batches,
)
from tiered.errors import Corrupt
from tiered.records import batch
from tiered.records.model import Codec

PLACE = ("t", 0)
COPY = [StoredBatch(0, 2, 1, 77), StoredBatch(2, 4, 1, 78), StoredBatch(4, 5, 2, 79)]
COLD = BucketPartition(0, 4, 1, COPY[:2])
BOUNDS = {PLACE: (0, 5)}


def test_copies_are_compared_from_their_common_start() -> None:
    found = AuditFindings()
    assert compare_brokers({1: {PLACE: COPY}, 2: {PLACE: COPY[1:]}, 3: {PLACE: COPY[1:]}}, found) == 2
    assert found.is_ok


@pytest.mark.parametrize(
    "other",
    [COPY[:2], [COPY[0], StoredBatch(2, 4, 1, 99), COPY[2]], [COPY[0], StoredBatch(2, 4, 2, 78), COPY[2]], []],
    ids=["shorter", "other bytes", "other epoch", "nothing"],
)
def test_different_copies_are_named(other: list[StoredBatch]) -> None:
    found = AuditFindings()
    compare_brokers({1: {PLACE: COPY}, 2: {PLACE: COPY}, 3: {PLACE: other}}, found)
    assert len(found.differing) == 1 and not found.is_ok


def test_copy_is_read_from_its_segments(tmp_path: Path) -> None:
    folder = tmp_path / "log" / "my-topic-3"
    folder.mkdir(parents=True)
    for offset in (0, 2):
        data = bytearray(batch.encode_batch([(1000, b"k", b"v", ()), (1000, b"k", b"w", ())]))
        batch.stamp(data, 0, offset, 5)
        (folder / f"{offset:020d}.log").write_bytes(data)
    found = read_log_batches(tmp_path)
    assert [(each.first, each.end, each.epoch) for each in found[("my-topic", 3)]] == [(0, 2, 5), (2, 4, 5)]


@pytest.mark.parametrize("append_time", [False, True])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_header_without_the_latest_timestamp_of_its_records_is_named(
    tmp_path: Path, codec: Codec, append_time: bool
) -> None:
    folder = tmp_path / "log" / "t-0"
    folder.mkdir(parents=True)
    rows = [(1000, b"k", b"v", ()), (3000, b"k", b"w", ()), (2000, b"k", b"x", ())]
    data = bytearray(batch.encode_batch(rows, codec=codec, log_append_time=append_time))
    (folder / f"{0:020d}.log").write_bytes(data)
    assert len(read_log_batches(tmp_path)[PLACE]) == 1
    for stated in (2000, 3001):
        batch.set_max_timestamp(data, 0, stated)
        (folder / f"{0:020d}.log").write_bytes(data)
        if append_time:  # the header alone has the time then
            assert len(read_log_batches(tmp_path)[PLACE]) == 1
        else:
            with pytest.raises(Corrupt, match=f"latest timestamp {stated}, but the records have 3000"):
                read_log_batches(tmp_path)


def test_copy_with_a_damaged_batch_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "log" / "t-0"
    folder.mkdir(parents=True)
    data = bytearray(batch.encode_batch([(1000, b"k", b"value", ())]))
    data[-3] ^= 1
    (folder / f"{0:020d}.log").write_bytes(data)
    with pytest.raises(Corrupt, match="crc mismatch"):
        read_log_batches(tmp_path)


def test_bucket_that_equals_the_copies_has_no_finding() -> None:
    found = AuditFindings()
    assert compare_cold({1: {PLACE: COPY}, 2: {PLACE: COPY[1:]}}, {PLACE: COLD}, BOUNDS, found) == 3
    assert found.is_ok, found


@pytest.mark.parametrize(
    ("part", "bounds"),
    [
        (COLD._replace(start=2, batches=COPY[1:2]), (0, 5)),
        (COLD, (0, 3)),
        (COLD._replace(batches=COPY[1:2]), (0, 5)),
        (COLD._replace(batches=COPY[:1]), (0, 5)),
        (COLD._replace(epoch=0), (0, 5)),
        (COLD._replace(batches=[COPY[0], StoredBatch(2, 4, 1, 99)]), (0, 5)),
        (COLD._replace(batches=[StoredBatch(0, 1, 1, 77), StoredBatch(1, 4, 1, 78)]), (0, 5)),
    ],
    ids=["starts later", "ends later", "hole", "short", "old epoch", "other bytes", "other batches"],
)
def test_bucket_that_differs_is_named(part: BucketPartition, bounds: tuple[int, int]) -> None:
    found = AuditFindings()
    compare_cold({1: {PLACE: COPY}}, {PLACE: part}, {PLACE: bounds}, found)
    assert found.differing and not found.is_ok


def test_records_without_any_copy_are_named() -> None:
    found = AuditFindings()
    compare_cold({1: {PLACE: COPY[2:]}}, {PLACE: BucketPartition(0, 2, 1, COPY[:1])}, BOUNDS, found)
    assert len(found.differing) == 1
    compare_cold({1: {PLACE: COPY[2:]}}, {}, {PLACE: (4, 5)}, found)
    assert len(found.differing) == 2


def test_producer_of_a_record_is_found_in_any_copy() -> None:
    mine, yours = ProducerEpoch(7, 0), ProducerEpoch(7, 1)
    sender = producer_lookup([{PLACE: [StoredBatch(0, 2, 1, 77, mine)]}, {PLACE: [StoredBatch(4, 6, 1, 78, yours)]}])
    assert [sender(PLACE, offset) for offset in (0, 1, 2, 4, 5, 6)] == [mine, mine, None, yours, yours, None]
    assert sender(("t", 1), 0) is None

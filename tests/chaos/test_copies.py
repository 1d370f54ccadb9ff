"""Copies of a partition, at brokers and in the bucket: what differs is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.audit import Findings, Sender
from tests.chaos.copies import Batch, Cold, compare, compare_cold, copies, senders
from tiered.records import batch

PLACE = ("t", 0)
COPY = [Batch(0, 2, 1, 77), Batch(2, 4, 1, 78), Batch(4, 5, 2, 79)]
COLD = Cold(0, 4, 1, COPY[:2])
BOUNDS = {PLACE: (0, 5)}


def test_copies_are_equal_from_where_all_have_them() -> None:
    found = Findings()
    assert compare({1: {PLACE: COPY}, 2: {PLACE: COPY[1:]}, 3: {PLACE: COPY[1:]}}, found) == 2
    assert found.well


@pytest.mark.parametrize(
    "other",
    [COPY[:2], [COPY[0], Batch(2, 4, 1, 99), COPY[2]], [COPY[0], Batch(2, 4, 2, 78), COPY[2]], []],
    ids=["shorter", "other bytes", "other epoch", "nothing"],
)
def test_copies_that_differ_are_named(other: list[Batch]) -> None:
    found = Findings()
    compare({1: {PLACE: COPY}, 2: {PLACE: COPY}, 3: {PLACE: other}}, found)
    assert len(found.unequal) == 1 and not found.well


def test_a_copy_is_read_from_its_segments(tmp_path: Path) -> None:
    folder = tmp_path / "log" / "my-topic-3"
    folder.mkdir(parents=True)
    for offset in (0, 2):
        data = bytearray(batch.encode_batch([(1000, b"k", b"v", ()), (1000, b"k", b"w", ())]))
        batch.stamp(data, 0, offset, 5)
        (folder / f"{offset:020d}.log").write_bytes(data)
    found = copies(tmp_path)
    assert [(each.first, each.end, each.epoch) for each in found[("my-topic", 3)]] == [(0, 2, 5), (2, 4, 5)]


def test_the_bucket_has_what_the_copies_have() -> None:
    found = Findings()
    assert compare_cold({1: {PLACE: COPY}, 2: {PLACE: COPY[1:]}}, {PLACE: COLD}, BOUNDS, found) == 3
    assert found.well, found


@pytest.mark.parametrize(
    ("part", "bounds"),
    [
        (COLD._replace(start=2, batches=COPY[1:2]), (0, 5)),
        (COLD, (0, 3)),
        (COLD._replace(batches=COPY[1:2]), (0, 5)),
        (COLD._replace(batches=COPY[:1]), (0, 5)),
        (COLD._replace(epoch=0), (0, 5)),
        (COLD._replace(batches=[COPY[0], Batch(2, 4, 1, 99)]), (0, 5)),
        (COLD._replace(batches=[Batch(0, 1, 1, 77), Batch(1, 4, 1, 78)]), (0, 5)),
    ],
    ids=["starts later", "ends later", "hole", "short", "old epoch", "other bytes", "other batches"],
)
def test_a_bucket_that_differs_is_named(part: Cold, bounds: tuple[int, int]) -> None:
    found = Findings()
    compare_cold({1: {PLACE: COPY}}, {PLACE: part}, {PLACE: bounds}, found)
    assert found.unequal and not found.well


def test_what_no_broker_and_no_bucket_has_is_named() -> None:
    found = Findings()
    compare_cold({1: {PLACE: COPY[2:]}}, {PLACE: Cold(0, 2, 1, COPY[:1])}, BOUNDS, found)
    assert len(found.unequal) == 1
    compare_cold({1: {PLACE: COPY[2:]}}, {}, {PLACE: (4, 5)}, found)
    assert len(found.unequal) == 2


def test_who_sent_a_record_is_told_by_any_copy_that_has_it() -> None:
    mine, yours = Sender(7, 0), Sender(7, 1)
    sender = senders([{PLACE: [Batch(0, 2, 1, 77, mine)]}, {PLACE: [Batch(4, 6, 1, 78, yours)]}])
    assert [sender(PLACE, offset) for offset in (0, 1, 2, 4, 5, 6)] == [mine, mine, None, yours, yours, None]
    assert sender(("t", 1), 0) is None

"""What the judge of a run finds: each finding is shown once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.audit import Batch, Findings, compare, copies, judge
from tests.chaos.run import longest
from tiered.records import batch

PLACE = ("t", 0)
LOG = [(0, b"a.0.0 x"), (1, b"b.0.0 x"), (2, b"a.0.1 x"), (3, b"b.0.1 x")]
ACKED = {"a": {PLACE: [(0, 0), (1, 2)]}, "b": {PLACE: [(0, -1), (1, 3)]}}
COPY = [Batch(0, 2, 1, 77), Batch(2, 4, 1, 78), Batch(4, 5, 2, 79)]


def test_what_is_there_once_and_in_order_is_well() -> None:
    found = judge(ACKED, {PLACE: LOG})
    assert found.well, found


def test_what_is_missing_is_lost() -> None:
    assert judge(ACKED, {PLACE: LOG[:3]}).lost == [f"{PLACE}: b 1, acknowledged at 3"]


def test_an_offset_that_was_said_holds() -> None:
    moved = [*LOG[:3], (4, b"b.0.1 x")]
    assert judge(ACKED, {PLACE: moved}).lost == [f"{PLACE}: b 1, acknowledged at 3, is at 4"]


def test_a_record_of_another_partition_does_not_count() -> None:
    found = judge({"a": {("t", 1): [(0, 0)]}}, {PLACE: [(0, b"a.0.0 x")], ("t", 1): []})
    assert len(found.lost) == 1


def test_a_record_that_is_there_twice_is_a_duplicate_also_in_another_partition() -> None:
    found = judge(ACKED, {PLACE: [*LOG, (4, b"a.0.1 x")], ("t", 1): [(9, b"b.0.0 x")]})
    assert len(found.duplicates) == 2 and not found.lost


def test_a_record_behind_a_later_one_is_out_of_order() -> None:
    found = judge({}, {PLACE: [(0, b"7.2"), (1, b"8.0"), (2, b"7.1"), (3, b"7.3")]})
    assert found.disorder == [f"{PLACE}: 7.1 at 2 after 2"]


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
        data = bytearray(batch.encode([(1000, b"k", b"v", ()), (1000, b"k", b"w", ())]))
        batch.stamp(data, 0, offset, 5)
        (folder / f"{offset:020d}.log").write_bytes(data)
    found = copies(tmp_path)
    assert [(each.first, each.end, each.epoch) for each in found[("my-topic", 3)]] == [(0, 2, 5), (2, 4, 5)]


def test_the_longest_time_without_an_ack_counts_what_reaches_into_the_fault() -> None:
    assert longest([1.0, 2.0, 9.0, 9.5], began=4.0, ended=10.0) == 7.0
    assert longest([1.0, 2.0], began=4.0, ended=10.0) == 8.0
    assert longest([5.0, 6.0, 30.0], began=4.0, ended=7.0) == 1.0

"""Tests of sums by range: they do not depend on the order of rows, and show every kind of difference."""

from __future__ import annotations

import numpy as np
import pytest

from pyspark_tiered.proof import sums
from pyspark_tiered.proof.sums import (
    OffsetRange,
    PartSums,
    RowSummer,
    differing_ranges,
    find_holes,
    join_runs,
    range_bits,
)

BOUNDS = {0: (0, 10_000), 1: (100, 20_000)}


def hashes_of(partitions: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Stands for the hash of content that follows from the place."""
    mixed = partitions.astype(np.uint64) * np.uint64(11400714819323198485) + offsets.astype(np.uint64)
    return np.stack([mixed * np.uint64(0x9E3779B97F4A7C15), mixed * np.uint64(0xC2B2AE3D27D4EB4F)], axis=1)


def sums_of(rows: list[tuple[int, int]], batch: int = 1000, erased: dict[int, list[tuple[int, int]]] | None = None,
            outside: int = 0) -> PartSums:  # fmt: skip
    summer = RowSummer(BOUNDS, 12, erased or {})
    for first in range(0, len(rows), batch):
        partitions, offsets = (np.array(side) for side in zip(*rows[first : first + batch], strict=True))
        numbers, places = partitions.astype(np.int32), offsets.astype(np.int64)
        summer.add(numbers, places, hashes_of(numbers, places), outside)
    return summer.found


ROWS = [(0, offset) for offset in range(10_000)] + [(1, offset) for offset in range(100, 9_000)]


def test_sums_are_the_same_in_any_order_and_in_any_batches() -> None:
    shuffled = list(ROWS)
    np.random.default_rng(5).shuffle(shuffled)
    whole, mixed = sums_of(ROWS), sums_of([(int(a), int(b)) for a, b in shuffled], batch=777)
    assert whole.sums == mixed.sums and whole.rows == len(ROWS)
    parts = PartSums()
    for first in range(0, len(ROWS), 5000):
        parts.merge(sums_of(ROWS[first : first + 5000]))
    assert parts.sums == whole.sums
    assert (
        join_runs(parts.runs)
        == join_runs(whole.runs)
        == ([OffsetRange(0, 0, 10_000), OffsetRange(1, 100, 9_000)], False)
    )


@pytest.mark.parametrize(
    ("rows", "ranges"),
    [
        (ROWS[:5000] + ROWS[5001:], [OffsetRange(0, 4096, 8192)]),
        ([*ROWS, (0, 17)], [OffsetRange(0, 0, 4096)]),
        (ROWS[:4095] + ROWS[4097:], [OffsetRange(0, 0, 8192)]),
        ([row for row in ROWS if row != (0, 17)] + [(0, 18)], [OffsetRange(0, 0, 4096)]),
        (ROWS[:10_000], [OffsetRange(1, 0, 12_288)]),
    ],
    ids=["missing", "doubled", "two ranges", "one for another", "a whole partition"],
)
def test_difference_is_shown_in_its_ranges(rows: list[tuple[int, int]], ranges: list[OffsetRange]) -> None:
    assert differing_ranges(sums_of(ROWS), sums_of(rows), 12) == ranges


def test_rows_without_a_place_in_the_log_are_counted_and_not_summed() -> None:
    foreign = [(7, 1), (0, 10_000), (0, 2**62), (1, 99), (1, 20_000)]
    found = sums_of(ROWS + foreign, batch=100_000, outside=2)
    assert (found.outside, found.expired) == (4 + 2, 1)
    assert found.sums == sums_of(ROWS).sums


def test_offset_that_is_twice_in_the_table_shows_in_the_runs() -> None:
    assert join_runs(sums_of([*ROWS, (1, 50), (1, 50)]).runs)[1]
    assert not join_runs(sums_of([*ROWS, (1, 50)]).runs)[1]


def test_erased_rows_are_left_out_of_the_sums_and_counted() -> None:
    erased = {0: [(5, 7), (4000, 5000)], 1: [(0, 200)]}
    kept = [(number, at) for number, at in ROWS if not any(low <= at < high for low, high in erased[number])]
    whole, rest = sums_of(ROWS, erased=erased), sums_of(kept, erased=erased)
    assert differing_ranges(whole, rest, 12) == []
    assert (whole.erased, rest.erased) == (2 + 1000 + 100, 0)
    assert sums_of([*kept, (1, 50), (0, 5)], erased=erased).erased == 2


def test_runs_beyond_the_limit_are_reported_as_not_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "RUNS_MAX", 10)
    assert sums_of([(0, offset) for offset in range(0, 20, 2)]).has_all_runs
    found = sums_of([(0, offset) for offset in range(0, 40, 2)])
    assert not found.has_all_runs and len(found.runs) <= 10


def test_holes_are_the_offsets_below_the_end_that_no_run_holds() -> None:
    runs = [OffsetRange(0, 2, 5), OffsetRange(0, 7, 9), OffsetRange(2, 0, 4)]
    assert find_holes(runs, {0: 10, 1: 3, 2: 4}) == [
        OffsetRange(0, 0, 2), OffsetRange(0, 5, 7), OffsetRange(0, 9, 10), OffsetRange(1, 0, 3),
    ]  # fmt: skip


def test_longer_topic_has_longer_ranges_and_no_more_of_them() -> None:
    assert range_bits([(0, 10)]) == 12
    for offsets in (10**9, 10**11):
        bits = range_bits([(0, offsets)])
        assert offsets >> bits <= sums.RANGES_MAX

"""Tests of the bars of tiers: each stretch in its place, one cell at least, and lines of one width."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_api.cli.topic.tier_bars import NAMED_GROUPS, Mark, Tier, draw_bars, draw_cells, draw_marks, find_stretches


def row(
    start: int | None = 0, local: int | None = 0, tiered: int | None = None, end: int | None = 100, **more: Any
) -> dict[str, Any]:
    """Returns a row of describe-storage."""
    offsets = {"log_start_offset": start, "local_start_offset": local, "last_tiered_offset": tiered}
    return {
        "partition": 0,
        **offsets,
        "high_watermark": end,
        "local_bytes": 5_000,
        "remote_bytes": None,
        "groups": {},
        **more,
    }


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (row(0, 40, 59, 100), [(Tier.BUCKET, 0, 40), (Tier.BOTH, 40, 60), (Tier.DISK, 60, 100)]),
        (row(0, 0, None, 100), [(Tier.DISK, 0, 100)]),
        (row(10, 100, 99, 100), [(Tier.BUCKET, 10, 100)]),
        (row(50, 40, 59, 100), [(Tier.BOTH, 50, 60), (Tier.DISK, 60, 100)]),
        (row(7, 7, None, 7), []),
        (row(None, None, None, None), []),
        (row(0, None, None, 9), [(Tier.DISK, 0, 9)]),
    ],
)
def test_stretches_are_where_the_records_are(given: dict[str, Any], found: list[tuple[Tier, int, int]]) -> None:
    assert [tuple(each) for each in find_stretches(given)] == found


def test_cells_have_the_shares_of_the_stretches() -> None:
    assert draw_cells(row(0, 40, 59, 100), 10) == [Tier.BUCKET] * 4 + [Tier.BOTH] * 2 + [Tier.DISK] * 4
    assert draw_cells(row(0, 40, 59, 100), 10, stable=75)[6:] == [Tier.DISK, *[Tier.OPEN] * 3]
    assert draw_cells(row(0, 40, 59, 100), 10, stable=100)[9] is Tier.DISK
    assert draw_cells(row(5, 5, None, 5), 3) == [Tier.EMPTY] * 3


@given(
    st.integers(0, 10**15), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**15), st.integers(3, 120)
)
def test_every_stretch_has_a_cell_in_order(start: int, local: int, tiered: int, more: int, width: int) -> None:
    drawn = row(start, start + local, start + tiered, start + more)
    stretches, cells = find_stretches(drawn), draw_cells(drawn, width)
    assert len(cells) == width and list(dict.fromkeys(cells)) == [each.tier for each in stretches]


def test_lines_of_a_topic_are_aligned_and_fit_the_terminal() -> None:
    rows = [row(0, 40, 59, 100), row(1_000, 1_000, None, 22_000, partition=10, remote_bytes=7_000_000)]
    lines = draw_bars(rows, 80)
    assert [sum(piece.cells for piece in line.pieces) for line in lines] == [26, 26]
    assert [line.sizes for line in lines] == ["5.0 kB on disk", "5.0 kB on disk, 7.0 MB in the bucket"]
    assert max(sum(map(len, (line.partition, line.start, line.end, line.sizes))) for line in lines) + 26 + 4 <= 80


def test_partition_without_a_leader_has_no_offsets() -> None:
    (line,) = draw_bars([row(None, None, None, None)], 80)
    assert (line.start, line.end, line.sizes) == ("-", "-", "its leader does not reply")


def test_narrow_terminal_still_has_bars() -> None:
    (line,) = draw_bars([row(0, 40, 59, 100)], 12)
    assert sum(piece.cells for piece in line.pieces) == 10


def marks(**more: Any) -> str:
    return "".join(each.character for each in draw_marks(row(**more), 10))


def test_marks_below_a_bar_are_what_is_loaded_and_where_groups_are() -> None:
    assert marks() == marks(loaded_offset=0) == marks(loaded_offset=None) == ""
    assert marks(loaded_offset=40) == "════      "
    assert marks(loaded_offset=1) == "═         " and marks(loaded_offset=500) == "═" * 10
    assert marks(groups={"a": 0, "b": 55, "c": 100}) == "▲    ▲   ▲"
    assert marks(start=50, loaded_offset=75, groups={"behind": 3}) == "▲════     "
    assert marks(end=0, groups={"a": 0}) == "" and marks(start=None, groups={"a": 0}) == ""


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 10**12), st.integers(1, 120))
def test_marks_are_as_wide_as_the_bar(loaded: int, position: int, end: int, width: int) -> None:
    drawn = draw_marks(row(end=end, loaded_offset=loaded, groups={"a": position}), width)
    assert len(drawn) == width and drawn.count(Mark.GROUP) == 1


def test_groups_are_named_below_a_bar_the_furthest_behind_first() -> None:
    groups = {"new": 1_000, "old": 5, **{f"more-{number}": 2_000 for number in range(NAMED_GROUPS)}}
    [line] = draw_bars([row(groups=groups)], 80)
    assert line.positions == "old 5, new 1,000, more-0 2,000, 2 more"

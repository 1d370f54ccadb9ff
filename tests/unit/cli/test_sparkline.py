"""Tests of the course of a number as a line, and of its trend in words."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tiered_api.cli.live.sparkline import describe_trend, sparkline


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([], 8, ""),
        ([0, 0], 8, "▁▁"),
        ([0, 50, 100], 8, "▁▅█"),
        ([9, 0, 100], 2, "▁█"),
        ([-5, 10], 8, "▁█"),
        (list(range(8)), 8, "▁▂▃▄▅▆▇█"),
    ],
)
def test_line_has_the_last_values_by_their_share_of_the_largest(values: list[int], width: int, line: str) -> None:
    assert sparkline(values, width) == line


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], ""),
        ([(1.0, 5)], ""),
        ([(1.0, 0), (3.0, 0)], "no lag"),
        ([(1.0, 9), (3.0, 9)], "does not change"),
        ([(1.0, 0), (3.0, 10)], "grows by 5.0 records/s"),
        ([(1.0, 100), (2.0, 1), (3.0, 50)], "falls by 25.0 records/s, gone in 2 s"),
    ],
)
def test_trend_is_the_change_from_the_first_sample(samples: Sequence[tuple[float, int]], words: str) -> None:
    assert describe_trend(samples) == words

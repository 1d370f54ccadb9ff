"""Tests of times and spans of time as people read them."""

from __future__ import annotations

import pytest

from tiered.time_text import format_seconds, format_time


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_durations_have_one_unit(seconds: float, words: str) -> None:
    assert format_seconds(seconds) == words


def test_time_is_cut_to_the_second_in_utc() -> None:
    assert format_time(1_700_000_000_999) == "2023-11-14T22:13:20+00:00"

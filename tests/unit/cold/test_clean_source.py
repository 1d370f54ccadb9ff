"""Tests of the part of a log that a clean may read from the leader's disk."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.cold.rig import entry
from tiered.cold.clean_source import find_raw_part


def test_disk_is_read_from_the_last_cleaned_segment_on() -> None:
    uploaded = [replace(entry(base, base + 10), record_count=10) for base in (0, 10, 20)]
    assert find_raw_part(uploaded, 0) == 0
    assert find_raw_part(uploaded, 10) == 10, "below is clean"
    cleaned = [uploaded[0], replace(uploaded[1], cleaned_ms=5), uploaded[2]]
    assert find_raw_part(cleaned, 0) == 20
    sparse = [*uploaded[:2], replace(uploaded[2], record_count=9)]
    assert find_raw_part(sparse, 0) == 30, "an offset without a record may be one of an earlier clean"

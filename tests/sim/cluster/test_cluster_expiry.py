"""Tests of retention at the front of a log (I22), batch by batch."""

from __future__ import annotations

import pytest

from tests.sim.cluster.expiry import LogBatch, Retention, find_early_expiry

NOW_MS = 1_000_000
LOG = [LogBatch(number, number, 0, 0, size=100, max_timestamp=NOW_MS - 400 + number * 100) for number in range(4)]
"""Batches of 100 bytes each, 400 to 100 ms old."""


@pytest.mark.parametrize(
    ("keeps", "tail_bytes", "expected"),
    [
        (Retention(), 0, [1, 0]),
        (Retention(retention_bytes=200), 0, []),
        (Retention(retention_bytes=201), 0, [1]),
        (Retention(retention_bytes=201), 1, []),
        (Retention(retention_bytes=301), 0, [1, 0]),
        (Retention(retention_ms=299), 0, []),
        (Retention(retention_ms=300), 0, [1]),
        (Retention(retention_ms=400), 0, [1, 0]),
        (Retention(retention_bytes=201, retention_ms=350), 0, [1]),
        (Retention(retention_bytes=201, retention_ms=250), 0, []),
    ],
)
def test_batch_may_expire_by_the_bytes_above_it_or_by_age(
    keeps: Retention, tail_bytes: int, expected: list[int]
) -> None:
    found = find_early_expiry(LOG, 2, keeps, tail_bytes=tail_bytes, now_ms=NOW_MS)
    assert [batch.base for batch in found] == expected


def test_wrong_clock_may_expire_batches_that_are_old_by_it() -> None:
    assert (
        list(find_early_expiry(LOG, 2, Retention(retention_ms=300), tail_bytes=0, now_ms=NOW_MS, max_clock_skew_ms=1))
        == []
    )

"""Tests of the requests of a clean in the bucket, and of the time at which the clean is worth them."""

from __future__ import annotations

from tiered.compaction.cleanable_range import CleanableRange
from tiered.compaction.request_budget import (
    DIRTY_MAX,
    REQUEST_BYTE_MS,
    WAIT_MAX_MS,
    CleanCost,
    PutOff,
    count_cost,
)
from tiered.compaction.rewrites import KeyedSegment

MIB = 1 << 20


def dirty(segments: int, *, size: int = MIB, clean: int = 0) -> CleanableRange:
    return CleanableRange(0, 100, clean, segments * size, 0, segments)


def test_clean_waits_until_its_requests_are_few_beside_those_of_uploads() -> None:
    cost = CleanCost(requests=6, freed_bytes=MIB)
    assert not cost.is_worth(dirty(9), 0, 0.15) and cost.is_worth(dirty(10), 0, 0.15)
    assert cost.is_worth(dirty(3), 0, 0.5) and cost.is_worth(dirty(1), 0, 1000.0)


def test_wait_ends_once_storage_costs_as_much_as_the_requests() -> None:
    cost, needed_ms = CleanCost(requests=5, freed_bytes=10 * MIB), 5 * REQUEST_BYTE_MS // (10 * MIB)
    assert not cost.is_worth(dirty(1), needed_ms - 1, 0.15) and cost.is_worth(dirty(1), needed_ms, 0.15)
    assert needed_ms == 4 * 86_400_000
    small = CleanCost(requests=5, freed_bytes=1)
    assert not small.is_worth(dirty(1), WAIT_MAX_MS, 0.15) and small.is_worth(dirty(1), WAIT_MAX_MS + 1, 0.15)


def test_wait_ends_once_the_log_is_a_multiple_of_its_clean_part() -> None:
    cost = CleanCost(requests=1000, freed_bytes=0)
    assert not cost.is_worth(dirty(DIRTY_MAX * 64), 0, 0.15), "a log of this size is small"
    assert cost.is_worth(dirty(DIRTY_MAX * 64 + 1), 0, 0.15)
    assert not cost.is_worth(dirty(DIRTY_MAX * 64 + 1, clean=65 * MIB), 0, 0.15)


def test_clean_that_was_put_off_looks_again_when_it_may_be_worth_its_cost() -> None:
    put_off = PutOff(CleanCost(requests=60, freed_bytes=200 * MIB), dirty_segments=40)
    assert not put_off.is_over(dirty(50), 0, 0.15) and put_off.is_over(dirty(51), 0, 0.15)
    assert put_off.is_over(dirty(41), 0, 0.5) and put_off.is_over(dirty(41), 60 * REQUEST_BYTE_MS // (200 * MIB), 0.15)


def test_cost_counts_what_the_bucket_is_asked_for() -> None:
    def segment(base: int, size: int, superseded: int, *, is_local: bool = False) -> KeyedSegment:
        return KeyedSegment(base, base + 10, size, 10, superseded, 0, base, is_known=True, is_local=is_local)

    runs = [[segment(0, 100, 5), segment(10, 65, 0)], [segment(20, 10, 10, is_local=True)]]
    assert count_cost(runs, object_bytes=64, get_bytes=64) == (2 + (2 + 2 + 2 * 2) + 2, 50 + 10)
    dead = segment(0, 1000, 10)
    assert count_cost([[dead, segment(10, 10, 0)]], object_bytes=64, get_bytes=64) == (2 + 1 + 2, 1000)
    assert count_cost([[dead, dead]], object_bytes=64, get_bytes=64) == (2 + 1 + 2, 2000), "the last batch is read"
    assert count_cost([], object_bytes=64, get_bytes=64) == (2, 0), "the manifest, and a deletion"

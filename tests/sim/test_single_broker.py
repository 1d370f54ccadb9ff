"""Hundreds of lives of one broker (`make sim SEEDS=1000` runs as many as you like)."""

from __future__ import annotations

import concurrent.futures
import os

import pytest

from tests.sim.__main__ import outcome
from tests.sim.single import run

SEEDS = 200


@pytest.mark.slow
def test_no_seed_breaks_a_promise() -> None:
    totals: dict[str, int] = {}
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        for seed, story, counts in pool.map(outcome, range(SEEDS), chunksize=5):
            assert not story, f"seed {seed}\n{story}"
            for name, count in counts.items():
                totals[name] = totals.get(name, 0) + count
    for name in ("acked", "cold_read", "crashes", "duplicates"):
        assert totals[name] > 0, f"the seeds never got to {name}: they prove less than they seem to"


def test_a_seed_is_one_story() -> None:
    """The same seed takes the same steps in the same order, in whatever process."""
    first, second = run(3), run(3)
    assert first.trace == second.trace
    assert first.counts == second.counts
    assert run(4).trace != first.trace

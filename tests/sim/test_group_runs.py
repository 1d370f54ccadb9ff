"""Many lives of one broker that coordinates groups."""

from __future__ import annotations

import concurrent.futures
import os
from collections import Counter

import pytest

from tests.sim.group_run import run

SEEDS = 60
REACHED = ("acked", "images", "kill", "power", "disk", "stop", "stop_and_disk", "full", "outage")


def outcome(seed: int) -> Counter[str]:
    return run(seed).counts


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_seed_loses_a_commit() -> None:
    totals: Counter[str] = Counter()
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        for counts in pool.map(outcome, range(SEEDS), chunksize=5):
            totals.update(counts)
    for name in REACHED:
        assert totals[name] > 0, f"the seeds never got to {name}: they prove less than they seem to"


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (35, "a log that was cut at a newer image is loaded from that one, though older images could not be deleted"),
        (31, "the same after a start that failed"),
        (15, "an image that lands after its leader is gone brings back what was acknowledged, and no more"),
        (289, "an image that is read wrong on its way is read again, before the one before it is taken for it"),
    ],
)
def test_seeds_that_once_failed(seed: int, what: str) -> None:
    assert run(seed).counts["acked"] > 0, what

"""Many simulated runs at once, each in a new process: a forked process would inherit the state of earlier tests."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.sim.__main__ import run_seed


def run_seeds(world: str, seeds: int, expected_counts: Sequence[str]) -> None:
    """Runs the first `seeds` seeds of a world. No run may break a promise. All runs together must reach each of
    `expected_counts`: otherwise they prove less than they seem to."""
    totals: Counter[str] = Counter()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=spawn) as pool:
        for seed, report, counts in pool.map(partial(run_seed, world=world), range(seeds), chunksize=5):
            assert not report, f"seed {seed}\n{report}"
            totals.update(counts)
    assert not [name for name in expected_counts if not totals[name]], "the seeds never got there"

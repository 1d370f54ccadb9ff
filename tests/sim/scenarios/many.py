"""Many runs at once, each process as if it were the first: forked ones would drag along what other tests left."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.sim.__main__ import outcome


def run_all(world: str, seeds: int, reached: Sequence[str]) -> None:
    """Runs the first `seeds` of a world. Each must hold all promises, and all of them together get to each of
    `reached`: else they prove less than they seem to."""
    totals: Counter[str] = Counter()
    anew = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=anew) as pool:
        for seed, story, counts in pool.map(partial(outcome, world=world), range(seeds), chunksize=5):
            assert not story, f"seed {seed}\n{story}"
            totals.update(counts)
    assert not [name for name in reached if not totals[name]], "the seeds never got there"

"""Simulated runs in new processes: a forked process would inherit the state of earlier tests."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.sim.__main__ import run_seed
from tests.sources import ROOT


def run_seeds(shape: str, seeds: int, expected_counts: Sequence[str]) -> None:
    """Runs the first `seeds` seeds in a shape. No run may break a promise. All runs together must reach each of
    `expected_counts`: otherwise they prove less than they seem to."""
    totals: Counter[str] = Counter()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=spawn) as pool:
        for seed, report, counts in pool.map(partial(run_seed, shape=shape), range(seeds), chunksize=5):
            assert not report, f"seed {seed}\n{report}"
            totals.update(counts)
    assert not [name for name in expected_counts if not totals[name]], "the seeds never got there"


def run_elsewhere(module: str, seed: int, hash_seed: int) -> tuple[str, str]:
    """Returns the trace and the counts of a run in a process of its own, as text. `module` has the function `run`."""
    code = f"from {module} import run; done = run({seed}); print(done.trace, dict(done.counts), sep='\\n')"
    env = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    trace, counts = done.stdout.splitlines()
    return trace, counts

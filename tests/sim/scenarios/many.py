"""Simulated runs in new processes: a forked process would inherit the state of earlier tests."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor

from tests.sim.__main__ import run_seed
from tests.sources import ROOT


def run_seeds(seeds: Mapping[str, int]) -> Counter[str]:
    """Runs the first seeds of each shape, as many as it is mapped to. No run may break a promise. Returns the sum of
    the counts of all runs."""
    totals: Counter[str] = Counter()
    shapes, numbers = zip(*((shape, seed) for shape, count in seeds.items() for seed in range(count)), strict=True)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=spawn) as pool:
        runs = zip(shapes, pool.map(run_seed, numbers, shapes, chunksize=2), strict=True)
        for shape, (seed, report, counts) in runs:
            assert not report, f"{shape}, seed {seed}\n{report}"
            totals.update(counts)
    return totals


def run_elsewhere(module: str, seed: int, hash_seed: int) -> tuple[str, str]:
    """Returns the trace and the counts of a run in a process of its own, as text. `module` has the function `run`."""
    code = f"from {module} import run; done = run({seed}); print(done.trace, dict(done.counts), sep='\\n')"
    env = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    trace, counts = done.stdout.splitlines()
    return trace, counts

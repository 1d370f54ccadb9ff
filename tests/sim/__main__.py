"""`python -m tests.sim --seed 42` or `--seeds 1000 [--first N] [--jobs N] [--shape SHAPE]`: runs seeds, each as the
life of a cluster, and names those that fail; with `--until-red` it ends at the first of these. Some seeds draw one
broker, groups that commit offsets, or machines of two processes; the shapes `one-broker`, `groups` and `machines` give
one of these to every seed. `--mutants [NAME ...]` searches for the bugs of `mutants/mutants.py`, and names those that
are not found within their number of seeds. A bug that seeds seldom show has only a directed scenario, which is run
instead."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pytest

from tests.sim.cluster import run as cluster
from tests.sim.cluster.options import ClusterOptions
from tests.sim.cluster.shapes import DRAWN, SHAPES
from tests.sim.mutants.mutants import FIRST_SEEDS, MUTANTS, failure_reason
from tests.sim.mutants.scenarios import SCENARIOS


@contextmanager
def without_logs_and_gc() -> Iterator[None]:
    """Turns logging off: a kept log line keeps its error, and with it the files of its frames. Turns garbage collection
    off: the garbage of a run is collected once, after its end."""
    logging.disable(logging.CRITICAL)
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.collect(0)
        if gc_was_on:
            gc.enable()


def run_seed(
    seed: int, shape: str = DRAWN, mutant: str = "", *, is_compacted: bool = True
) -> tuple[int, str, dict[str, int]]:
    """Returns (seed, "" or the report of its failure, the counts of the run), with the mutant of that name. Without
    `is_compacted` a cluster runs as it did before there were compacted topics and shapes."""
    with without_logs_and_gc():
        try:
            if mutant:
                with MUTANTS[mutant].apply():
                    return seed, "", cluster.run(seed, MUTANTS[mutant].change_options).counts
            if not is_compacted:
                return seed, "", cluster.run(seed, ClusterOptions.without_compaction).counts
            return seed, "", cluster.run(seed, SHAPES[shape]).counts
        except Exception as error:  # noqa: BLE001 whatever it is, it is reported
            return seed, "".join(traceback.format_exception(error)), {}


def _run_mutant(task: tuple[int, str]) -> tuple[int, str]:
    """Returns (seed, finding)."""
    seed, report, _ = run_seed(task[0], mutant=task[1])
    return seed, failure_reason(report)


def _find_first_seed(name: str, jobs: int) -> tuple[int, str] | None:
    """Returns (seed, finding) of the first seed that shows this bug; reports other failures on the way."""
    mutant = MUTANTS[name]
    with multiprocessing.Pool(jobs) as pool:
        for seed, failure in pool.imap(_run_mutant, [(seed, name) for seed in range(mutant.seeds)]):
            if mutant.explains(failure):
                pool.terminate()
                return seed, failure
            if failure:
                print(f"{name}: seed={seed} fails for something else: {failure[:140]}", flush=True)
    return None


def _break_scenario(name: str) -> str:
    """Returns how the scenario of this bug breaks, or "" if it holds with the bug or breaks without it."""
    with without_logs_and_gc():
        try:
            with MUTANTS[name].apply():
                SCENARIOS[name]()
        except (AssertionError, pytest.fail.Exception) as error:
            SCENARIOS[name]()
            return " ".join(str(error).split()) or type(error).__name__
    return ""


def search_mutants(names: Sequence[str], jobs: int) -> int:
    """Searches for mutants, seed after seed; returns 1 if one was not found in time. A run counts only if it breaks a
    rule of the bug, because a run may fail for another reason. A mutant that has only a scenario runs that."""
    missed = 0
    for name in names or MUTANTS:
        began = time.perf_counter()
        if name in FIRST_SEEDS or name not in SCENARIOS:
            found = _find_first_seed(name, jobs)
            result = f"seed={found[0]} {found[1][:140]}" if found else f"NOT FOUND within {MUTANTS[name].seeds} seeds"
        else:
            broken = _break_scenario(name)
            found = (0, broken) if broken else None
            result = f"scenario {broken[:140]}" if broken else "NOT FOUND by its scenario"
        seconds = time.perf_counter() - began
        missed += found is None
        print(f"{name}: {result} ({seconds:.0f} s)", flush=True)
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="this seed alone, with all that it tells")
    parser.add_argument("--seeds", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--shape", choices=SHAPES, default=DRAWN, help="the shape of all runs (default: as seeds draw)")
    parser.add_argument("--until-red", action="store_true", help="ends with the first seed that fails")
    parser.add_argument(
        "--mutants", nargs="*", choices=MUTANTS, metavar="NAME", help="searches for mutants (default: all)"
    )
    args = parser.parse_args()
    if args.mutants is not None:
        return search_mutants(args.mutants, args.jobs)
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.seeds)
    began, failed, totals = time.perf_counter(), list[int](), dict[str, int]()
    with multiprocessing.Pool(min(args.jobs, len(seeds)), maxtasksperchild=500) as pool:
        for seed, report, counts in pool.imap_unordered(partial(run_seed, shape=args.shape), seeds):
            if report:
                failed.append(seed)
                print(report, file=sys.stderr, flush=True)
                if args.until_red:
                    pool.terminate()
                    break
            for name, count in counts.items():
                totals[name] = totals.get(name, 0) + count
    seconds = time.perf_counter() - began
    did = " ".join(f"{name}={count}" for name, count in sorted(totals.items()))
    print(f"runs={len(seeds)} failed={len(failed)} seconds={seconds:.1f} {did}")
    if failed:
        print("failed: " + " ".join(map(str, sorted(failed))))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

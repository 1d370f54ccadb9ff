"""`python -m tests.sim --seed 42` or `--seeds 1000 [--first N] [--jobs N] [--of single|cluster|groups]`: runs seeds,
each as the life of one broker and as that of a cluster, or of one broker that coordinates groups, and names those that
fail; with `--until-red` it ends at the first of these. `--plants [NAME ...]` searches for the bugs of
`cluster/plants.py`, and names those that are not found within their number of seeds."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.sim import group_run, single
from tests.sim.cluster import run as cluster
from tests.sim.mutants.mutants import PLANTS, complaint

WORLDS = ("single", "cluster")
"""Of a search that names none."""
Ran = single.Run | cluster.Run | group_run.GroupRun
RUNS: dict[str, Callable[[int], Ran]] = {"single": single.run, "cluster": cluster.run, "groups": group_run.run}


@contextmanager
def calm() -> Iterator[None]:
    """Nothing is logged: a line that is kept keeps the error in it, and that the files that it met. Garbage is not
    collected: what a run leaves is looked through once, when all of it is gone."""
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


def outcome(seed: int, world: str = "single", plant: str = "") -> tuple[int, str, dict[str, int]]:
    """(seed, "" or the whole story of its failure, what the run did); with the bug of that name planted."""
    with calm():
        try:
            if plant:
                with PLANTS[plant].planted():
                    return seed, "", cluster.run(seed, PLANTS[plant].of).counts
            return seed, "", RUNS[world](seed).counts
        except Exception as error:  # noqa: BLE001 whatever it is, it is reported
            return seed, "".join(traceback.format_exception(error)), {}


def _planted(task: tuple[int, str]) -> tuple[int, str]:
    """(seed, what it found)."""
    seed, story, _ = outcome(task[0], "cluster", task[1])
    return seed, complaint(story)


def _first_shown(name: str, jobs: int) -> tuple[int, str] | None:
    """(seed, what it found) of the first seed that shows this bug; what else fails is named on the way."""
    plant = PLANTS[name]
    with multiprocessing.Pool(jobs) as pool:
        for seed, told in pool.imap(_planted, [(seed, name) for seed in range(plant.seeds)]):
            if plant.shows_in(told):
                pool.terminate()
                return seed, told
            if told:
                print(f"{name}: seed={seed} fails for something else: {told[:140]}", flush=True)
    return None


def search(names: Sequence[str], jobs: int) -> int:
    """Looks for planted bugs, seed after seed; 1 when one was not found in time. Found is what breaks a rule of the
    bug: a run may fail for anything."""
    missed = 0
    for name in names or PLANTS:
        began = time.perf_counter()
        found = _first_shown(name, jobs)
        seconds = time.perf_counter() - began
        missed += found is None
        told = f"seed={found[0]} {found[1][:140]}" if found else f"NOT FOUND within {PLANTS[name].seeds} seeds"
        print(f"{name}: {told} ({seconds:.0f} s)", flush=True)
    return 1 if missed else 0


def _outcome(task: tuple[int, str]) -> tuple[int, str, str, dict[str, int]]:
    seed, story, counts = outcome(*task)
    return seed, task[1], story, counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="this seed alone, with all that it tells")
    parser.add_argument("--seeds", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--of", choices=RUNS, help="one of these worlds (default: single and cluster)")
    parser.add_argument("--until-red", action="store_true", help="ends with the first seed that fails")
    parser.add_argument("--plants", nargs="*", metavar="NAME", help="searches for planted bugs (default: all)")
    args = parser.parse_args()
    if args.plants is not None:
        return search(args.plants, args.jobs)
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.seeds)
    tasks = [(seed, world) for seed in seeds for world in ([args.of] if args.of else WORLDS)]
    began, failed, totals = time.perf_counter(), list[str](), dict[str, int]()
    with multiprocessing.Pool(min(args.jobs, len(tasks)), maxtasksperchild=50) as pool:
        for seed, world, story, counts in pool.imap_unordered(_outcome, tasks):
            if story:
                failed.append(f"{world}:{seed}")
                print(story, file=sys.stderr, flush=True)
                if args.until_red:
                    pool.terminate()
                    break
            for name, count in counts.items():
                totals[name] = totals.get(name, 0) + count
    seconds = time.perf_counter() - began
    did = " ".join(f"{name}={count}" for name, count in sorted(totals.items()))
    print(f"runs={len(tasks)} failed={len(failed)} seconds={seconds:.1f} {did}")
    if failed:
        print("failed: " + " ".join(sorted(failed)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.sim --seed 42` or `--seeds 1000 [--first N] [--jobs N]`: runs seeds and names those that fail."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback

from tests.sim.single import run


def outcome(seed: int) -> tuple[int, str, dict[str, int]]:
    """(seed, "" or the whole story of its failure, what the run did)."""
    try:
        return seed, "", run(seed).counts
    except Exception as error:  # noqa: BLE001 whatever it is, it is reported
        return seed, "".join(traceback.format_exception(error)), {}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="this seed alone, with all that it tells")
    parser.add_argument("--seeds", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    args = parser.parse_args()
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.seeds)
    began, failed, totals = time.perf_counter(), list[int](), dict[str, int]()
    with multiprocessing.Pool(min(args.jobs, len(seeds)), maxtasksperchild=50) as pool:
        for seed, story, counts in pool.imap_unordered(outcome, seeds):
            if story:
                failed.append(seed)
                print(story, file=sys.stderr, flush=True)
            for name, count in counts.items():
                totals[name] = totals.get(name, 0) + count
    seconds = time.perf_counter() - began
    did = " ".join(f"{name}={count}" for name, count in sorted(totals.items()))
    print(f"seeds={len(seeds)} failed={len(failed)} seconds={seconds:.1f} {did}")
    if failed:
        print("failed: " + " ".join(str(seed) for seed in sorted(failed)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

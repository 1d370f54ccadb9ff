"""`python -m tests.mutation [NAME ...] [--area AREA] [--without-units] [--out FILE]`: which tests find which mutants.

Each mutant stands alone in a copy of the tree: unit tests of its area, directed simulations, random seeds, and tests of
whole brokers run until one of them is red. A red one counts when it is green without the mutant, and
red once more where chance may be at fault.
"""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.mutation import results
from tests.mutation.areas import AREAS, SCENARIOS, Area, mutants
from tests.mutation.mutant import Mutant
from tests.mutation.results import Result
from tests.mutation.tree import FailedTest, RunTimeout, SourceTree

STAGES = ("first", *results.STAGES)
"""The stages in order. The tests that a mutant names run first; their findings count for the stage of the test."""
STAGE_SECONDS = 1200.0
"""Seconds that the tests of one stage may take: a test that hangs has its own limit."""


@dataclass(frozen=True)
class RunLimits:
    """The stages that run for each mutant: all up to `until`, and `seeds` of each shape for at most `seconds`."""

    without_units: bool
    until: str
    seeds: int
    seconds: float


def stages(area: Area, mutant: Mutant, limits: RunLimits, tree: SourceTree, failing_anyway: list[str]) -> Iterator[
    tuple[str, Callable[[], FailedTest | None]]
]:  # fmt: skip
    """Yields (stage, what runs it), in order. `failing_anyway` are tests that fail for another reason."""

    def tests(paths: tuple[str, ...]) -> Callable[[], FailedTest | None]:
        return lambda: tree.tests(paths, failing_anyway, STAGE_SECONDS) if paths else None

    def seeds(shape: str) -> Callable[[], FailedTest | None]:
        return lambda: tree.seeds(shape, limits.seeds, limits.seconds)

    if limits.without_units:
        first = tuple(path for path in mutant.first if path.startswith(SCENARIOS))
        yield "scenarios", tests((*first, *area.scenarios))
    else:
        yield "first", tests(mutant.first)
        yield "units", tests(area.units)
        yield "scenarios", tests(area.scenarios)
    for shape in area.shapes:
        yield "seeds", seeds(shape)
    if not limits.without_units:
        yield "whole", tests(area.whole)


def run_mutant(area_name: str, mutant: Mutant, limits: RunLimits, tree: SourceTree) -> Result:
    """Returns the first stage that fails with a mutant and passes without it."""
    began = time.monotonic()
    red_anyway: list[str] = []

    def result(stage: str, by: str = "", how: str = "") -> Result:
        seconds = round(time.monotonic() - began, 1)
        return Result(mutant.name, mutant.digest, area_name, limits.without_units, stage, by, how, seconds)

    for stage, run in stages(AREAS[area_name], mutant, limits, tree, red_anyway):
        while STAGES.index(stage) <= STAGES.index(limits.until):
            try:
                with tree.with_mutant(mutant):
                    red = run()
            except RunTimeout as hung:
                return result(
                    AREAS[area_name].stage_of(mutant.first[0]) if stage == "first" else stage, "hung", str(hung)[:200]
                )
            if red is None:
                break
            if tree.passes(red, STAGE_SECONDS) and (not red.may_be_flaky or _is_red_again(mutant, tree, red)):
                return result(
                    AREAS[area_name].stage_of(red.test_id) if stage == "first" else stage, red.test_id, red.reason
                )
            print(f"{mutant.name}: {red.test_id} does not depend on it: {red.reason}", flush=True)
            if stage == "seeds" or red.test_id in red_anyway:
                break
            red_anyway.append(red.test_id)
    return result(results.SURVIVED)


def _is_red_again(mutant: Mutant, tree: SourceTree, red: FailedTest) -> bool:
    with tree.with_mutant(mutant):
        return not tree.passes(red, STAGE_SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these mutants (default: all)")
    parser.add_argument("--area", choices=AREAS, help="those of one area")
    parser.add_argument("--without-units", action="store_true", help="directed simulations and random seeds alone")
    parser.add_argument("--seeds", type=int, default=300, help="how many of each shape (default 300)")
    parser.add_argument("--seconds", type=float, default=600.0, help="at most, for the seeds of a shape (default 600)")
    parser.add_argument("--until", choices=STAGES, default="whole", help="the last stage (default: whole)")
    parser.add_argument("--out", type=Path, help="lines of JSON: what is there is not run again")
    parser.add_argument("--again", action="store_true", help="those too that survived before")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the tree at the same time (default 2)")
    args = parser.parse_args()
    known, wanted = results.read(args.out) if args.out else {}, mutants()
    if unknown := [name for name in args.names if name not in wanted]:
        parser.error(f"no such mutants: {' '.join(unknown)}")
    wanted = {
        name: each for name, each in wanted.items()
        if name in (args.names or wanted) and args.area in (None, each[0])
    }  # fmt: skip
    todo = results.missing(wanted, known, without_units=args.without_units, again=args.again)
    limits = RunLimits(args.without_units, args.until, args.seeds, args.seconds)
    with tempfile.TemporaryDirectory(prefix="tiered-mutation-") as folder:
        trees: queue.Queue[SourceTree] = queue.Queue(maxsize=args.jobs)
        for number in range(min(args.jobs, len(todo))):
            trees.put(SourceTree(Path(folder) / str(number)))

        def one(task: tuple[str, Mutant]) -> Result:
            tree = trees.get()
            try:
                return run_mutant(*task, limits, tree)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(args.jobs) as pool:
            for running in as_completed([pool.submit(one, task) for task in todo]):
                done = running.result()
                found = f"{done.stage}: {done.by} {done.how}" if done.stage else "SURVIVED"
                print(f"{done.mutant}: {found} ({done.seconds:.0f} s)", flush=True)
                known[done.key] = done
                if args.out:
                    results.append(args.out, done)
    visible = [each for _, each in wanted.values() if each.is_visible(without_units=args.without_units)]
    keys = [(each.name, each.digest, args.without_units) for each in visible]
    found_now = [known[key] for key in keys if key in known]
    print(results.table(wanted, found_now))
    return 1 if any(each.stage == results.SURVIVED for each in found_now) else 0


if __name__ == "__main__":
    sys.exit(main())

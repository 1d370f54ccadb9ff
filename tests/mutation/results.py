"""Results of a run for each mutant: lines of JSON that a later run continues, and a table of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from tests.mutation.mutant import Mutant

STAGES = ("units", "scenarios", "seeds", "whole")
SURVIVED = ""


@dataclass(frozen=True)
class Result:
    """The stage that failed with a mutant (`SURVIVED`: none), the test or seed, and the seconds."""

    mutant: str
    digest: str
    area: str
    without_units: bool
    stage: str
    by: str = ""
    how: str = ""
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, bool]:
        """The identity of a result: a later one replaces an earlier one with the same key."""
        return self.mutant, self.digest, self.without_units


Results = dict[tuple[str, str, bool], Result]


def read(path: Path) -> Results:
    """Returns the results of earlier runs; none without a file. Skips a line that a crash cut in two."""
    found: Results = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.endswith("}"):
            result = Result(**json.loads(line))
            found[result.key] = result
    return found


def append(path: Path, result: Result) -> None:
    """Appends one line."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def missing(
    wanted: Mapping[str, tuple[str, Mutant]], known: Results, *, without_units: bool, again: bool
) -> list[tuple[str, Mutant]]:
    """Returns (area, mutant) of those without a result; with `again` also those that survived. Edits that no test can
    see are not run."""
    found = []
    for area, mutant in wanted.values():
        result = known.get((mutant.name, mutant.digest, without_units))
        if mutant.is_visible(without_units=without_units) and (result is None or (again and result.stage == SURVIVED)):
            found.append((area, mutant))
    return found


def table(wanted: Mapping[str, tuple[str, Mutant]], results: Iterable[Result]) -> str:
    """Returns the counts of each area by stage, the seconds (median, maximum), and the survivors."""
    by_area: dict[str, list[Result]] = {area: [] for area, _ in wanted.values()}
    for result in results:
        if result.area in by_area:
            by_area[result.area].append(result)
    rows: list[tuple[str, ...]] = [("area", "mutants", *STAGES, "survived", "equivalent", "median s", "most s")]
    for area, found in by_area.items():
        seconds = [result.seconds for result in found if result.stage != SURVIVED] or [0.0]
        equivalent = sum(bool(mutant.equivalent) for name, mutant in wanted.values() if name == area)
        counts = [sum(result.stage == stage for result in found) for stage in (*STAGES, SURVIVED)]
        rows.append((area, *map(str, (len(found), *counts, equivalent, round(median(seconds)), round(max(seconds))))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    survivors = [result for found in by_area.values() for result in found if result.stage == SURVIVED]
    lines += [f"survived: {each.mutant} ({each.area}, {each.seconds:.0f} s)" for each in survivors]
    return "\n".join(lines)

"""Tests of the results of mutants: a later run continues from them, and the table counts the findings."""

from __future__ import annotations

from pathlib import Path

from tests.mutation import results
from tests.mutation.mutant import Mutant
from tests.mutation.results import SURVIVED, Result

ONE, TWO, SAME, GUARDED = (
    Mutant("one", "tiered/ids.py", "a", "b", "a promise"),
    Mutant("two", "tiered/ids.py", "a", "c", "a promise"),
    Mutant("same", "tiered/ids.py", "a", "d", "a promise", equivalent="it cannot be seen"),
    Mutant("guarded", "tiered/ids.py", "a", "e", "a promise", guarded="another check refuses it"),
)
WANTED = {each.name: ("hot", each) for each in (ONE, TWO, SAME)}


def make_result(mutant: Mutant, stage: str, *, seconds: float = 4.0) -> Result:
    return Result(mutant.name, mutant.digest, "hot", False, stage, "tests/unit/test_x.py::test_y", "why", seconds)


def names(known: results.Results, *, without_units: bool = False, again: bool = False) -> list[str]:
    todo = results.missing(WANTED, known, without_units=without_units, again=again)
    return [mutant.name for _, mutant in todo]


def test_mutant_with_a_result_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    assert names(results.read(path)) == ["one", "two"], "equivalent ones are not run"
    results.append(path, make_result(ONE, "units"))
    results.append(path, make_result(TWO, SURVIVED))
    assert names(results.read(path)) == []
    assert names(results.read(path), again=True) == ["two"]
    assert names(results.read(path), without_units=True) == ["one", "two"], "that is another question"


def test_later_result_replaces_an_earlier_one_and_half_a_line_none(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    results.append(path, make_result(TWO, SURVIVED))
    results.append(path, make_result(TWO, "seeds"))
    with path.open("a") as file:
        file.write('{"mutant": "one", "digest')
    assert [each.stage for each in results.read(path).values()] == ["seeds"]


def test_guarded_edit_is_run_with_unit_tests_only() -> None:
    wanted = {GUARDED.name: ("hot", GUARDED)}
    assert results.missing(wanted, {}, without_units=False, again=False) == [("hot", GUARDED)]
    assert results.missing(wanted, {}, without_units=True, again=False) == []


def test_changed_edit_is_run_again() -> None:
    earlier = Mutant("one", "tiered/ids.py", "a", "x", "a promise")
    result = make_result(earlier, "units")
    assert names({result.key: result}) == ["one", "two"]


def test_table_counts_by_area_and_names_the_survivors() -> None:
    table = results.table(WANTED, [make_result(ONE, "units"), make_result(TWO, SURVIVED, seconds=90)])
    head, row, survivor = table.splitlines()
    assert head.split() == [
        "area", "mutants", "units", "scenarios", "seeds", "whole", "survived", "equivalent", "median", "s", "most", "s",
    ]  # fmt: skip
    assert row.split() == ["hot", "2", "1", "0", "0", "0", "1", "1", "4", "4"]
    assert survivor == "survived: two (hot, 90 s)"

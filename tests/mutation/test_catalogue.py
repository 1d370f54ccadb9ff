"""Tests that each mutant of the catalogue is still an edit of the present source."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.mutation.areas import AREAS, CATALOGUE, Area
from tests.mutation.mutant import Mutant
from tests.sources import ROOT

MUTANTS = [mutant for area in AREAS.values() for mutant in area.mutants]


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_edits_apply_once_and_change_the_code(file: str) -> None:
    source = (ROOT / file).read_text()
    parsed = ast.dump(ast.parse(source))
    for mutant in MUTANTS:
        if mutant.file == file:
            mutated = ast.parse(mutant.apply_to_source(source))
            assert ast.dump(mutated) != parsed, mutant.name
            compile(mutated, file, "exec")


def test_each_mutant_has_a_unique_name_and_a_promise() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []
    assert [mutant.name for mutant in MUTANTS if not mutant.promise] == []


def test_no_edit_is_duplicated() -> None:
    assert [digest for digest, count in Counter(mutant.digest for mutant in MUTANTS).items() if count > 1] == []


def test_each_file_of_the_catalogue_has_an_area() -> None:
    assert {path.stem for path in CATALOGUE.glob("*.toml")} == AREAS.keys()


@pytest.mark.parametrize("area", AREAS.values(), ids=list(AREAS))
def test_named_tests_exist(area: Area) -> None:
    paths = {*area.units, *area.scenarios, *area.whole, *(path for mutant in area.mutants for path in mutant.first)}
    assert [path for path in sorted(paths) if not (ROOT / path.partition("::")[0]).exists()] == []


def test_first_tests_count_for_their_own_stage() -> None:
    replication, spark = AREAS["replication"], AREAS["spark"]
    assert replication.stage_of("tests/unit/hot/test_log.py::test_x") == "units"
    assert replication.stage_of("tests/sim/scenarios/test_sim_moves.py") == "scenarios"
    assert replication.stage_of("tests/e2e/test_cold.py::test_x") == "whole"
    assert spark.stage_of("tests/spark/test_plans.py::test_x") == "units"
    assert spark.stage_of("tests/spark/test_loads.py") == "whole"


def test_edit_whose_text_is_gone_is_refused() -> None:
    mutant = Mutant("gone", "tiered/ids.py", "x = 1", "x = 2", "anything")
    with pytest.raises(ValueError, match=r"gone: its text stands 0 times in tiered/ids\.py"):
        mutant.apply_to_source("y = 1")
    with pytest.raises(ValueError, match="gone: its text stands 2 times"):
        mutant.apply_to_source("x = 1\nx = 1")

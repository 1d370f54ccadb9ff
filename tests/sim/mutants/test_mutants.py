"""Tests of mutants, each at a seed that shows it: the run fails with the mutant, by its own rule, and passes without
it. Mutants that seeds seldom show have a scenario. (`make sim-mutants` searches for all.)"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from _pytest.mark import ParameterSet

from tests.seeds import chosen
from tests.sim.__main__ import run_seed, without_logs_and_gc
from tests.sim.cluster.observer import BrokenRules
from tests.sim.cluster.options import ClusterOptions
from tests.sim.cluster.run import run
from tests.sim.cluster.world import EVENTS
from tests.sim.mutants.mutants import FIRST_SEEDS, MUTANTS, failure_reason
from tests.sim.mutants.scenarios import SCENARIOS
from tests.sources import ROOT

EVENT = re.compile(r" *\d+\.\d{3} ")
TRIES = 30
"""Number of tries: a change of the code changes every run a little, and one of the tries shows the bug."""


PASSED: set[tuple[int, Callable[[ClusterOptions], ClusterOptions]]] = set()
"""Seeds that passed without a mutant, by what it adjusts: mutants that share both share the run."""


HELD: set[Callable[[], None]] = set()
"""Scenarios that held without a mutant: those that share one share the run."""


CHECKED_APART = {
    "I5": "tests/sim/cluster/test_model_of_copies.py",
    "I8": "tests/sim/cluster/test_model_of_copies.py",
    "I18": "tests/sim/cluster/test_cluster_checkers.py",
}
"""By rule: the tests that show, without a run, that its checker finds what breaks it."""
OFTEN = {
    "given_before_free", "sessions_end_with_coordinators", "equal_epochs", "below_cold_end", "r3_moves_below",
    "chain_trimmed_early", "groups_lost", "nobody_joins",
}  # fmt: skip
"""Mutants whose seeds `make test` runs: those that a run finds soonest, and those that alone show that their rule is
checked."""
SELDOM = {"pending_not_in_image", "timeouts_forgotten"}
"""Mutants whose scenarios take longest."""


def seeds_by_rule() -> list[ParameterSet]:
    """Returns all mutants with a seed. `make test` runs a few: that the path from a mutant to its report works. All
    others are the catalogue of `make sim-mutants`, which `make test-all` runs."""
    return chosen(FIRST_SEEDS, OFTEN)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", seeds_by_rule())
def test_seed_fails_with_its_mutant_and_passes_without(name: str) -> None:
    first = FIRST_SEEDS[name]
    for seed in range(first, first + TRIES):
        report = run_seed(seed, mutant=name)[1]
        if report:
            assert MUTANTS[name].explains(failure_reason(report)), failure_reason(report)
            told = [line for line in report.splitlines() if EVENT.match(line)]
            assert 0 < len(told) <= EVENTS, "the last events"
            assert f"\n  seed={seed}\n" in report, "the options"
            assert f"again with: make sim SEED={seed}" in report
            if (plain := (seed, MUTANTS[name].adjust)) not in PASSED:
                with without_logs_and_gc():
                    run(seed, MUTANTS[name].change_options)
                PASSED.add(plain)
            return
    raise AssertionError(f"{name} is not found from seed {first} on")


@pytest.mark.parametrize("name", chosen(sorted(SCENARIOS), SCENARIOS.keys() - SELDOM))
def test_scenario_breaks_with_its_mutant_and_holds_without(name: str) -> None:
    scenario = SCENARIOS[name]
    if scenario not in HELD:
        scenario()
        HELD.add(scenario)
    with MUTANTS[name].apply(), pytest.raises((AssertionError, pytest.fail.Exception)) as broken:
        scenario()
    if isinstance(broken.value, BrokenRules):
        assert all(MUTANTS[name].explains(rule) for rule in broken.value.rules[:1]), broken.value


def test_rule_whose_checker_is_tested_apart_is_named_there() -> None:
    assert [rule for rule, file in CHECKED_APART.items() if f'"{rule}"' not in (ROOT / file).read_text()] == []


def test_every_mutant_has_a_seed_or_a_scenario() -> None:
    assert FIRST_SEEDS.keys() | SCENARIOS.keys() == MUTANTS.keys()


def test_only_its_own_rules_show_a_mutant() -> None:
    report = "Traceback (most recent call last):\n  1.0 b1: I4: no\na.Broken: I10: b1 lacks some; I4: t\n  seed=1\n"
    assert failure_reason(report) == "I10: b1 lacks some; I4: t" and failure_reason("") == ""
    mutant = MUTANTS["above_high_watermark"]
    assert mutant.rules == ("I4",) and mutant.explains("I4: t0-0")
    assert not replace(mutant, rules=("I3",)).explains("I31: t0-0"), "another rule, whose number begins alike"
    assert not mutant.explains(failure_reason(report)) and not mutant.explains("")
    late = failure_reason(
        "AssertionError: liveness: not within 15.0 s: I30: brokers come to rest once nobody asks them\nslot=1"
    )
    assert MUTANTS["files_left"].explains(late) and not MUTANTS["nobody_joins"].explains(late)


def test_mutant_is_removed_at_the_end() -> None:
    for mutant in MUTANTS.values():
        before = [owner.__dict__[attribute] for owner, attribute, _ in mutant.patches]
        with mutant.apply():
            assert all(
                owner.__dict__[attribute] is not original
                for (owner, attribute, _), original in zip(mutant.patches, before, strict=True)
            ), mutant.name
        assert [owner.__dict__[attribute] for owner, attribute, _ in mutant.patches] == before

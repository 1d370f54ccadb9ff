"""Planted bugs, each at a seed that shows it: red with the bug and by a rule of its own, green without it. Those that
seeds seldom showed have a story. (`make sim-plants` searches for all.)"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.sim.__main__ import calm, outcome
from tests.sim.cluster.run import run
from tests.sim.cluster.world import EVENTS
from tests.sim.mutants.mutants import PLANTS, REPLAYED, complaint
from tests.sim.mutants.scenarios import STORIES

EVENT = re.compile(r" *\d+\.\d{3} ")
TRIES = 30
"""A change of the code moves every story a little: one of these shows the bug."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(REPLAYED))
def test_a_planted_bug_is_found(name: str) -> None:
    first = REPLAYED[name]
    for seed in range(first, first + TRIES):
        story = outcome(seed, "cluster", name)[1]
        if story:
            assert PLANTS[name].shows_in(complaint(story)), complaint(story)
            told = [line for line in story.splitlines() if EVENT.match(line)]
            assert 0 < len(told) <= EVENTS, "the last events"
            assert f"\n  seed={seed}\n" in story, "the options"
            assert f"again with: make sim OF=cluster SEED={seed}" in story
            with calm():
                run(seed, PLANTS[name].of)
            return
    raise AssertionError(f"{name} is not found from seed {first} on")


@pytest.mark.parametrize("name", sorted(STORIES))
def test_a_planted_bug_breaks_its_story(name: str) -> None:
    STORIES[name]()
    with PLANTS[name].planted(), pytest.raises((AssertionError, pytest.fail.Exception)):
        STORIES[name]()
    STORIES[name]()


def test_every_planted_bug_is_shown_here() -> None:
    assert REPLAYED.keys() == PLANTS.keys() >= STORIES.keys()


def test_a_plant_is_shown_by_its_own_rules_alone() -> None:
    story = "Traceback (most recent call last):\n  1.0 b1: I4: no\na.Broken: I10: b1 lacks some; I4: t\n  seed=1\n"
    assert complaint(story) == "I10: b1 lacks some; I4: t" and complaint("") == ""
    plant = PLANTS["above_high_watermark"]
    assert plant.rules == ("I4",) and plant.shows_in("I4: t0-0")
    assert not replace(plant, rules=("I3",)).shows_in("I31: t0-0"), "another rule, whose number begins alike"
    assert not plant.shows_in(complaint(story)) and not plant.shows_in("")
    late = complaint(
        "AssertionError: liveness: not within 15.0 s: I30: brokers come to rest once nobody asks them\nslot=1"
    )
    assert PLANTS["files_left"].shows_in(late) and not PLANTS["nobody_joins"].shows_in(late)


def test_a_plant_is_gone_when_it_is_over() -> None:
    for plant in PLANTS.values():
        before = [owner.__dict__[attribute] for owner, attribute, _ in plant.where]
        with plant.planted():
            assert all(
                owner.__dict__[attribute] is not original
                for (owner, attribute, _), original in zip(plant.where, before, strict=True)
            ), plant.name
        assert [owner.__dict__[attribute] for owner, attribute, _ in plant.where] == before

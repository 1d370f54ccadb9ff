"""Planted bugs that a few seeds show: red with the bug, green without it. Those that they seldom show have a
story. (`make sim-plants` searches for all.)"""

from __future__ import annotations

import re

import pytest

from tests.sim.__main__ import outcome
from tests.sim.cluster.plants import PLANTS, REPLAYED, complaint
from tests.sim.cluster.run import run
from tests.sim.cluster.stories import STORIES
from tests.sim.cluster.world import EVENTS

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
    assert REPLAYED.keys() | STORIES.keys() == PLANTS.keys()
    assert {name for name, plant in PLANTS.items() if not plant.seeds} <= STORIES.keys() - REPLAYED.keys()


def test_a_plant_is_gone_when_it_is_over() -> None:
    for plant in PLANTS.values():
        before = [owner.__dict__[attribute] for owner, attribute, _ in plant.where]
        with plant.planted():
            assert all(
                owner.__dict__[attribute] is not original
                for (owner, attribute, _), original in zip(plant.where, before, strict=True)
            ), plant.name
        assert [owner.__dict__[attribute] for owner, attribute, _ in plant.where] == before

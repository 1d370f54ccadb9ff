"""Simulated runs of one broker that coordinates groups and restarts often."""

from __future__ import annotations

import random

import pytest

from tests.sim import group_run
from tests.sim.__main__ import run_seed
from tests.sim.group_run import GroupOptions, run
from tests.sim.scenarios.many import run_seeds

SEEDS = 20
REACHED = ("acked", "images", "kill", "power", "disk", "stop", "stop_and_disk", "full", "outage")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_of_many_seeds_lose_no_commit() -> None:
    run_seeds("groups", SEEDS, REACHED)


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (35, "a log that was cut at a newer image is loaded from that one, though older images could not be deleted"),
        (31, "the same after a start that failed"),
        (15, "an image that lands after its leader is gone brings back what was acknowledged, and no more"),
        (289, "an image that is read wrong on its way is read again, before the one before it is taken for it"),
    ],
)
def test_seeds_that_once_failed_pass(seed: int, what: str) -> None:
    assert run(seed).counts["acked"] > 0, what


def test_failed_seed_prints_its_options_events_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run fails because commits beyond the end of a partition are cut back. A usual run writes enough records for
    its commits."""
    monkeypatch.setattr(group_run, "RECORDS", 2)
    _, report, _ = run_seed(31, "groups")
    _, _, told = report.partition("AssertionError: I18: ")
    said = told.splitlines()[1:]
    assert said[0] == str(GroupOptions.for_seed(31, random.Random("31/run"))) and "LOST_REPLY" in said[0]
    assert said[-1] == "again with: make sim OF=groups SEED=31"
    assert [line.split()[1] for line in said[1:-1]][:2] == ["power", "stop"]

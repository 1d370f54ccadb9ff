"""Simulated runs of one broker that restarts often (`make sim SEEDS=1000` runs any number of seeds)."""

from __future__ import annotations

import pytest

from tests.sim import single
from tests.sim.__main__ import run_seed
from tests.sim.options import SingleOptions
from tests.sim.scenarios.many import run_elsewhere, run_seeds
from tests.sim.single import run

SEEDS = 50
REACHED = (
    "acked", "cold_read", "crashes", "clean_stops", "disk_ends", "duplicates", "made", "deleted", "grown", "altered",
    "cut", "snapshots", "collected_slots", "spills",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_of_many_seeds_break_no_promise() -> None:
    run_seeds("single", SEEDS, REACHED)


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (118, "an upload whose manifest change was undecided is named once, not twice"),
        (167, "a loss whose report did not reach the log is reported by the next start"),
        (1417, "the same for a topic with flush=ack: a directory is trusted only once its losses are told"),
        (2416, "a log that cannot be cut on a full disk is opened anew when there is room, the broker lives on"),
    ],
)
def test_seeds_that_once_failed_pass(seed: int, what: str) -> None:
    assert run(seed, SingleOptions.without_admin).counts["acked"] > 0, what


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (37, "a log cut inside a batch goes up with who wrote all of that batch"),
        (391, "an upload that fails after its topic was deleted ends no broker"),
        (525, "a log that was never opened leaves no stale file to the next topic of its name"),
        (1166, "a log whose topic id a power cut tore off is not taken for the next topic's"),
        (1373, "a topic deleted on a full disk makes way for the next of its name"),
        (20893, "a producer snapshot that a power cut tore does not go to the bucket"),
        (10092, "a fence that comes late for a deleted topic spares the one that has its name now"),
    ],
)
def test_seeds_that_once_failed_pass_with_administration(seed: int, what: str) -> None:
    assert run(seed, SingleOptions.without_clean_stops).counts["acked"] > 0, what


def test_same_seed_takes_the_same_steps() -> None:
    """A seed takes the same steps in the same order in every process, and another seed takes others."""
    seeds = (3, 6)
    traces = set()
    for hash_seed, seed in enumerate(seeds, 1):
        done = run(seed)
        assert run_elsewhere("tests.sim.single", seed, hash_seed) == (str(done.trace), str(dict(done.counts)))
        traces.add(str(done.trace))
    assert len(traces) == len(seeds)


def test_failed_seed_prints_its_options_events_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run fails because nothing becomes cold within no time at all."""
    monkeypatch.setattr(single, "SETTLE_SECONDS", 0.0)
    _, report, _ = run_seed(3)
    _, _, told = report.partition("AssertionError: liveness: not within 0.0 s: everything is cold")
    said = told.splitlines()[1:]
    assert said[0] == str(SingleOptions.for_seed(3)) and said[-1] == "again with: make sim OF=single SEED=3"
    assert said[1] == "    0.000 started epoch=1" and any(line.endswith(" heal") for line in said[2:-1])

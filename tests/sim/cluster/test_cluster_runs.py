"""Simulated runs of a cluster with some seeds of each shape (`make sim SEEDS=1000` runs any number)."""

from __future__ import annotations

import pytest

from tests.sim.__main__ import run_seed
from tests.sim.cluster import run as cluster_run
from tests.sim.cluster.options import ACTS_LATE, CHAINS, SETTING_KINDS, TROUBLES
from tests.sim.cluster.run import run
from tests.sim.cluster.shapes import (
    CONSUMER_FAULTS,
    FAULT_SHARES,
    GROUP_FAULTS,
    MACHINE_FAULTS,
    SHAPES,
    command_of,
    draw_options,
)
from tests.sim.mutants.mutants import MUTANTS
from tests.sim.scenarios.many import run_elsewhere, run_seeds

SEEDS = {"drawn": 60, "one-broker": 40, "groups": 16, "machines": 24, "consumers": 16}
FEW_SEEDS = {shape: max(1, count // 30) for shape, count in SEEDS.items()}
REACHED = (
    "acked", "failed", "unknown", "read", "slots", "controllers", "leader_epochs", "losses", "commits", "lives",
    "admin_create_NONE", "admin_delete_records_NONE", "admin_elect_NONE", "move_NONE", "moved_offsets",
    "bucket_snapshots", "bucket_spills", "bucket_collected_slots", "bucket_refused",
    *(f"trouble_{kind}" for kind in (*TROUBLES, ACTS_LATE, "rot")),
    *(f"settings_{of}_{kind}_NONE" for of in ("topic", "all") for kind in SETTING_KINDS), "unclean_elections",
    "deletes_tiered", "deletes_untiered", "deletes_at_joins", "broker_joined", "broker_left", "moved_back",
    "moved_together", "move_called_off", "move_REASSIGNMENT_IN_PROGRESS", "returned_members",
    "transactions_committed", "transactions_aborted", "txn_left", "txn_fenced_write_refused", "txn_shown",
    "txn_aborted_ranges", "rival_committed", "rival_aborted", "rival_stable", "reports_repeated",
    "compacted_cleans", "compacted_cold_cleans", "compacted_records_removed", "compacted_judged",
    "compacted_transactions", "compacted_topic_policy_NONE", "trouble_swap",
    "bucket_encrypted", "bucket_key_changes", "bucket_rewritten", "bucket_old_key_gone",
    "time_lookups",
    "rest_read", "rest_judged", "rest_late_replies", "rest_lost_replies", "rest_deleted", "rest_forgotten",
    *(f"code_{code}" for code in ("NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS", "OUT_OF_ORDER_SEQUENCE_NUMBER")),
    "committer_acked", "end_stop", "end_failed",
    "bucket_windows", "bucket_fences", "spares", f"settings_topic_{CHAINS}_NONE", f"settings_all_{CHAINS}_NONE",
)  # fmt: skip
SHAPE_REACHED = {
    "drawn": REACHED,
    "one-broker": (
        "acked", "read_cold", "retries", "end_kill", "end_power", "end_disk", "end_stop", "end_failed", "losses",
        *(f"trouble_{kind}" for kind in FAULT_SHARES), "bucket_snapshots", "bucket_collected_slots", "bucket_spills",
        *(f"admin_{what}_NONE" for what in ("create", "delete", "recreate", "alter_configs", "delete_records")),
    ),
    "groups": (
        "committer_acked", "committer_shown", "committer_snapshots", "committer_lost",
        *(f"trouble_{kind}" for kind in GROUP_FAULTS), *(f"end_{how}" for how in ("kill", "power", "disk", "stop")),
    ),
    "consumers": (
        "consumer_steps", "consumer_spans", "consumer_late_commits", *(f"trouble_{kind}" for kind in CONSUMER_FAULTS),
    ),
    "machines": (
        "acked", "leader_epochs", "machine_images", "machines_lasted", "machines_lost",
        *(f"trouble_{kind}" for kind in MACHINE_FAULTS), "move_NONE", "move_INVALID_REPLICA_ASSIGNMENT",
        "broker_joined", "processes_to_1", "processes_to_2", "processes_stayed", "processes_moved_logs",
        "processes_moves_kill", "processes_moves_power",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_runs_of_a_few_seeds_break_no_promise() -> None:
    run_seeds(FEW_SEEDS)


@pytest.mark.also("tests/sim/cluster/test_cluster_runs.py::test_runs_of_a_few_seeds_break_no_promise")
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shape", SEEDS)
def test_runs_of_many_seeds_break_no_promise(shape: str) -> None:
    """Seeds that do not reach all these events prove less than they seem to."""
    totals = run_seeds({shape: SEEDS[shape]})
    assert [name for name in SHAPE_REACHED[shape] if not totals[name]] == []


def test_same_seed_takes_the_same_steps() -> None:
    """A seed takes the same steps in the same order in every process, and another seed takes others."""
    seeds = (6, 47)
    traces = set()
    for hash_seed, seed in enumerate(seeds, 1):
        done = run(seed)
        assert run_elsewhere("tests.sim.cluster.run", seed, hash_seed) == (str(done.trace), str(dict(done.counts)))
        traces.add(str(done.trace))
    assert len(traces) == len(seeds)


def test_some_seeds_draw_one_broker_some_groups_and_some_machines() -> None:
    drawn = [draw_options(seed) for seed in range(SEEDS["drawn"])]
    assert 3 <= sum(each.brokers == 1 for each in drawn) <= 15
    assert 3 <= sum(each.committers > 0 for each in drawn) <= 15
    assert 3 <= sum(each.processes > 1 for each in drawn) <= 15


@pytest.mark.parametrize("shape", SHAPES)
def test_failed_seed_prints_its_options_events_and_command(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run fails because not all brokers serve within no time at all."""
    monkeypatch.setattr(cluster_run, "START_SECONDS", 0.0)
    _, report, _ = run_seed(3, shape)
    options, told = SHAPES[shape](draw_options(3)), report.partition("AssertionError: liveness: not within 0.0 s: ")[2]
    assert told.startswith("all brokers serve") and options.describe() in told
    assert told.rstrip().endswith(f"again with: {command_of(options)}")
    assert command_of(options) == ("make sim SEED=3" if shape == "drawn" else f"make sim SHAPE={shape} SEED=3")


@pytest.mark.also("tests/sim/mutants/test_mutants.py::test_seed_fails_with_its_mutant_and_passes_without")
def test_run_of_groups_finds_snapshots_that_hold_nothing() -> None:
    with MUTANTS["groups_lost"].apply():
        _, report, _ = run_seed(0, "groups")
    assert "BrokenRules: I18: group-" in report

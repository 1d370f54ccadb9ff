"""Simulated runs of a cluster with sixty seeds (`make sim OF=cluster SEEDS=1000` runs any number)."""

from __future__ import annotations

import pytest

from tests.sim.cluster.options import ACTS_LATE, SETTING_KINDS, TROUBLES
from tests.sim.cluster.run import run
from tests.sim.scenarios.many import run_elsewhere, run_seeds

SEEDS = 60
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
    "bucket_encrypted", "bucket_key_changes", "bucket_rewritten", "bucket_old_key_gone", "compacted_put_off",
    "time_lookups",
    "rest_read", "rest_judged", "rest_late_replies", "rest_lost_replies", "rest_deleted", "rest_forgotten",
    *(f"code_{code}" for code in ("NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS", "OUT_OF_ORDER_SEQUENCE_NUMBER")),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_of_many_seeds_break_no_promise() -> None:
    run_seeds("cluster", SEEDS, REACHED)


def test_same_seed_takes_the_same_steps() -> None:
    """A seed takes the same steps in the same order in every process, and another seed takes others."""
    seeds = (6, 26, 47)
    traces = set()
    for hash_seed, seed in enumerate(seeds, 1):
        done = run(seed)
        assert run_elsewhere("tests.sim.cluster.run", seed, hash_seed) == (str(done.trace), str(dict(done.counts)))
        traces.add(str(done.trace))
    assert len(traces) == len(seeds)

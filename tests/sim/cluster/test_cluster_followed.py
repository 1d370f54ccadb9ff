"""Tests of records that followers consider committed and serve to nearby consumers (KIP-392)."""

from __future__ import annotations

import pytest

from tests.sim.cluster.observer import BrokenRules
from tests.sim.cluster.run import run
from tests.sim.cluster.test_cluster_stored import without_faults
from tests.sim.cluster.test_model_of_copies import LIVE, make_three_copies
from tiered.replication import follower_step


def test_i6_uncommitted_record_at_a_follower_is_reported() -> None:
    rig = make_three_copies(2)
    rig.write(*LIVE, base=20)
    for high_watermark in (0, 15, 20):
        rig.copies.on_follower_watermark(2, high_watermark)
    assert rig.broken_rules == []
    rig.copies.on_follower_watermark(2, 30)
    assert rig.broken_rules == ["I6"]


def test_i5_record_of_a_follower_that_differs_is_reported() -> None:
    rig = make_three_copies(1)
    rig.change_partition(1, 0, (1, 2))
    rig.write(1, 2, base=10)
    rig.write(3, base=10, epoch=1)
    rig.commit(20, isr=(1, 2))
    rig.copies.on_follower_watermark(3, 10)
    assert rig.broken_rules == []
    rig.copies.on_follower_watermark(3, 20)
    assert rig.broken_rules == ["I5"]


def test_i6_follower_may_learn_of_a_loss_later() -> None:
    rig = make_three_copies(2)
    for node in LIVE:
        rig.damage(node)
    rig.change_partition(1, 1, (1,))
    rig.copies.on_leader(1, "b", 1, 0)
    assert rig.copies.committed_end == 0
    rig.copies.on_follower_watermark(2, 20)
    assert rig.broken_rules == []


def test_i6_follower_that_serves_its_whole_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run samples followers now and then. In some runs it sees them only when all their records are committed."""
    run(1, without_faults)
    monkeypatch.setattr(follower_step, "next_high_watermark", lambda known, sent, end: end)
    with pytest.raises(BrokenRules, match="I6: t0-0: follower"):
        for seed in range(1, 6):
            run(seed, without_faults)

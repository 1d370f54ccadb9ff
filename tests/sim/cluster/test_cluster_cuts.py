"""Tests of I7 and I10 in the reference model: committed records are not cut away and not left behind, unless that is a
loss of its own."""

from __future__ import annotations

import pytest

from tests.sim.cluster.model_of_copies import COPIED_AGAIN
from tests.sim.cluster.test_model_of_copies import LIVES, ModelRig, batch, make_three_copies
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.topics import Loss


def test_i7_cut_of_committed_records_is_reported() -> None:
    rig = make_three_copies(2)
    rig.copies.on_truncated(3, 10, why="divergence")
    assert rig.broken_rules == ["I7"]


def test_i7_copy_that_does_not_count_may_follow_an_earlier_leader() -> None:
    """Broker 1 was cut off and removed 2 and 3 from the ISR. Then 3 led, and 1 followed it. Broker 2 has only the older
    image."""
    rig = make_three_copies(1)
    rig.write(2, 3, base=10)
    rig.change_partition(3, 2, (1, 3))
    rig.copies.on_leader(3, "c", 2, 20)
    rig.write(1, base=10)
    rig.commit(20, node=3, epoch=2, isr=(1, 3))
    rig.copies.on_follow(2, 1)
    rig.copies.on_truncated(2, 10, why="divergence")
    assert rig.broken_rules == []


def test_i7_cut_by_a_follower_of_the_newest_leader_is_reported() -> None:
    rig = make_three_copies(2)
    rig.change_partition(1, 1, (1, 3))
    rig.copies.on_leader(1, "a", 1, 20)
    rig.copies.on_follow(2, 1)
    rig.copies.on_truncated(2, 10, why="divergence")
    assert rig.broken_rules == ["I7"]


@pytest.mark.parametrize("is_lost", [True, False])
def test_leader_that_was_frozen_over_a_loss_need_not_know_of_it(is_lost: bool) -> None:
    """Broker 1 was frozen with fetches of the others in its buffers. They went on, and lost what all three had."""
    rig = make_three_copies(1)
    rig.write(1, 2, 3, base=10)
    rig.change_partition(2, 1, (2, 3))
    rig.copies.on_leader(2, "b", 1, 20)
    rig.commit(20, node=2, epoch=1, isr=(2, 3))
    if is_lost:
        rig.damage(2)
        rig.damage(3)
        rig.change_partition(2, 2, (2, 3), lives=LIVES | {2: 2, 3: 2}, loss=Loss(2, 0, 0))
        rig.copies.on_leader(2, "c", 2, 0)
    epoch, base = (2, 0) if is_lost else (1, 20)
    rig.write(2, 3, base=base, epoch=epoch)
    rig.commit(base + 10, node=2, epoch=epoch, isr=(2, 3))
    before = list(rig.broken_rules)
    rig.write(1, base=20)
    rig.commit(30, node=1, isr=(1, 2, 3))
    assert before == [] and ("I5" in rig.broken_rules) == (not is_lost)


@pytest.mark.parametrize(("isr", "red"), [((1, 3), []), ((1, 2, 3), ["I7"])])
def test_i7_follower_out_of_sync_may_copy_its_log_again(isr: tuple[int, ...], red: list[str]) -> None:
    rig = make_three_copies(2)
    rig.change_partition(1, 1, isr)
    rig.copies.on_leader(1, "a", 1, 20)
    rig.copies.on_follow(2, 1)
    rig.copies.on_truncated(2, 10, why=COPIED_AGAIN)
    assert rig.broken_rules == red


def test_i10_broker_that_joins_and_returns_in_one_slot_counted_before() -> None:
    """The end of a reassignment: broker 3 joined, 1 and 2 left, and 3, which had lost power, is back."""
    for between in ((1, 2, 3), ()):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, (1, 2))
        rig.damage(3)
        rig.change_partition(3, 2, (3,), lives={**LIVES, 3: 2}, isr_within_slot=between)
        assert ("I10" in rig.broken_rules) is (not between)


def test_i10_unproved_return_counts_for_the_broker_that_left_in_its_slot() -> None:
    """Broker 1 stops and leaves the ISR to broker 3, which had lost power and is back."""
    for between, life in (((1, 3), 2), ((1, 3), 3), ((), 2)):
        rig = make_three_copies(1)
        rig.change_partition(3, 0, (1, 3))
        rig.damage(3)
        rig.change_partition(NO_LEADER, 1, (), lives={**LIVES, 3: life}, isr_within_slot=between)
        assert ("I10" in rig.broken_rules) is (not between)


def test_i6_unclean_leader_with_old_committed_records_commits_them_again() -> None:
    """Broker 3 has ten records, broker 2 led without any of them, and now 3 leads again."""
    rig = make_three_copies(1)
    rig.change_partition(2, 1, (2,), live=(2,), loss=Loss(1, 0, 0), unclean=True)
    rig.copies.copy(2).replace(0, [])
    rig.copies.on_leader(2, "b", 1, 0)
    assert rig.copies.committed_end == 0
    rig.change_partition(3, 2, (3,), live=(3,), loss=Loss(2, 0, 0), unclean=True)
    rig.copies.on_leader(3, "c", 2, 10, 10)
    assert rig.copies.committed_end == 10 and rig.broken_rules == []
    rig = make_three_copies(2)
    rig.change_partition(3, 1, (1, 3))
    rig.write(3, base=20)
    rig.copies.on_leader(3, "c", 1, 30, 30)
    assert rig.broken_rules == ["I6"], "nobody committed it"


def test_i7_cold_records_may_be_cut_for_a_restart_at_the_cold_end() -> None:
    rig = make_three_copies(2)
    rig.copies.on_cold_end(20)
    rig.copies.on_log_reset(3, 20)
    assert rig.broken_rules == [] and rig.copies.copy(3).end == 20


def test_i5_log_that_a_full_disk_kept_closed_is_judged_when_opened() -> None:
    rig = ModelRig()
    rig.write(1, base=0)
    rig.damage(1, batch(0))
    rig.change_partition(1, 1, (1,), lives={**LIVES, 1: LIVES[1] + 1})
    rig.copies.on_opened(1, 0, [])
    assert "I5" not in rig.broken_rules
    rig.write(1, base=0)
    rig.copies.on_opened(1, 0, [])
    assert "I5" in rig.broken_rules

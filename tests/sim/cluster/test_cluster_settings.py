"""Tests of the reference model of copies while settings change: `flush`, unclean elections, and deletions."""

from __future__ import annotations

import pytest

from tests.sim.cluster.expiry import LogBatch, Retention
from tests.sim.cluster.test_model_of_copies import LIVES, ModelRig, batch, make_three_copies
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.topics import Loss


def test_i10_log_that_lost_records_does_not_count_after_a_flush_change() -> None:
    for kept, red in ((2, []), (1, ["I10"])):
        rig = make_three_copies(2)
        rig.change_partition(1, 0, (1,), (3,))
        rig.copies.on_damage(
            3, 0, [batch(10 * number) for number in range(kept)], 1, is_provable=False, is_partly_synced=True
        )
        rig.change_partition(1, 0, (1,), (3,), lives={**LIVES, 3: 2})
        assert rig.broken_rules == red


def test_i10_complete_log_may_count_or_not_after_a_flush_change() -> None:
    for elr in ((3,), ()):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, (1,), (3,))
        rig.copies.on_damage(3, 0, [batch(0)], 1, is_provable=False, is_partly_synced=True)
        rig.change_partition(1, 0, (1,), elr, lives={**LIVES, 3: 2})
        assert rig.broken_rules == []


def test_i10_lost_disk_proves_nothing_after_a_flush_change() -> None:
    """A power cut left open if the log counts, and the disk was lost before a start could register."""
    for lost, red in ((False, ["I10"]), (True, [])):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, (1,), (3,))
        rig.copies.on_damage(3, 0, [batch(0)], 1, is_provable=False, is_partly_synced=True)
        rig.copies.on_damage(3, 0, [], 2, is_provable=False, is_lost=lost)
        rig.change_partition(1, 0, (1,), (3,), lives={**LIVES, 3: 2})
        assert rig.broken_rules == red, "the cluster does not know yet that the disk was lost"
        rig.broken_rules.clear()
        rig.change_partition(1, 0, (1,), (3,), lives={**LIVES, 3: 3})
        assert rig.broken_rules == (["R1", "I10"] if lost else ["I10"])


def test_i10_log_whose_topic_id_was_torn_counts_only_if_it_was_empty() -> None:
    for batches, red in ((0, []), (1, ["I10"])):
        rig = make_three_copies(batches)
        rig.change_partition(1, 0, (1,), (3,))
        rig.copies.on_damage(3, 0, [], 1, is_provable=False, is_partly_synced=True, is_torn=True)
        assert rig.copies.has_all_committed(3) is (batches == 0)
        rig.change_partition(1, 0, (1,), (3,), lives={**LIVES, 3: 2})
        assert rig.broken_rules == red


def test_i10_log_with_records_and_a_torn_topic_id_proves_nothing() -> None:
    """The start may delete the log, though the cut left all records."""
    for torn in (False, True):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, (1,), (3,))
        rig.copies.on_damage(3, 0, [batch(0)], 1, is_provable=False, is_partly_synced=True, is_torn=torn)
        assert rig.copies.has_all_committed(3) is not torn


def test_r1_flush_change_while_a_broker_is_down_leaves_its_trust_open() -> None:
    for changed in (False, True):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, (1,), (3,))
        rig.damage(3, batch(0))
        if changed:
            rig.copies.on_flush_changed()
        rig.change_partition(1, 0, (1,), (3,), lives={**LIVES, 3: 2})
        assert rig.broken_rules == ([] if changed else ["R1"])


def test_allowed_unclean_election_loses_what_its_leader_lacks() -> None:
    for unclean in (True, False):
        rig = ModelRig()
        rig.write(1, 2, 3, base=0)
        rig.commit(10)
        rig.change_partition(1, 0, (1, 2))
        rig.write(1, 2, base=10)
        rig.commit(20, isr=(1, 2))
        rig.now = 7
        rig.change_partition(3, 1, (3,), live=(3,), loss=Loss(1, 0, 0), unclean=unclean)
        rig.copies.on_leader(3, "c", 1, 10)
        assert rig.copies.may_be_gone(10, 7) and not rig.copies.may_be_gone(9, 7)
        assert (rig.broken_rules == []) == unclean, rig.broken_rules


def test_unclean_election_may_choose_a_broker_that_returned_unproved() -> None:
    """The registration removes the broker from the ELR, and the same step elects it: another eligible one is still
    down."""
    for unclean in (True, False):
        rig = make_three_copies(2)
        rig.change_partition(1, 0, (1, 2))
        rig.damage(1)
        rig.damage(2, batch(0))
        rig.change_partition(NO_LEADER, 0, (), (1, 2), live=(3,))
        assert rig.broken_rules == []
        rig.change_partition(1, 1, (1,), live=(1, 3), lives=LIVES | {1: 2}, loss=Loss(1, 0, 0), unclean=unclean)
        assert rig.broken_rules == ([] if unclean else ["R4"])


def test_leader_before_an_unclean_election_commits_nothing_more() -> None:
    rig = make_three_copies(1)
    rig.change_partition(1, 0, (1,))
    rig.change_partition(3, 1, (3,), live=(3,), loss=Loss(1, 0, 0), unclean=True)
    rig.write(1, base=10)
    rig.copies.on_high_watermark(1, 0, 20, (1,), 1)
    assert rig.copies.may_be_gone(10, 0), "nobody who may lead has it"
    rig.copies.on_leader(3, "c", 1, 10)
    rig.write(1, base=20)
    rig.copies.on_high_watermark(1, 0, 30, (1,), 1)
    assert rig.copies.committed_end == 10 and rig.broken_rules == []


def test_leader_before_an_unclean_election_may_part_from_the_new_one() -> None:
    rig = make_three_copies(1)
    rig.change_partition(1, 0, (1,))
    rig.write(1, base=10)
    rig.change_partition(3, 1, (3,), live=(3,), loss=Loss(1, 0, 0), unclean=True)
    rig.copies.on_leader(3, "c", 1, 10)
    rig.copies.on_append(3, batch(10, epoch=1))
    rig.copies.on_high_watermark(3, 1, 20, (3,), 1)
    rig.copies.on_high_watermark(1, 0, 20, (1,), 1)
    assert rig.copies.committed_end == 20 and rig.broken_rules == []


def test_i7_deleted_records_may_be_cut() -> None:
    rig = make_three_copies(2)
    rig.copies.on_log_start(20, [Retention()], 0, 0, requested_start=20)
    rig.copies.on_log_reset(3, 20)
    assert rig.broken_rules == []


def test_active_controller_may_acknowledge_after_an_unclean_election() -> None:
    for controls in (True, False):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, (1,))
        rig.change_partition(3, 1, (3,), live=(3,), loss=Loss(1, 0, 0), unclean=True)
        rig.copies.on_leader(3, "c", 1, 10)
        rig.write(1, base=10)
        rig.now = 7
        rig.copies.on_high_watermark(1, 0, 20, (1,), 1, is_controller=controls)
        assert rig.copies.may_be_gone(10, 7) == controls and rig.broken_rules == []
        assert rig.copies.may_have_diverged(10, 7), "what it took with acks=1 is read there all the same"
        assert not rig.copies.may_have_diverged(9, 7)


def test_uncleanly_elected_leader_commits_batch_that_the_log_start_divides() -> None:
    rig = ModelRig()
    rig.change_partition(1, 0, (1, 2))
    rig.write(1, 2, base=0)
    rig.commit(10, isr=(1, 2))
    rig.copies.on_append(3, LogBatch(0, 14, 0, 7))
    rig.copies.on_log_start(10, [Retention()], 0, 0, requested_start=10)
    rig.change_partition(3, 1, (3,), live=(3,), loss=Loss(1, 10, 0), unclean=True)
    rig.copies.on_leader(3, "c", 1, 15)
    rig.copies.on_high_watermark(3, 1, 15, (3,), 1)
    rig.change_partition(3, 1, (3,))
    assert rig.broken_rules == [] and rig.copies.committed_end == 15


@pytest.mark.parametrize("tiered", ["before the election", "after it"])
def test_unclean_election_may_lose_log_start_only_while_nothing_is_cold(tiered: str) -> None:
    rig = make_three_copies(1)
    rig.change_partition(1, 0, (1, 2))
    if tiered == "before the election":
        rig.copies.on_cold_end(5)
    rig.now = 7
    rig.change_partition(3, 1, (3,), live=(3,), loss=Loss(1, 0, 0), unclean=True)
    rig.copies.copy(3).replace(0, [])
    rig.copies.on_leader(3, "c", 1, 5)
    rig.now = 9
    rig.copies.on_cold_end(20)
    assert (rig.copies.parted, rig.copies.parted_uncold) == (1, -1 if tiered == "before the election" else 1)


def test_lost_disk_takes_the_log_start_along_only_if_nothing_is_cold() -> None:
    for cold_at, may_be_lost in ((None, True), (5, False), (9, True)):
        rig = make_three_copies(1)
        for now in (5, 7, 9):
            rig.now = now
            if cold_at == now:
                rig.copies.on_cold_end(1)
            if now == 7:
                for node in (1, 2, 3):
                    rig.damage(node)
        assert rig.copies.may_have_lost_start(8) is may_be_lost

"""The reference model of copies while settings change: `flush`, unclean elections, and what is deleted."""

from __future__ import annotations

import pytest

from tests.sim.cluster.expiry import LogBatch, Retention
from tests.sim.cluster.test_model_of_copies import LIVES, ModelRig, batch, make_three_copies
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import Loss


def test_i10_where_flush_has_changed_a_log_that_lost_what_is_committed_counts_for_nothing() -> None:
    for kept, red in ((2, []), (1, ["I10"])):
        told = make_three_copies(2)
        told.change_partition(1, 0, (1,), (3,))
        told.copies.on_damage(
            3, 0, [batch(10 * number) for number in range(kept)], 1, is_provable=False, is_partly_synced=True
        )
        told.change_partition(1, 0, (1,), (3,), lives={**LIVES, 3: 2})
        assert told.broken_rules == red


def test_i10_where_flush_has_changed_a_log_that_lacks_nothing_may_be_believed_or_not() -> None:
    for elr in ((3,), ()):
        told = make_three_copies(1)
        told.change_partition(1, 0, (1,), (3,))
        told.copies.on_damage(3, 0, [batch(0)], 1, is_provable=False, is_partly_synced=True)
        told.change_partition(1, 0, (1,), elr, lives={**LIVES, 3: 2})
        assert told.broken_rules == []


def test_r1_flush_that_changes_while_a_broker_is_away_leaves_open_whether_its_log_is_believed() -> None:
    for changed in (False, True):
        told = make_three_copies(1)
        told.change_partition(1, 0, (1,), (3,))
        told.damage(3, batch(0))
        if changed:
            told.copies.on_flush_changed()
        told.change_partition(1, 0, (1,), (3,), lives={**LIVES, 3: 2})
        assert told.broken_rules == ([] if changed else ["R1"])


def test_an_unclean_election_loses_what_its_leader_lacks_where_the_topic_wants_it() -> None:
    for unclean in (True, False):
        told = ModelRig()
        told.write(1, 2, 3, base=0)
        told.commit(10)
        told.change_partition(1, 0, (1, 2))
        told.write(1, 2, base=10)
        told.commit(20, isr=(1, 2))
        told.now = 7
        told.change_partition(3, 1, (3,), live=(3,), loss=Loss(1, 0, 0), unclean=unclean)
        told.copies.on_leader(3, "c", 1, 10)
        assert told.copies.may_be_gone(10, 7) and not told.copies.may_be_gone(9, 7)
        assert (told.broken_rules == []) == unclean, told.broken_rules


def test_an_unclean_election_may_take_who_was_eligible_and_came_back_unproved() -> None:
    """The registration takes it out of ELR, and the same step elects it: another eligible one is still away."""
    for unclean in (True, False):
        told = make_three_copies(2)
        told.change_partition(1, 0, (1, 2))
        told.damage(1)
        told.damage(2, batch(0))
        told.change_partition(NO_LEADER, 0, (), (1, 2), live=(3,))
        assert told.broken_rules == []
        told.change_partition(1, 1, (1,), live=(1, 3), lives=LIVES | {1: 2}, loss=Loss(1, 0, 0), unclean=unclean)
        assert told.broken_rules == ([] if unclean else ["R4"])


def test_who_led_before_an_unclean_election_commits_nothing_more() -> None:
    told = make_three_copies(1)
    told.change_partition(1, 0, (1,))
    told.change_partition(3, 1, (3,), live=(3,), loss=Loss(1, 0, 0), unclean=True)
    told.write(1, base=10)
    told.copies.on_high_watermark(1, 0, 20, (1,), 1)
    assert told.copies.may_be_gone(10, 0), "nobody who may lead has it"
    told.copies.on_leader(3, "c", 1, 10)
    told.write(1, base=20)
    told.copies.on_high_watermark(1, 0, 30, (1,), 1)
    assert told.copies.committed_end == 10 and told.broken_rules == []


def test_i7_what_is_deleted_may_be_cut() -> None:
    told = make_three_copies(2)
    told.copies.on_log_start(20, [Retention()], 0, 0, requested_start=20)
    told.copies.on_log_reset(3, 20)
    assert told.broken_rules == []


def test_who_controls_hears_nobody_and_may_acknowledge_after_an_unclean_election() -> None:
    for controls in (True, False):
        told = make_three_copies(1)
        told.change_partition(1, 0, (1,))
        told.change_partition(3, 1, (3,), live=(3,), loss=Loss(1, 0, 0), unclean=True)
        told.copies.on_leader(3, "c", 1, 10)
        told.write(1, base=10)
        told.now = 7
        told.copies.on_high_watermark(1, 0, 20, (1,), 1, is_controller=controls)
        assert told.copies.may_be_gone(10, 7) == controls and told.broken_rules == []
        assert told.copies.may_have_diverged(10, 7), "what it took with acks=1 is read there all the same"
        assert not told.copies.may_have_diverged(9, 7)


def test_uncleanly_elected_leader_commits_batch_that_the_log_start_divides() -> None:
    told = ModelRig()
    told.change_partition(1, 0, (1, 2))
    told.write(1, 2, base=0)
    told.commit(10, isr=(1, 2))
    told.copies.on_append(3, LogBatch(0, 14, 0, 7))
    told.copies.on_log_start(10, [Retention()], 0, 0, requested_start=10)
    told.change_partition(3, 1, (3,), live=(3,), loss=Loss(1, 10, 0), unclean=True)
    told.copies.on_leader(3, "c", 1, 15)
    told.copies.on_high_watermark(3, 1, 15, (3,), 1)
    told.change_partition(3, 1, (3,))
    assert told.broken_rules == [] and told.copies.committed_end == 15


@pytest.mark.parametrize("tiered", ["before the election", "after it"])
def test_unclean_election_may_lose_log_start_only_while_nothing_is_cold(tiered: str) -> None:
    told = make_three_copies(1)
    told.change_partition(1, 0, (1, 2))
    if tiered == "before the election":
        told.copies.on_cold_end(5)
    told.now = 7
    told.change_partition(3, 1, (3,), live=(3,), loss=Loss(1, 0, 0), unclean=True)
    told.copies.copy(3).replace(0, [])
    told.copies.on_leader(3, "c", 1, 5)
    told.now = 9
    told.copies.on_cold_end(20)
    assert (told.copies.parted, told.copies.parted_uncold) == (1, -1 if tiered == "before the election" else 1)


def test_disk_that_is_lost_takes_log_start_along_only_while_nothing_is_cold() -> None:
    for cold_at, may_be_lost in ((None, True), (5, False), (9, True)):
        told = make_three_copies(1)
        for now in (5, 7, 9):
            told.now = now
            if cold_at == now:
                told.copies.on_cold_end(1)
            if now == 7:
                for node in (1, 2, 3):
                    told.damage(node)
        assert told.copies.may_have_lost_start(8) is may_be_lost

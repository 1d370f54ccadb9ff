"""Tests of the reference model of a partition's copies: each rule, once kept and once broken."""

from __future__ import annotations

from dataclasses import replace

from tests.sim.cluster.expiry import LogBatch, Retention
from tests.sim.cluster.model_of_copies import ModelOfCopies
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.topics import Loss, PartitionImage

LIVES = {1: 1, 2: 1, 3: 1}
LIVE = (1, 2, 3)


def batch(base: int, epoch: int = 0, crc: int = 0) -> LogBatch:
    return LogBatch(base, base + 9, epoch, crc or base * 100 + epoch)


class ModelRig:
    """A model of a partition on brokers 1 to 3 with min.insync.replicas 2, and its findings."""

    def __init__(self) -> None:
        self.broken_rules: list[str] = []
        self.now = 0
        self.copies = ModelOfCopies("t-0", lambda rule, what: self.broken_rules.append(rule), lambda: self.now)
        self.change_partition(1, 0, (1, 2, 3))
        self.copies.on_leader(1, "a", 0, 0)

    def change_partition(
        self,
        leader: int,
        epoch: int,
        isr: tuple[int, ...],
        elr: tuple[int, ...] = (),
        last_known: tuple[int, ...] = (),
        live: tuple[int, ...] = LIVE,
        lives: dict[int, int] = LIVES,
        isr_within_slot: tuple[int, ...] = (),
        loss: Loss | None = None,
        unclean: bool = False,
    ) -> None:
        image = PartitionImage((1, 2, 3), leader, epoch, isr, elr, loss, last_known=last_known)
        self.copies.on_partition_change(image, live, lives, isr_within_slot, unclean=unclean)

    def write(self, *nodes: int, base: int, epoch: int = 0) -> None:
        for node in nodes:
            self.copies.on_append(node, batch(base, epoch))

    def commit(self, upto: int, node: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1, 2, 3)) -> None:
        self.copies.on_high_watermark(node, epoch, upto, isr, 2)

    def damage(self, node: int, *kept: LogBatch, proved: bool = False) -> None:
        self.copies.on_damage(node, 0, kept, LIVES[node], is_provable=proved)


def make_three_copies(count: int) -> ModelRig:
    """Returns a model with `count` committed batches on all three brokers."""
    rig = ModelRig()
    for number in range(count):
        rig.write(1, 2, 3, base=number * 10)
    rig.commit(count * 10)
    assert rig.broken_rules == [] and rig.copies.committed_end == count * 10
    return rig


def test_correct_sequence_of_events_breaks_no_rule() -> None:
    rig = make_three_copies(2)
    rig.write(1, 2, base=20)
    rig.change_partition(1, 0, (1, 2))
    rig.commit(30, isr=(1, 2))
    rig.change_partition(2, 1, (2,), (1,), live=(2, 3))
    rig.copies.on_leader(2, "b", 1, 30)
    rig.write(2, 3, base=30, epoch=1)
    rig.copies.on_truncated(1, 30, why="nothing")
    assert rig.broken_rules == ["I3"], "broker 3 wrote 30 at its end 20"


def test_records_below_the_log_start_may_be_of_another_history() -> None:
    """All records of the new epoch are deleted before a follower with records of the old one fetches: nothing
    diverges."""
    for start, red in ((30, []), (20, ["I10"])):
        rig = make_three_copies(2)
        rig.write(3, base=20)
        rig.change_partition(2, 1, (2,), (1,), live=(1, 2))
        rig.copies.on_leader(2, "b", 1, 20)
        rig.write(1, 2, base=20, epoch=1)
        rig.change_partition(2, 1, (1, 2))
        rig.commit(30, node=2, epoch=1, isr=(1, 2))
        rig.copies.on_log_start(start, [Retention()], 0, 0, requested_start=start)
        rig.change_partition(2, 1, (1, 2, 3))
        assert rig.broken_rules == red


def test_i3_gap_in_a_log_is_reported() -> None:
    rig = make_three_copies(1)
    rig.write(2, base=20)
    assert rig.broken_rules == ["I3"]


def test_i5_start_finds_the_content_of_its_disk() -> None:
    rig = make_three_copies(2)
    rig.copies.on_opened(1, 0, [batch(0), batch(10)])
    assert rig.broken_rules == []
    rig.copies.on_opened(1, 0, [batch(0)])
    assert rig.broken_rules == ["I5"]


def test_i5_power_cut_may_take_all_but_fsynced_records() -> None:
    rig = make_three_copies(2)
    rig.damage(1, batch(0), batch(10))
    rig.copies.on_opened(1, 0, [batch(0)])
    assert rig.broken_rules == []
    rig.damage(2, batch(0), batch(10), proved=True)
    rig.copies.on_opened(2, 0, [batch(0)])
    assert rig.broken_rules == ["I5"]


def test_i5_changed_committed_record_is_reported() -> None:
    rig = make_three_copies(1)
    rig.change_partition(2, 1, (2, 3))
    rig.copies.on_leader(2, "b", 1, 10)
    rig.write(2, 3, base=10, epoch=1)
    rig.commit(20, 2, 1, (2, 3))
    rig.write(1, base=10)
    rig.copies.on_high_watermark(1, 0, 20, (1,), 1)
    assert rig.broken_rules == ["I5", "I6"]


def test_i6_high_watermark_above_an_in_sync_replica_is_reported() -> None:
    rig = make_three_copies(1)
    rig.write(1, 2, base=10)
    rig.commit(20)
    assert rig.broken_rules == ["I6"]


def test_i6_leader_may_still_count_a_removed_isr_member() -> None:
    rig = ModelRig()
    rig.change_partition(1, 0, (1, 2))
    rig.write(1, 2, base=0)
    rig.commit(10)
    assert rig.broken_rules == []


def test_i6_high_watermark_that_goes_back_is_reported() -> None:
    rig = make_three_copies(2)
    rig.commit(10)
    assert rig.broken_rules == ["I6"]


def test_i6_high_watermark_above_the_log_end_is_reported() -> None:
    rig = make_three_copies(1)
    rig.commit(20)
    assert rig.broken_rules[0] == "I6"


def test_r3_replica_that_leaves_within_a_leader_epoch_is_reported() -> None:
    for epoch, broken in ((0, ["R3"]), (1, [])):
        rig = make_three_copies(1)
        rig.copies.on_partition_change(PartitionImage((1, 2), 1, epoch, (1, 2), (), None), LIVE, LIVES)
        assert rig.broken_rules == broken


def test_r3_high_watermark_with_a_small_isr_is_reported() -> None:
    rig = make_three_copies(1)
    rig.change_partition(1, 0, (1,), (2,))
    rig.write(1, base=10)
    rig.commit(20, isr=(1,))
    assert rig.broken_rules == ["R3"]


def test_i8_second_leader_of_an_epoch_is_reported() -> None:
    rig = make_three_copies(1)
    rig.copies.on_leader(1, "a", 0, 10)
    assert rig.broken_rules == []
    rig.copies.on_leader(2, "b", 0, 10)
    assert rig.broken_rules == ["I8"]


def test_i8_changed_leader_within_an_epoch_is_reported() -> None:
    rig = make_three_copies(1)
    rig.change_partition(2, 0, (1, 2, 3))
    assert rig.broken_rules == ["I8"]


def test_i9_leader_without_all_committed_records_is_reported() -> None:
    rig = make_three_copies(1)
    rig.write(1, 2, base=10)
    rig.change_partition(1, 0, (1, 2))
    rig.commit(20, isr=(1, 2))
    rig.change_partition(3, 1, (3,))
    assert rig.broken_rules == ["I10", "I10"], "3 has not everything, and 1 and 2 went for it"
    rig.broken_rules.clear()
    rig.copies.on_leader(3, "c", 1, 10)
    assert rig.broken_rules == [], "by then nobody in sync holds it: that was said already"


def test_i9_content_of_a_log_counts_and_not_its_length() -> None:
    rig = make_three_copies(1)
    rig.write(3, base=10, epoch=7)
    rig.write(1, 2, base=10)
    rig.change_partition(1, 0, (1, 2))
    rig.commit(20, isr=(1, 2))
    rig.copies.on_leader(3, "c", 1, 20)
    assert rig.broken_rules == ["I9"]


def test_i10_member_without_all_committed_records_is_reported() -> None:
    rig = make_three_copies(1)
    rig.write(1, 2, base=10)
    rig.change_partition(1, 0, (1, 2))
    rig.commit(20, isr=(1, 2))
    rig.change_partition(1, 0, (1, 2, 3))
    assert rig.broken_rules == ["I10"]


def test_i10_last_complete_copy_does_not_leave_for_an_incomplete_one() -> None:
    for life, red in ((1, []), (2, ["I10"])):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, (1, 2))
        rig.damage(2)
        rig.change_partition(2, 1, (2,), live=(2, 3), lives=LIVES | {2: life})
        assert rig.broken_rules == red, "damage that nobody knows of yet is forgiven"


def test_i10_power_cut_after_a_disk_error_does_not_prove_the_log() -> None:
    """The topic fsyncs before it acknowledges. The start may trust the disk after the error or not, also if the power
    fails before that start."""
    for had_error, red in ((True, []), (False, ["I10"])):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, (1,))
        rig.copies.on_damage(1, 0, (batch(0),), 1, is_provable=True, is_proof_unknown=had_error)
        rig.damage(1, batch(0), proved=True)
        rig.change_partition(NO_LEADER, 1, (), (), (1,), lives=LIVES | {1: 2})
        assert rig.broken_rules == red, had_error


def test_i10_broker_that_dies_before_it_trusts_its_directory_is_suspect() -> None:
    """A power cut took nothing of the last member's log. It led as last resort, with or without a loss report, and was
    killed. Its next start has to suspect the log again, unless the broker had trusted its directory by then."""
    for loss in (None, Loss(2, 20, 0)):
        for believed, full, proved, red in (
            (False, False, False, []), (True, False, False, ["I10"]),
            (False, False, True, ["I10"]), (False, True, True, []),
        ):  # fmt: skip
            rig = make_three_copies(2)
            rig.change_partition(1, 0, (1,))
            rig.damage(1, batch(0), batch(10), proved=proved)
            again = LIVES | {1: 2}
            rig.change_partition(NO_LEADER, 1, (), (), (1,), lives=again, loss=Loss(1, 20, 0))
            rig.broken_rules.clear()
            rig.change_partition(1, 2, (1,), lives=again, loss=loss)
            if believed:
                rig.copies.on_directory_trusted(1)
            else:
                rig.copies.on_death_while_suspect(1, 2, has_no_proof=full)
            rig.change_partition(NO_LEADER, 2, (), (1,), live=(2, 3), lives=again, loss=loss)
            assert rig.broken_rules == [], "it is eligible while it is away"
            rig.change_partition(NO_LEADER, 2, (), (), (1,), lives=again | {1: 3}, loss=loss)
            assert rig.broken_rules == red, (loss, believed, full, proved)


def test_i10_start_registered_late_is_suspect_by_the_death_before_it() -> None:
    for deaths, red in (((2, 3, 4), []), ((3, 4), ["I10"])):
        rig = make_three_copies(2)
        rig.change_partition(1, 0, (1,))
        rig.damage(1, batch(0), batch(10))
        again = LIVES | {1: 2}
        rig.change_partition(NO_LEADER, 1, (), (), (1,), lives=again, loss=Loss(1, 20, 0))
        rig.broken_rules.clear()
        rig.change_partition(1, 2, (1,), lives=again)
        for life in deaths:
            rig.copies.on_death_while_suspect(1, life, has_no_proof=False)
        rig.change_partition(NO_LEADER, 2, (), (), (1,), lives=again | {1: 3})
        assert rig.broken_rules == red, "two later processes are dead already when the third is registered"


def test_i10_unclean_leader_may_be_fenced_within_the_slot_of_its_election() -> None:
    for unclean, red in ((True, []), (False, ["I10"])):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, (1,))
        rig.damage(2)
        rig.damage(1, batch(0))
        away = LIVES | {2: 2}
        rig.change_partition(
            NO_LEADER, 1, (), (2,), live=(3,), lives=away, isr_within_slot=(2,), loss=Loss(1, 0, 0), unclean=unclean
        )
        assert rig.broken_rules == red


def test_i10_leader_is_in_sync_and_all_isr_members_are_live() -> None:
    for isr, live, red in (((1, 2), (1, 2), []), ((1, 2), (1, 3), ["I10"]), ((2, 3), LIVE, ["I10"])):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, isr, live=live)
        assert rig.broken_rules == red


def test_i10_sets_are_disjoint_and_of_replicas() -> None:
    rig = make_three_copies(1)
    rig.change_partition(1, 0, (1, 2), (2,))
    assert rig.broken_rules == ["I10"]


def test_r1_member_that_lost_power_before_its_join_has_fsynced_records() -> None:
    for proved in (True, False):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, (1, 2))
        rig.damage(3)
        rig.change_partition(1, 0, (1, 2), lives={**LIVES, 3: 2})
        rig.write(3, base=0)
        rig.copies.on_damage(3, 0, [batch(0)], 2, is_provable=proved)
        rig.change_partition(1, 0, (1, 2, 3), lives={**LIVES, 3: 2})
        rig.change_partition(1, 0, (1, 2), (3,), lives={**LIVES, 3: 3})
        assert rig.broken_rules == ([] if proved else ["R1"])


def test_i10_last_old_replica_leaves_when_a_complete_one_joins() -> None:
    for upto in (20, 10):
        rig = make_three_copies(2)
        rig.change_partition(1, 0, (1, 2))
        rig.damage(3)
        rig.change_partition(1, 0, (1,), lives={**LIVES, 3: 2})
        for base in range(0, upto, 10):
            rig.write(3, base=base)
        rig.change_partition(3, 1, (3,), lives={**LIVES, 3: 2})
        assert rig.broken_rules == ([] if upto == 20 else ["I10"])


def test_r1_broker_that_joins_and_returns_whole_in_one_slot_is_eligible() -> None:
    for lives in (3, 2):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, (1, 2))
        rig.damage(3, batch(0))
        rig.change_partition(1, 0, (1, 2), (3,), lives={**LIVES, 3: lives})
        assert rig.broken_rules == ([] if lives == 3 else ["R1"])


def test_r1_broker_that_joins_and_is_fenced_in_one_slot_is_eligible() -> None:
    """The process that joined counts: the damage came before it."""
    for between in ((1, 2, 3), ()):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, (1, 2))
        rig.damage(3, batch(0))
        rig.change_partition(1, 0, (1, 2), (3,), lives={**LIVES, 3: 2}, isr_within_slot=between)
        assert rig.broken_rules == ([] if between else ["R1"])


def test_r1_broker_hurt_before_the_slot_of_its_join_is_eligible() -> None:
    """The slot is written late: a process that never registered has died since, of a power cut."""
    for lossy in ((1,), (1, 2), (1, 3)):
        rig = make_three_copies(1)
        rig.change_partition(1, 0, (1, 2))
        for life in (1, 2, 3):
            rig.copies.on_damage(3, 0, [batch(0)], life, is_provable=life not in lossy)
        rig.change_partition(1, 0, (1, 2), (3,), lives={**LIVES, 3: 2}, isr_within_slot=(1, 2, 3))
        rig.change_partition(1, 0, (1, 2), (3,), lives={**LIVES, 3: 4})
        assert rig.broken_rules == ([] if lossy == (1,) else ["R1"])


def test_r1_broker_that_returns_unproved_is_not_eligible() -> None:
    rig = make_three_copies(1)
    rig.damage(2, batch(0))
    rig.change_partition(1, 0, (1, 3), (2,))
    assert rig.broken_rules == [], "the cluster does not know yet"
    rig.change_partition(1, 0, (1, 3), (2,), lives=LIVES | {2: 2})
    assert rig.broken_rules == ["R1"]


def test_r1_log_after_a_clean_stop_is_whole_after_a_power_cut() -> None:
    rig = make_three_copies(1)
    rig.copies.on_clean_stop(2)
    rig.damage(2, batch(0))
    rig.change_partition(1, 0, (1, 3), (2,), lives=LIVES | {2: 2})
    assert rig.broken_rules == []


def test_r1_clean_mark_proves_a_log_that_no_start_has_opened() -> None:
    """The partition was created while the broker stopped, so that no event of its log came before the power cut."""
    for opened, marked, red in ((False, True, []), (False, False, ["R1"]), (True, True, ["R1"])):
        rig = make_three_copies(0)
        if opened:
            rig.copies.on_opened(2, 0, ())
        rig.copies.on_damage(2, 0, (), 1, is_provable=False, is_marked_clean=marked)
        rig.change_partition(1, 0, (1, 3), (2,), lives=LIVES | {2: 2})
        assert rig.broken_rules == red, (opened, marked)


def test_r2_copy_that_joins_after_damage_counts_again() -> None:
    rig = make_three_copies(2)
    rig.damage(2, batch(0))
    again = LIVES | {2: 2}
    rig.change_partition(1, 0, (1, 3), lives=again)
    rig.change_partition(1, 0, (1, 2, 3), lives=again)
    assert rig.broken_rules == ["I10"], "it lacks the second batch"
    rig.broken_rules.clear()
    rig.write(2, base=10)
    rig.change_partition(1, 0, (1, 2, 3), lives=again)
    assert rig.broken_rules == [] and rig.copies.copy(2).is_provable


def test_r4_unproved_member_with_the_most_records_is_elected() -> None:
    for winner, red in ((1, []), (2, ["R4"])):
        rig = make_three_copies(3)
        rig.damage(1, batch(0), batch(10))
        rig.damage(2, batch(0))
        rig.damage(3)
        again = {1: 2, 2: 2, 3: 2}
        rig.change_partition(NO_LEADER, 1, (), (), (1, 2, 3), lives=again)
        rig.change_partition(winner, 2, (winner,), lives=again)
        assert rig.broken_rules == red


def test_loss_beyond_the_fault_budget_is_allowed_from_its_first_record() -> None:
    rig = make_three_copies(3)
    rig.now = 5
    rig.damage(1, batch(0), batch(10))
    assert not rig.copies.may_be_gone(25, 0), "2 and 3 hold it"
    rig.damage(2)
    rig.damage(3, batch(0))
    assert rig.copies.may_be_gone(25, 0) and rig.copies.may_be_gone(20, 5)
    assert not rig.copies.may_be_gone(15, 0) and not rig.copies.may_be_gone(25, 6)


def test_cold_records_are_never_lost() -> None:
    rig = make_three_copies(2)
    rig.copies.on_cold_end(10)
    for node in (1, 2, 3):
        rig.damage(node)
    assert rig.copies.may_be_gone(10, 0) and not rig.copies.may_be_gone(9, 0)


def test_loss_behind_a_log_start_within_a_batch_takes_no_deleted_record() -> None:
    rig = make_three_copies(1)
    rig.copies.on_cold_end(5)
    for node in (1, 2, 3):
        rig.damage(node)
    assert rig.copies.may_be_gone(9, 0) and not rig.copies.may_be_gone(4, 0), "the batch is known by its last record"


def test_r5_epoch_that_begins_below_the_cold_end_is_reported() -> None:
    rig = make_three_copies(2)
    rig.copies.on_cold_end(20)
    rig.copies.on_log_reset(2, 20)
    rig.copies.on_leader(2, "b", 1, 20)
    assert rig.broken_rules == []
    rig.copies.on_leader(3, "c", 2, 10)
    assert rig.broken_rules == ["R5"]


def test_i5_log_that_opened_after_its_move_was_cancelled_may_be_deleted() -> None:
    """The broker learns of the move late, and of its end later. The next move to the broker finds no log."""
    for opens_late in (True, False):
        rig = make_three_copies(1)
        move = PartitionImage((1, 2, 3, 4), 1, 0, (1, 2, 3), adding=(4,))
        end = PartitionImage((1, 2, 3), 1, 1, (1, 2, 3))
        again = replace(move, leader_epoch=1)
        for image in (move, end, again) if opens_late else (move,):
            if image is again and rig.copies.state == end:
                rig.copies.on_opened(4, 0, [])
                rig.write(4, base=0)
            rig.copies.on_partition_change(image, (1, 2, 3, 4), LIVES | {4: 1}, ())
        if not opens_late:
            rig.copies.on_opened(4, 0, [])
            rig.write(4, base=0)
        rig.copies.on_opened(4, 0, [])
        assert rig.broken_rules == ([] if opens_late else ["I5"])


def test_i22_local_delete_of_records_that_are_not_cold_is_reported() -> None:
    rig = make_three_copies(3)
    rig.copies.on_cold_end(10)
    rig.copies.on_local_delete(1, 10)
    assert rig.broken_rules == []
    rig.copies.on_local_delete(3, 20)
    assert rig.broken_rules == ["I22"]
    rig.copies.on_log_start(20, [Retention(retention_ms=0)], 1, 0)
    rig.copies.on_local_delete(2, 20)
    assert rig.broken_rules == ["I22"]


def test_i22_log_start_that_retention_forbids_is_reported() -> None:
    rig = make_three_copies(3)
    rig.copies.on_log_start(20, [Retention(retention_ms=0)], 1, 0)
    rig.copies.on_log_start(10, [Retention()], 1, 0)
    assert rig.broken_rules == [] and rig.copies.log_start == 20
    rig.copies.on_log_start(30, [Retention(retention_ms=1)], 1, 0)
    assert rig.broken_rules == ["I22"]


def test_i22_lost_tail_of_a_leader_counts_for_retention() -> None:
    rig = ModelRig()
    for base in (0, 10):
        for node in (1, 2, 3):
            rig.copies.on_append(node, batch(base)._replace(size=100))
    rig.commit(20)
    rig.copies.on_append(1, batch(20)._replace(size=50))
    rig.copies.on_truncated(1, 20, why="divergence")
    rig.copies.on_log_start(10, [Retention(retention_bytes=150)], 0, 0)
    assert rig.broken_rules == []
    rig.copies.on_log_start(20, [Retention(retention_bytes=51)], 0, 0)
    assert rig.broken_rules == ["I22"]


def test_i16_follower_of_an_earlier_leader_is_reported() -> None:
    rig = make_three_copies(1)
    rig.copies.on_follow(2, 3)
    rig.copies.on_follow(2, 3)
    rig.copies.on_follow(3, 2)
    assert rig.broken_rules == []
    rig.copies.on_follow(2, 2)
    assert rig.broken_rules == ["I16"]


def test_r5_leader_deposed_before_its_begin_may_begin_below_the_cold_end() -> None:
    rig = make_three_copies(2)
    rig.change_partition(2, 2, (1, 2, 3))
    rig.copies.on_cold_end(20)
    rig.copies.on_leader(3, "c", 1, 10)
    assert rig.broken_rules == []


def test_log_that_moved_is_the_copy_of_both_until_the_metadata_names_one() -> None:
    rig = make_three_copies(2)
    rig.copies.on_moved(3, 1003, 4)
    assert rig.copies.copy(1003).agreed_end == rig.copies.copy(3).agreed_end == 20
    rig.change_partition(1, 1, (1, 2), (3,), live=(1, 2))
    assert rig.copies.has_all_committed(1003) and rig.broken_rules == []
    taken = PartitionImage((1, 2, 1003), 1, 2, (1, 2), (1003,))
    rig.copies.on_partition_change(taken, (1, 2, 1003), LIVES | {1003: 5})
    assert rig.broken_rules == [] and not rig.copies.has_all_committed(3)
    rig.copies.on_truncated(1003, 10, why="nothing")
    assert rig.broken_rules, "the committed end of the log is gone"


def test_replica_that_takes_a_place_without_the_log_breaks_a_rule() -> None:
    rig = make_three_copies(2)
    taken = PartitionImage((1, 2, 1003), 1, 2, (1, 2), (1003,))
    rig.copies.on_partition_change(taken, (1, 2, 1003), LIVES | {1003: 5})
    assert rig.broken_rules == ["I10"]

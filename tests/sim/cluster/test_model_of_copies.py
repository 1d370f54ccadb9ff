"""The reference model of a partition's copies: each rule, once kept and once broken."""

from __future__ import annotations

from tests.sim.cluster.expiry import Batch, Keeps
from tests.sim.cluster.model_of_copies import Copies
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import Loss, PartitionImage

LIVES = {1: 1, 2: 1, 3: 1}
LIVE = (1, 2, 3)


def batch(base: int, epoch: int = 0, crc: int = 0) -> Batch:
    return Batch(base, base + 9, epoch, crc or base * 100 + epoch)


class Told:
    """A partition on brokers 1 to 3 under min.insync.replicas 2, with what was found wrong."""

    def __init__(self) -> None:
        self.red: list[str] = []
        self.now = 0
        self.copies = Copies("t-0", lambda rule, what: self.red.append(rule), lambda: self.now)
        self.settle(1, 0, (1, 2, 3))
        self.copies.leads(1, "a", 0, 0)

    def settle(
        self,
        leader: int,
        epoch: int,
        isr: tuple[int, ...],
        elr: tuple[int, ...] = (),
        last_known: tuple[int, ...] = (),
        live: tuple[int, ...] = LIVE,
        lives: dict[int, int] = LIVES,
        between: tuple[int, ...] = (),
        loss: Loss | None = None,
        unclean: bool = False,
    ) -> None:
        image = PartitionImage((1, 2, 3), leader, epoch, isr, elr, loss, last_known=last_known)
        self.copies.settled(image, live, lives, between, unclean=unclean)

    def write(self, *nodes: int, base: int, epoch: int = 0) -> None:
        for node in nodes:
            self.copies.appended(node, batch(base, epoch))

    def commit(self, upto: int, node: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1, 2, 3)) -> None:
        self.copies.watermark(node, epoch, upto, isr, 2)

    def damage(self, node: int, *kept: Batch, proved: bool = False) -> None:
        self.copies.damaged(node, 0, kept, LIVES[node], proved=proved)


def three_of(count: int) -> Told:
    """`count` batches on all three, committed."""
    told = Told()
    for number in range(count):
        told.write(1, 2, 3, base=number * 10)
    told.commit(count * 10)
    assert told.red == [] and told.copies.committed_end == count * 10
    return told


def test_a_whole_story_breaks_no_rule() -> None:
    told = three_of(2)
    told.write(1, 2, base=20)
    told.settle(1, 0, (1, 2))
    told.commit(30, isr=(1, 2))
    told.settle(2, 1, (2,), (1,), live=(2, 3))
    told.copies.leads(2, "b", 1, 30)
    told.write(2, 3, base=30, epoch=1)
    told.copies.cut(1, 30, why="nothing")
    assert told.red == ["I3"], "broker 3 wrote 30 at its end 20"


def test_what_lies_below_the_log_start_may_be_of_another_history() -> None:
    """All of the new epoch is deleted before a follower that has records of the old one asks: nothing parts them."""
    for start, red in ((30, []), (20, ["I10"])):
        told = three_of(2)
        told.write(3, base=20)
        told.settle(2, 1, (2,), (1,), live=(1, 2))
        told.copies.leads(2, "b", 1, 20)
        told.write(1, 2, base=20, epoch=1)
        told.settle(2, 1, (1, 2))
        told.commit(30, node=2, epoch=1, isr=(1, 2))
        told.copies.starts(start, [Keeps()], 0, 0, asked_to_go=start)
        told.settle(2, 1, (1, 2, 3))
        assert told.red == red


def test_i3_a_log_has_no_gap() -> None:
    told = three_of(1)
    told.write(2, base=20)
    assert told.red == ["I3"]


def test_i5_a_start_finds_what_its_disk_held() -> None:
    told = three_of(2)
    told.copies.opened(1, 0, [batch(0), batch(10)])
    assert told.red == []
    told.copies.opened(1, 0, [batch(0)])
    assert told.red == ["I5"]


def test_i5_after_a_power_cut_the_rest_may_be_gone_but_what_was_fsynced() -> None:
    told = three_of(2)
    told.damage(1, batch(0), batch(10))
    told.copies.opened(1, 0, [batch(0)])
    assert told.red == []
    told.damage(2, batch(0), batch(10), proved=True)
    told.copies.opened(2, 0, [batch(0)])
    assert told.red == ["I5"]


def test_i5_what_is_committed_once_stays_so() -> None:
    told = three_of(1)
    told.settle(2, 1, (2, 3))
    told.copies.leads(2, "b", 1, 10)
    told.write(2, 3, base=10, epoch=1)
    told.commit(20, 2, 1, (2, 3))
    told.write(1, base=10)
    told.copies.watermark(1, 0, 20, (1,), 1)
    assert told.red == ["I5", "I6"]


def test_i6_a_high_watermark_covers_what_all_in_sync_have() -> None:
    told = three_of(1)
    told.write(1, 2, base=10)
    told.commit(20)
    assert told.red == ["I6"]


def test_i6_whom_the_metadata_log_took_out_a_leader_may_still_count() -> None:
    told = Told()
    told.settle(1, 0, (1, 2))
    told.write(1, 2, base=0)
    told.commit(10)
    assert told.red == []


def test_i6_a_high_watermark_never_goes_back() -> None:
    told = three_of(2)
    told.commit(10)
    assert told.red == ["I6"]


def test_i6_a_high_watermark_stays_within_the_log() -> None:
    told = three_of(1)
    told.commit(20)
    assert told.red[0] == "I6"


def test_r3_a_high_watermark_needs_enough_in_sync() -> None:
    told = three_of(1)
    told.settle(1, 0, (1,), (2,))
    told.write(1, base=10)
    told.commit(20, isr=(1,))
    assert told.red == ["R3"]


def test_i8_an_epoch_has_one_leader() -> None:
    told = three_of(1)
    told.copies.leads(1, "a", 0, 10)
    assert told.red == []
    told.copies.leads(2, "b", 0, 10)
    assert told.red == ["I8"]


def test_i8_a_leader_does_not_change_within_an_epoch() -> None:
    told = three_of(1)
    told.settle(2, 0, (1, 2, 3))
    assert told.red == ["I8"]


def test_i9_who_is_elected_has_all_that_is_committed() -> None:
    told = three_of(1)
    told.write(1, 2, base=10)
    told.settle(1, 0, (1, 2))
    told.commit(20, isr=(1, 2))
    told.settle(3, 1, (3,))
    assert told.red == ["I10", "I10"], "3 has not everything, and 1 and 2 went for it"
    told.red.clear()
    told.copies.leads(3, "c", 1, 10)
    assert told.red == [], "by then nobody in sync holds it: that was said already"


def test_i9_the_log_itself_counts_not_its_length() -> None:
    told = three_of(1)
    told.write(3, base=10, epoch=7)
    told.write(1, 2, base=10)
    told.settle(1, 0, (1, 2))
    told.commit(20, isr=(1, 2))
    told.copies.leads(3, "c", 1, 20)
    assert told.red == ["I9"]


def test_i10_a_member_has_all_that_is_committed() -> None:
    told = three_of(1)
    told.write(1, 2, base=10)
    told.settle(1, 0, (1, 2))
    told.commit(20, isr=(1, 2))
    told.settle(1, 0, (1, 2, 3))
    assert told.red == ["I10"]


def test_i10_the_last_whole_copy_does_not_leave_for_one_that_is_known_to_lack() -> None:
    for life, red in ((1, []), (2, ["I10"])):
        told = three_of(1)
        told.settle(1, 0, (1, 2))
        told.damage(2)
        told.settle(2, 1, (2,), live=(2, 3), lives=LIVES | {2: life})
        assert told.red == red, "damage that nobody knows of yet is forgiven"


def test_i10_who_died_before_it_believed_its_directory_is_doubted_again() -> None:
    """A power cut took nothing of the last member's log. It led of last resort, told the loss or not, and was killed.
    Its next start has to doubt the log again, unless the broker had believed its directory by then."""
    for loss in (None, Loss(2, 20, 0)):
        for believed, full, proved, red in (
            (False, False, False, []), (True, False, False, ["I10"]),
            (False, False, True, ["I10"]), (False, True, True, []),
        ):  # fmt: skip
            told = three_of(2)
            told.settle(1, 0, (1,))
            told.damage(1, batch(0), batch(10), proved=proved)
            again = LIVES | {1: 2}
            told.settle(NO_LEADER, 1, (), (), (1,), lives=again, loss=Loss(1, 20, 0))
            told.red.clear()
            told.settle(1, 2, (1,), lives=again, loss=loss)
            if believed:
                told.copies.believed(1)
            else:
                told.copies.died_in_doubt(1, 2, full=full)
            told.settle(NO_LEADER, 2, (), (1,), live=(2, 3), lives=again, loss=loss)
            assert told.red == [], "it is eligible while it is away"
            told.settle(NO_LEADER, 2, (), (), (1,), lives=again | {1: 3}, loss=loss)
            assert told.red == red, (loss, believed, full, proved)


def test_i10_a_leader_is_in_sync_and_all_in_sync_are_live() -> None:
    for isr, live, red in (((1, 2), (1, 2), []), ((1, 2), (1, 3), ["I10"]), ((2, 3), LIVE, ["I10"])):
        told = three_of(1)
        told.settle(1, 0, isr, live=live)
        assert told.red == red


def test_i10_sets_are_disjoint_and_of_replicas() -> None:
    told = three_of(1)
    told.settle(1, 0, (1, 2), (2,))
    assert told.red == ["I10"]


def test_r1_who_joined_and_lost_power_before_anybody_wrote_so_has_what_it_fsynced() -> None:
    for proved in (True, False):
        told = three_of(1)
        told.settle(1, 0, (1, 2))
        told.damage(3)
        told.settle(1, 0, (1, 2), lives={**LIVES, 3: 2})
        told.write(3, base=0)
        told.copies.damaged(3, 0, [batch(0)], 2, proved=proved)
        told.settle(1, 0, (1, 2, 3), lives={**LIVES, 3: 2})
        told.settle(1, 0, (1, 2), (3,), lives={**LIVES, 3: 3})
        assert told.red == ([] if proved else ["R1"])


def test_i10_the_last_of_a_move_leaves_for_one_that_joins_with_all_that_is_committed() -> None:
    for upto in (20, 10):
        told = three_of(2)
        told.settle(1, 0, (1, 2))
        told.damage(3)
        told.settle(1, 0, (1,), lives={**LIVES, 3: 2})
        for base in range(0, upto, 10):
            told.write(3, base=base)
        told.settle(3, 1, (3,), lives={**LIVES, 3: 2})
        assert told.red == ([] if upto == 20 else ["I10"])


def test_r1_who_joins_and_comes_back_whole_within_one_slot_is_eligible() -> None:
    for lives in (3, 2):
        told = three_of(1)
        told.settle(1, 0, (1, 2))
        told.damage(3, batch(0))
        told.settle(1, 0, (1, 2), (3,), lives={**LIVES, 3: lives})
        assert told.red == ([] if lives == 3 else ["R1"])


def test_r1_who_joins_and_is_fenced_within_one_slot_is_eligible() -> None:
    """By the life that it joined in: what hurt it came before."""
    for between in ((1, 2, 3), ()):
        told = three_of(1)
        told.settle(1, 0, (1, 2))
        told.damage(3, batch(0))
        told.settle(1, 0, (1, 2), (3,), lives={**LIVES, 3: 2}, between=between)
        assert told.red == ([] if between else ["R1"])


def test_r1_who_comes_back_unproved_is_not_eligible() -> None:
    told = three_of(1)
    told.damage(2, batch(0))
    told.settle(1, 0, (1, 3), (2,))
    assert told.red == [], "the cluster does not know yet"
    told.settle(1, 0, (1, 3), (2,), lives=LIVES | {2: 2})
    assert told.red == ["R1"]


def test_r1_a_clean_stop_outlives_a_power_cut() -> None:
    told = three_of(1)
    told.copies.stopped(2)
    told.damage(2, batch(0))
    told.settle(1, 0, (1, 3), (2,), lives=LIVES | {2: 2})
    assert told.red == []


def test_r2_who_joined_after_damage_counts_again() -> None:
    told = three_of(2)
    told.damage(2, batch(0))
    again = LIVES | {2: 2}
    told.settle(1, 0, (1, 3), lives=again)
    told.settle(1, 0, (1, 2, 3), lives=again)
    assert told.red == ["I10"], "it lacks the second batch"
    told.red.clear()
    told.write(2, base=10)
    told.settle(1, 0, (1, 2, 3), lives=again)
    assert told.red == [] and told.copies.copy(2).proved


def test_r4_of_unproved_members_the_one_with_most_is_elected() -> None:
    for winner, red in ((1, []), (2, ["R4"])):
        told = three_of(3)
        told.damage(1, batch(0), batch(10))
        told.damage(2, batch(0))
        told.damage(3)
        again = {1: 2, 2: 2, 3: 2}
        told.settle(NO_LEADER, 1, (), (), (1, 2, 3), lives=again)
        told.settle(winner, 2, (winner,), lives=again)
        assert told.red == red


def test_a_budget_that_is_used_up_forgives_from_where_nothing_is_held() -> None:
    told = three_of(3)
    told.now = 5
    told.damage(1, batch(0), batch(10))
    assert not told.copies.may_be_gone(25, 0), "2 and 3 hold it"
    told.damage(2)
    told.damage(3, batch(0))
    assert told.copies.may_be_gone(25, 0) and told.copies.may_be_gone(20, 5)
    assert not told.copies.may_be_gone(15, 0) and not told.copies.may_be_gone(25, 6)


def test_what_is_cold_is_never_lost() -> None:
    told = three_of(2)
    told.copies.cold(10)
    for node in (1, 2, 3):
        told.damage(node)
    assert told.copies.may_be_gone(10, 0) and not told.copies.may_be_gone(9, 0)


def test_r5_no_epoch_begins_below_what_is_cold() -> None:
    told = three_of(2)
    told.copies.cold(20)
    told.copies.restarted(2, 20)
    told.copies.leads(2, "b", 1, 20)
    assert told.red == []
    told.copies.leads(3, "c", 2, 10)
    assert told.red == ["R5"]


def test_i22_what_is_local_goes_only_when_it_is_cold_or_expired() -> None:
    told = three_of(3)
    told.copies.cold(10)
    told.copies.dropped(1, 10)
    assert told.red == []
    told.copies.dropped(3, 20)
    assert told.red == ["I22"]
    told.copies.starts(20, [Keeps(retention_ms=0)], 1, 0)
    told.copies.dropped(2, 20)
    assert told.red == ["I22"]


def test_i22_a_log_starts_only_where_retention_lets_it() -> None:
    told = three_of(3)
    told.copies.starts(20, [Keeps(retention_ms=0)], 1, 0)
    told.copies.starts(10, [Keeps()], 1, 0)
    assert told.red == [] and told.copies.log_start == 20
    told.copies.starts(30, [Keeps(retention_ms=1)], 1, 0)
    assert told.red == ["I22"]


def test_i22_what_a_leader_may_have_counted_and_lost_counts() -> None:
    told = Told()
    for base in (0, 10):
        for node in (1, 2, 3):
            told.copies.appended(node, batch(base)._replace(size=100))
    told.commit(20)
    told.copies.appended(1, batch(20)._replace(size=50))
    told.copies.cut(1, 20, why="divergence")
    told.copies.starts(10, [Keeps(retention_bytes=150)], 0, 0)
    assert told.red == []
    told.copies.starts(20, [Keeps(retention_bytes=51)], 0, 0)
    assert told.red == ["I22"]


def test_i16_who_obeyed_a_leader_obeys_no_earlier_one() -> None:
    told = three_of(1)
    told.copies.obeys(2, 3)
    told.copies.obeys(2, 3)
    told.copies.obeys(3, 2)
    assert told.red == []
    told.copies.obeys(2, 2)
    assert told.red == ["I16"]


def test_r5_who_was_deposed_before_it_could_begin_may_begin_below() -> None:
    told = three_of(2)
    told.settle(2, 2, (1, 2, 3))
    told.copies.cold(20)
    told.copies.leads(3, "c", 1, 10)
    assert told.red == []

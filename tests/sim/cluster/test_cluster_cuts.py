"""I7 and I10 in the reference model: what is committed is not cut away, and not left behind, but where that is a loss
of its own."""

from __future__ import annotations

from tests.sim.cluster.test_model_of_copies import LIVES, ModelRig, batch, make_three_copies
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import Loss


def test_i7_what_is_committed_is_not_cut() -> None:
    told = make_three_copies(2)
    told.copies.on_truncated(3, 10, why="divergence")
    assert told.broken_rules == ["I7"]


def test_i7_a_copy_that_counts_for_nobody_may_follow_who_led_before() -> None:
    """Broker 1 was cut off, and removed 2 and 3 from the ISR; then 3 led, and 1 followed it. Broker 2 only has older
    news."""
    told = make_three_copies(1)
    told.write(2, 3, base=10)
    told.change_partition(3, 2, (1, 3))
    told.copies.on_leader(3, "c", 2, 20)
    told.write(1, base=10)
    told.commit(20, node=3, epoch=2, isr=(1, 3))
    told.copies.on_follow(2, 1)
    told.copies.on_truncated(2, 10, why="divergence")
    assert told.broken_rules == []


def test_i7_nor_is_it_cut_by_who_obeys_the_newest_leader() -> None:
    told = make_three_copies(2)
    told.change_partition(1, 1, (1, 3))
    told.copies.on_leader(1, "a", 1, 20)
    told.copies.on_follow(2, 1)
    told.copies.on_truncated(2, 10, why="divergence")
    assert told.broken_rules == ["I7"]


def test_i10_who_joined_and_came_back_within_one_slot_was_relied_on_before_it_was_hurt() -> None:
    """The end of a move: broker 3 joined, 1 and 2 left, and 3, whose power had failed, is there again."""
    for between in ((1, 2, 3), ()):
        told = make_three_copies(1)
        told.change_partition(1, 0, (1, 2))
        told.damage(3)
        told.change_partition(3, 2, (3,), lives={**LIVES, 3: 2}, isr_within_slot=between)
        assert ("I10" in told.broken_rules) is (not between)


def test_i10_who_came_back_unproved_within_one_slot_was_relied_on_by_who_left_in_it() -> None:
    """Broker 1 stops and leaves the in-sync set to 3, whose power had failed, and 3 is there again."""
    for between, life in (((1, 3), 2), ((1, 3), 3), ((), 2)):
        told = make_three_copies(1)
        told.change_partition(3, 0, (1, 3))
        told.damage(3)
        told.change_partition(NO_LEADER, 1, (), lives={**LIVES, 3: life}, isr_within_slot=between)
        assert ("I10" in told.broken_rules) is (not between)


def test_i6_what_a_leader_knows_to_be_committed_from_before_is_so_again_after_an_unclean_election() -> None:
    """Broker 3 has ten records, broker 2 led without any of them, and now 3 leads again."""
    told = make_three_copies(1)
    told.change_partition(2, 1, (2,), live=(2,), loss=Loss(1, 0, 0), unclean=True)
    told.copies.copy(2).replace(0, [])
    told.copies.on_leader(2, "b", 1, 0)
    assert told.copies.committed_end == 0
    told.change_partition(3, 2, (3,), live=(3,), loss=Loss(2, 0, 0), unclean=True)
    told.copies.on_leader(3, "c", 2, 10, 10)
    assert told.copies.committed_end == 10 and told.broken_rules == []
    told = make_three_copies(2)
    told.change_partition(3, 1, (1, 3))
    told.write(3, base=20)
    told.copies.on_leader(3, "c", 1, 30, 30)
    assert told.broken_rules == ["I6"], "nobody committed it"


def test_i7_what_is_cold_may_go_for_a_restart() -> None:
    told = make_three_copies(2)
    told.copies.on_cold_end(20)
    told.copies.on_log_reset(3, 20)
    assert told.broken_rules == [] and told.copies.copy(3).end == 20


def test_i5_what_a_full_disk_kept_closed_is_judged_when_it_is_opened() -> None:
    told = ModelRig()
    told.write(1, base=0)
    told.damage(1, batch(0))
    told.change_partition(1, 1, (1,), lives={**LIVES, 1: LIVES[1] + 1})
    told.copies.on_opened(1, 0, [])
    assert "I5" not in told.broken_rules
    told.write(1, base=0)
    told.copies.on_opened(1, 0, [])
    assert "I5" in told.broken_rules

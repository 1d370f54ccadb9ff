"""Transitions of ISR, ELR and leader of a partition, by example."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiered.controller import partition_transitions
from tiered.controller.partition_transitions import PartitionContext
from tiered.controller.requests import InSync, IsrChange
from tiered.errors import Code, InvariantViolation
from tiered.ids import TopicId
from tiered.metadata.changes import NO_LEADER, LossReported, PartitionChanged
from tiered.metadata.parts.topics import End, Loss, PartitionImage

T = TopicId("t")
ALL = (1, 2, 3)


def context(*live: int, min_isr: int = 2, unclean: bool = False) -> PartitionContext:
    return PartitionContext(frozenset(live), min_isr, unclean, 1000)


def image(leader: int, epoch: int, isr: tuple[int, ...], elr: tuple[int, ...] = ()) -> PartitionImage:
    return PartitionImage(ALL, leader, epoch, isr, elr)


def waiting(last_known: tuple[int, ...], *ends: End, elr: tuple[int, ...] = ()) -> PartitionImage:
    return PartitionImage(ALL, NO_LEADER, 4, (), elr, last_known=last_known, ends=ends)


def test_live_replicas_are_in_sync_with_a_new_partition() -> None:
    assert partition_transitions.new_partition(ALL, context(2, 3)) == image(2, 0, (2, 3))
    assert partition_transitions.new_partition(ALL, context()) == image(NO_LEADER, 0, ())


def test_replica_that_leaves_a_large_isr_is_not_eligible() -> None:
    assert partition_transitions.remove_brokers(image(1, 0, ALL), (3,), context(1, 2)) == image(1, 0, (1, 2))
    assert partition_transitions.remove_brokers(image(1, 0, ALL), (1,), context(2, 3)) == image(2, 1, (2, 3))


def test_replica_that_leaves_a_small_isr_stays_eligible() -> None:
    one = partition_transitions.remove_brokers(image(1, 0, (1, 2)), (2,), context(1, 3))
    assert one == image(1, 0, (1,), (2,))
    none = partition_transitions.remove_brokers(one, (1,), context(3))
    assert none == image(NO_LEADER, 0, (), (2, 1))
    assert partition_transitions.remove_brokers(none, (3,), context()) is none


def test_brokers_that_leave_at_once_stay_eligible_together() -> None:
    """One after the other, only the last one could lead again, and it may be the one that is gone for good."""
    none = partition_transitions.remove_brokers(image(1, 0, ALL), ALL, context())
    assert (none.leader, none.isr, none.elr) == (NO_LEADER, (), ALL)
    back = partition_transitions.reevaluate(none, context(2, min_isr=1))
    assert (back.leader, back.isr, back.elr) == (2, (2,), ())  # it commits alone: the others lack that
    waiting_for_more = partition_transitions.reevaluate(none, context(2))
    assert (waiting_for_more.leader, waiting_for_more.isr, waiting_for_more.elr) == (2, (2,), (1, 3))
    few = partition_transitions.remove_brokers(image(1, 0, ALL), (1, 2), context(3, min_isr=2))
    assert (few.leader, few.isr, few.elr) == (3, (3,), (1, 2))
    enough = partition_transitions.remove_brokers(image(1, 0, ALL), (1, 2), context(3, min_isr=1))
    assert (enough.leader, enough.isr, enough.elr) == (3, (3,), ())


def test_eligible_replica_leads_if_no_isr_member_can() -> None:
    assert partition_transitions.remove_brokers(image(1, 0, (1,), (2, 3)), (1,), context(3)) == image(
        3, 1, (3,), (2, 1)
    )
    assert partition_transitions.reevaluate(image(NO_LEADER, 0, (), (2, 1)), context(1)) == image(1, 1, (1,), (2,))


def test_minimum_above_the_number_of_replicas_means_all() -> None:
    both = PartitionImage((1, 2), 1, 0, (1, 2))
    assert partition_transitions.remove_brokers(both, (2,), context(1, min_isr=3)) == PartitionImage(
        (1, 2), 1, 0, (1,), (2,)
    )
    alone = PartitionImage((1,), NO_LEADER, 0, (), (1,))
    assert partition_transitions.reevaluate(alone, context(1, min_isr=3)) == PartitionImage((1,), 1, 1, (1,))


def test_isr_that_is_large_enough_clears_the_elr() -> None:
    assert partition_transitions.reevaluate(image(1, 0, (1,), (2,)), context(1, 3, min_isr=1)) == image(1, 0, (1,))
    assert partition_transitions.reevaluate(image(NO_LEADER, 0, (), (1, 2)), context(1, min_isr=1)) == image(1, 1, (1,))
    old = image(1, 0, (1,), (2,))
    assert partition_transitions.reevaluate(old, context(1, 3)) is old


def test_new_incarnation_is_removed_from_the_isr() -> None:
    """R1; the leader epoch moves only with the leader."""
    assert partition_transitions.register_broker(image(1, 0, ALL), 2, None, context(*ALL)) == image(1, 0, (1, 3))
    assert partition_transitions.register_broker(image(1, 0, ALL), 1, None, context(*ALL)) == image(2, 1, (2, 3))
    assert partition_transitions.register_broker(image(1, 0, (1, 2)), 1, None, context(*ALL)) == image(2, 1, (2,), (1,))
    assert partition_transitions.register_broker(image(1, 0, (1, 2)), 1, End(1, 0, 9), context(*ALL)) == image(
        2, 1, (2,)
    )
    assert partition_transitions.register_broker(image(1, 0, (1,), (2,)), 2, End(2, 0, 9), context(1, 2)) == image(
        1, 0, (1,)
    )
    assert partition_transitions.register_broker(image(1, 0, (1,), (2,)), 2, None, context(1, 2)) == image(
        1, 0, (1,), (2,)
    )
    for old in (image(1, 0, (1,)), PartitionImage((1,), 1, 0, (1,))):
        assert partition_transitions.register_broker(old, 2, None, context(*ALL)) is old


def test_only_last_known_member_leads_at_once() -> None:
    """It reports the records that its own log lacks."""
    alone = image(NO_LEADER, 4, (), (2,))
    assert partition_transitions.register_broker(alone, 2, End(2, 3, 9), context(2)) == image(2, 5, (2,))
    assert partition_transitions.register_broker(alone, 2, None, context(1, 2)) == image(2, 5, (2,))


def test_ends_of_all_live_replicas_are_awaited_before_a_loss() -> None:
    """Two intact logs must not be lost for one lost disk.

    The loss begins at the end of the elected log if its last record is of the last leader epoch. Otherwise it begins at
    0: older records may lie where later ones were lost.
    """
    alone = image(NO_LEADER, 4, (), (2,))
    back = partition_transitions.register_broker(alone, 2, End(2, -1, 0), context(*ALL))
    assert back == waiting((2,), End(2, -1, 0)) and partition_transitions.awaited_replicas(back, frozenset(ALL)) == {
        1,
        3,
    }
    one = partition_transitions.report_end(back, End(1, 4, 7), context(*ALL))
    assert one.leader == NO_LEADER and partition_transitions.awaited_replicas(one, frozenset(ALL)) == {3}
    assert partition_transitions.report_end(one, End(1, 4, 8), context(*ALL)) is one, "each says it once"
    assert partition_transitions.report_end(one, End(3, 4, 6), context(*ALL)) == replace(
        image(1, 5, (1,)), loss=Loss(5, 7, 1000)
    )
    assert partition_transitions.remove_brokers(one, (3,), context(1, 2)).leader == 1, "nobody waits for who is gone"
    older = partition_transitions.report_end(back, End(1, 3, 90), context(1, 2))
    assert older == replace(image(1, 5, (1,)), loss=Loss(5, 0, 1000))
    better = partition_transitions.register_broker(alone, 2, End(2, 4, 5), context(1, 2))
    assert partition_transitions.report_end(better, End(1, 3, 90), context(1, 2)) == image(2, 5, (2,)), (
        "it reports itself what it lacks"
    )


def test_no_end_is_awaited_before_the_return_of_all_last_known() -> None:
    both = waiting((1, 2), End(1, 3, 9), End(2, 3, 8))
    assert partition_transitions.awaited_replicas(both, frozenset({1, 3})) == frozenset()
    assert partition_transitions.report_end(both, End(3, 3, 10), context(1, 3)) is both
    assert (
        partition_transitions.awaited_replicas(waiting((1,), End(1, 3, 9), elr=(2,)), frozenset({1, 3})) == frozenset()
    )
    assert partition_transitions.awaited_replicas(image(1, 4, (1,)), frozenset(ALL)) == frozenset()


def test_new_incarnation_of_an_awaited_replica_reports_its_end_again() -> None:
    told = partition_transitions.report_end(waiting((2,), End(2, -1, 0)), End(1, 4, 7), context(*ALL))
    assert partition_transitions.register_broker(told, 1, None, context(*ALL)) == waiting((2,), End(2, -1, 0))
    assert partition_transitions.register_broker(told, 1, End(1, 4, 5), context(*ALL)).ends == (
        End(2, -1, 0),
        End(1, 4, 5),
    )


def test_first_replica_leads_if_no_record_was_ever_stored() -> None:
    assert partition_transitions.register_broker(image(NO_LEADER, 0, ()), 2, End(2, -1, 0), context(2)) == image(
        2, 1, (2,)
    )


def test_most_complete_log_of_several_last_known_leads() -> None:
    """R4: an eligible replica comes first, no replica that may have more is skipped, and the loss is recorded."""
    old = image(NO_LEADER, 4, (), (1, 2, 3))
    one = partition_transitions.register_broker(old, 1, End(1, 3, 9), replace(context(1), min_isr=3))
    assert one == waiting((1,), End(1, 3, 9), elr=(2, 3))
    two = partition_transitions.register_broker(one, 2, End(2, 4, 5), context(1, 2))
    assert two == waiting((1, 2), End(1, 3, 9), End(2, 4, 5), elr=(3,))
    assert partition_transitions.register_broker(two, 3, None, context(*ALL)) == image(3, 5, (3,))
    assert partition_transitions.register_broker(two, 3, End(3, 4, 4), context(1, 3)) == waiting(
        (1, 2, 3), End(1, 3, 9), End(2, 4, 5), End(3, 4, 4)
    )
    elected = replace(image(2, 5, (2,)), loss=Loss(5, 5, 1000))
    assert partition_transitions.register_broker(two, 3, End(3, 4, 4), context(*ALL)) == elected
    assert partition_transitions.reevaluate(waiting((1, 2), End(1, 3, 9), End(2, 4, 5)), context(1, 2)) == elected


def test_log_without_a_record_leads_before_logs_that_end_below_its_start() -> None:
    emptied = End(3, -1, 68)
    for end, leader in ((End(2, 4, 45), 3), (End(2, 4, 67), 3), (End(2, 4, 68), 2), (End(2, 0, 80), 2)):
        assert partition_transitions.reevaluate(waiting((3,), emptied, end), context(2, 3)).leader == leader, end


def test_first_replica_leads_among_equal_ends() -> None:
    ends = (End(3, 3, 9), End(2, 3, 9))
    assert partition_transitions.reevaluate(waiting((2, 3), *ends), context(2, 3)).leader == 2


def test_second_return_replaces_the_reported_end() -> None:
    old = waiting((1, 2), End(1, 3, 9), End(2, 3, 8))
    again = partition_transitions.register_broker(old, 1, End(1, 3, 7), context(1))
    assert again.ends == (End(2, 3, 8), End(1, 3, 7))
    assert partition_transitions.register_broker(old, 1, None, context(1)) is old


def test_unclean_election_if_the_topic_allows_it() -> None:
    lost = replace(image(3, 1, (3,)), loss=Loss(1, 0, 1000))
    assert partition_transitions.remove_brokers(image(1, 0, (1,)), (1,), context(3, unclean=True)) == lost
    assert partition_transitions.reevaluate(image(NO_LEADER, 0, (), (1,)), context(3, unclean=True)) == lost
    assert partition_transitions.reevaluate(image(NO_LEADER, 0, (), (1, 3)), context(3, unclean=True)) == image(
        3, 1, (3,), (1,)
    )


def test_operator_ends_the_wait_of_an_election() -> None:
    old = waiting((1, 2), End(1, 3, 9), End(2, 3, 8))
    assert partition_transitions.elect_unclean(old, context(2, 3)) == replace(image(2, 5, (2,)), loss=Loss(5, 8, 1000))
    emptied = partition_transitions.elect_unclean(waiting((1, 2), End(1, 3, 9), End(2, -1, 0)), context(2, 3))
    assert isinstance(emptied, PartitionImage) and emptied.leader == 3, "an empty log comes last"
    assert partition_transitions.elect_unclean(old, context()) is Code.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert partition_transitions.elect_unclean(image(1, 0, (1,)), context(1)) is Code.ELECTION_NOT_NEEDED


def test_first_replica_is_preferred_if_it_is_in_sync() -> None:
    assert partition_transitions.elect_preferred(image(2, 3, (1, 2)), context(1, 2)) == image(1, 4, (1, 2))
    assert partition_transitions.elect_preferred(image(1, 3, (1, 2)), context(1, 2)) is Code.ELECTION_NOT_NEEDED
    assert (
        partition_transitions.elect_preferred(image(2, 3, (2,)), context(1, 2)) is Code.PREFERRED_LEADER_NOT_AVAILABLE
    )


def test_stopping_leader_hands_over_to_an_isr_member() -> None:
    assert partition_transitions.hand_over(image(1, 3, (1, 3)), 1, context(*ALL)) == image(3, 4, (1, 3))
    for old in (image(1, 3, (1,), (2,)), image(2, 3, (1, 2))):
        assert partition_transitions.hand_over(old, 1, context(*ALL)) is old


NUMBERS = {1: 11, 2: 22, 3: 33}


def isr_change(*isr: int, epoch: int = 5, partition_epoch: int = 7) -> IsrChange:
    return IsrChange(T, 0, epoch, partition_epoch, tuple(InSync(node, NUMBERS.get(node, 44)) for node in isr))


def test_isr_changes_are_granted() -> None:
    old = replace(image(1, 5, (1,), (3,)), partition_epoch=7)

    def granted(old: PartitionImage, *isr: int) -> PartitionImage | Code:
        return partition_transitions.alter_isr(old, 1, isr_change(*isr), NUMBERS, context(*ALL))

    assert granted(old, 2, 1) == replace(old, isr=(1, 2), elr=())
    three = replace(old, isr=ALL, elr=())
    assert granted(three, 1, 3) == replace(old, isr=(1, 3), elr=())
    assert granted(three, 1) == replace(old, isr=(1,), elr=(2, 3))
    same = granted(three, 3, 1, 2)
    assert same == three and same is not three, "a change: with it no earlier ISR change can be granted any more"
    assert partition_transitions.alter_isr(old, 1, isr_change(1, 2), NUMBERS, context(*ALL, min_isr=3)) == replace(
        old, isr=(1, 2)
    )


@pytest.mark.parametrize(
    ("node", "asked", "code"),
    [
        (1, isr_change(1, epoch=4), Code.FENCED_LEADER_EPOCH),
        (1, isr_change(1, epoch=6), Code.UNKNOWN_LEADER_EPOCH),
        (2, isr_change(2), Code.NOT_LEADER_OR_FOLLOWER),
        (1, isr_change(1, partition_epoch=6), Code.INVALID_UPDATE_VERSION),
        (1, isr_change(1, partition_epoch=8), Code.INVALID_UPDATE_VERSION),
        (1, isr_change(2), Code.INVALID_REQUEST),
        (1, isr_change(), Code.INVALID_REQUEST),
        (1, isr_change(1, 2, 2), Code.INVALID_REQUEST),
        (1, isr_change(1, 9), Code.INELIGIBLE_REPLICA),
        (1, isr_change(1, 3), Code.INELIGIBLE_REPLICA),
        (1, replace(isr_change(1), isr=(InSync(1, 11), InSync(2, 21))), Code.INELIGIBLE_REPLICA),
    ],
)
def test_isr_changes_are_refused(node: int, asked: IsrChange, code: Code) -> None:
    """Among them a member that is no replica, is not live, or is not the incarnation that fetched."""
    old = replace(image(1, 5, (1,)), partition_epoch=7)
    assert partition_transitions.alter_isr(old, node, asked, {1: 11, 2: 22, 9: 44}, context(1, 2)) is code


def test_changes_equal_those_in_the_log() -> None:
    old = waiting((1, 2), End(1, 3, 9), End(2, 3, 8))
    assert list(partition_transitions.to_changes(T, 0, old, old, context(2))) == []
    new = partition_transitions.elect_unclean(old, context(2))
    assert isinstance(new, PartitionImage)
    assert list(partition_transitions.to_changes(T, 0, old, new, context(2))) == [
        PartitionChanged(T, 0, 2, 5, (2,), ()),
        LossReported(T, 0, 5, 8, 1000),
    ]
    assert list(partition_transitions.to_changes(T, 1, waiting(()), old, context())) == [
        PartitionChanged(T, 1, NO_LEADER, 4, (), (), (1, 2), ((1, 3, 9), (2, 3, 8)))
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        image(1, 4, (1, 2)),
        image(2, 5, (1, 3)),
        image(1, 5, (1, 9)),
        image(1, 5, (1, 2), (2,)),
        image(1, 5, (1, 2), (3,)),
    ],
    ids=["an older epoch", "led from outside", "no replica", "in sync and eligible", "eligible without need"],
)
def test_invalid_transition_is_not_written(wrong: PartitionImage) -> None:
    with pytest.raises(InvariantViolation):
        list(partition_transitions.to_changes(T, 0, image(1, 5, (1, 2)), wrong, context(1, 2, 3, 9)))

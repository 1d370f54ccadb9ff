"""Reassignments of a partition (KIP-455), and the requests that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.controller.test_leaders import cluster, fence, incarnation, partition, topic_id
from tiered.controller import partition_transitions, requests
from tiered.controller.controller import Controller
from tiered.controller.partition_transitions import PartitionContext
from tiered.controller.requests import InSync, IsrChange, Move, Reassign
from tiered.errors import Code, Refused
from tiered.ids import TopicId, incarnation_number
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.topics import End, PartitionImage

T = TopicId("t")


def decide(shard: Controller, request: Any) -> Any:
    found = shard.decide(request, 1000)
    shard.apply(found.changes)
    return found.reply


def context(*live: int, unclean: bool = False) -> PartitionContext:
    return PartitionContext(frozenset(live), 2, unclean, 1000)


LIVE = context(1, 2, 3, 4)
OLD = PartitionImage((1, 2), 1, 5, (1, 2))


def joined(old: PartitionImage, *isr: int) -> PartitionImage:
    """Grants the leader's change to this ISR."""
    members = tuple(InSync(node, node) for node in isr)
    requested = IsrChange(T, 0, old.leader_epoch, old.partition_epoch, members)
    new = partition_transitions.alter_isr(old, old.leader, requested, {node: node for node in (1, 2, 3, 4)}, LIVE)
    assert isinstance(new, PartitionImage), new
    return new


def test_removed_replica_leaves_once_all_others_are_in_sync() -> None:
    moving = partition_transitions.start_reassignment(OLD, (3, 4), LIVE)
    assert moving == PartitionImage((3, 4, 1, 2), 1, 5, (1, 2), adding=(3, 4), removing=(1, 2))
    assert (moving.target_replicas, OLD.target_replicas, OLD.is_reassigning) == ((3, 4), (1, 2), False)
    one = joined(moving, 1, 2, 3)
    assert one == replace(moving, isr=(3, 1, 2)), "one of them is not enough"
    assert joined(one, 1, 2, 3, 4) == PartitionImage((3, 4), 3, 6, (3, 4))


def test_replica_leaves_under_the_next_leader_epoch() -> None:
    """The leader's knowledge of removed replicas must not count when they are added again with empty logs."""
    moving = partition_transitions.start_reassignment(OLD, (1, 3), LIVE)
    assert joined(moving, 1, 2, 3) == PartitionImage((1, 3), 1, 6, (1, 3))
    assert partition_transitions.start_reassignment(OLD, (1,), LIVE) == PartitionImage((1,), 1, 6, (1,)), (
        "at once, where nobody is added"
    )
    more = partition_transitions.start_reassignment(OLD, (1, 2, 3), LIVE)
    assert joined(more, 1, 2, 3) == PartitionImage((1, 2, 3), 1, 5, (1, 2, 3)), "nobody leaves"


def test_cancelled_reassignment_drops_ends_of_leaving_replicas() -> None:
    """Broker 3 was added, led, and lost its disk while the eligible replica was not live."""
    ends = (End(3, 6, 0),)
    waiting = PartitionImage(
        (3, 1, 2), NO_LEADER, 7, (), (1,), last_known=(3,), ends=ends, adding=(3,), removing=(2,)
    )  # fmt: skip
    stays = partition_transitions.cancel_reassignment(waiting, context(3))
    assert isinstance(stays, PartitionImage)
    assert (stays.replicas, stays.elr, stays.last_known, stays.ends) == ((1, 2), (1,), (), ())
    assert list(partition_transitions.to_changes(T, 0, waiting, stays, context(3)))


def test_another_order_of_replicas_is_no_reassignment() -> None:
    assert partition_transitions.start_reassignment(OLD, (2, 1), LIVE) == replace(OLD, replicas=(2, 1))
    assert partition_transitions.start_reassignment(OLD, (1, 2), LIVE) is OLD


def test_no_replica_leaves_while_a_remaining_one_is_behind() -> None:
    behind = PartitionImage((1, 2), 2, 5, (2,), (1,))
    moving = partition_transitions.start_reassignment(behind, (1,), LIVE)
    assert moving == PartitionImage((1, 2), 2, 5, (2,), (1,), removing=(2,))
    assert joined(moving, 1, 2) == PartitionImage((1,), 1, 6, (1,))


def test_election_during_a_reassignment_prefers_old_replicas() -> None:
    moving = partition_transitions.start_reassignment(OLD, (3,), LIVE)
    assert partition_transitions.remove_brokers(moving, (1,), context(2, 3, 4)) == replace(
        moving, leader=2, leader_epoch=6, isr=(2,), elr=(1,)
    )
    dead = replace(moving, leader=NO_LEADER, isr=(), elr=(1,))
    assert partition_transitions.elect_unclean(dead, context(3)) is Code.ELIGIBLE_LEADERS_NOT_AVAILABLE, (
        "who was added has nothing"
    )
    forced = partition_transitions.elect_unclean(dead, context(2, 3))
    assert isinstance(forced, PartitionImage) and (forced.leader, forced.is_reassigning) == (2, True)


def test_step_with_a_loss_removes_no_replica() -> None:
    """A replica with more records may return, and an operator may check first."""
    moving = PartitionImage((2, 1), NO_LEADER, 5, (), (1,), removing=(1,))
    forced = partition_transitions.elect_unclean(moving, context(2))
    assert isinstance(forced, PartitionImage) and forced.loss is not None
    assert (forced.leader, forced.replicas, forced.is_reassigning) == (2, (2, 1), True)


def test_reassignment_is_cancelled() -> None:
    moving = partition_transitions.start_reassignment(OLD, (3, 1), LIVE)
    assert moving.replicas == (3, 1, 2)
    assert partition_transitions.cancel_reassignment(moving, LIVE) == PartitionImage((1, 2), 1, 6, (1, 2))
    led_by_new = replace(moving, leader=3, leader_epoch=6, isr=(3, 1))
    assert partition_transitions.cancel_reassignment(led_by_new, LIVE) == PartitionImage((1, 2), 1, 7, (1,))
    assert partition_transitions.cancel_reassignment(OLD, LIVE) is Code.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize(
    "last",
    [
        PartitionImage((3, 1), 3, 6, (3,), (), adding=(3,)),
        PartitionImage((3, 1), NO_LEADER, 6, (), (3,), adding=(3,)),
        PartitionImage((3, 1), NO_LEADER, 6, (), (), last_known=(3,), adding=(3,)),
    ],
)
def test_reassignment_is_not_cancelled_if_only_added_replica_is_whole(last: PartitionImage) -> None:
    assert partition_transitions.cancel_reassignment(last, LIVE) is Code.INVALID_REPLICA_ASSIGNMENT


def moves(shard: Controller, *targets: tuple[int, ...] | None, other_counts: bool = True) -> list[Code | None]:
    asked = tuple(Move(topic_id(shard), p, target) for p, target in enumerate(targets))
    found = decide(shard, Reassign(asked, other_counts))
    return [each.code if each is not None else None for each in found]


def made() -> Controller:
    shard = cluster(1, 2, 3, 4)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2], [1, 2]]))
    return shard


def test_each_reassignment_is_decided_alone() -> None:
    shard = made()
    assert moves(shard, (2, 3), (9, 1), (1,)) == [
        None,
        Code.INVALID_REPLICA_ASSIGNMENT,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert (partition(shard).replicas, partition(shard).adding, partition(shard).removing) == ((2, 3, 1), (3,), (1,))
    assert not partition(shard, 1).is_reassigning
    requested = IsrChange(topic_id(shard), 0, 0, 1 + 1, tuple(member(node) for node in (1, 2, 3)))
    assert decide(shard, requests.AlterPartitions(1, incarnation(1), (requested,))) == (Code.NONE,)
    done = partition(shard)
    assert (done.replicas, done.leader, done.leader_epoch, done.isr) == ((2, 3), 2, 1, (2, 3))


def member(node: int) -> InSync:
    return InSync(node, incarnation_number(incarnation(node)))


@pytest.mark.parametrize("target", [(), (2, 2), (5,), (1, 4)], ids=["empty", "twice", "unknown", "away"])
def test_impossible_assignments_are_refused(target: tuple[int, ...]) -> None:
    shard = made()
    fence(shard, 4)
    before = shard.image
    assert moves(shard, target) == [Code.INVALID_REPLICA_ASSIGNMENT]
    assert shard.image.topics == before.topics


def test_partition_has_one_reassignment_at_a_time() -> None:
    shard = made()
    assert moves(shard, (3, 2)) == [None]
    assert moves(shard, (3, 2)) == [None], "said again"
    assert moves(shard, (4, 2)) == [Code.REASSIGNMENT_IN_PROGRESS]
    assert moves(shard, None, None) == [None, Code.NO_REASSIGNMENT_IN_PROGRESS]
    assert partition(shard).replicas == (2, 1)
    assert moves(shard, (4, 2)) == [None]
    twice = (Move(topic_id(shard), 1, (1,)), Move(topic_id(shard), 1, (2,)))
    assert [type(each) for each in decide(shard, Reassign(twice))] == [type(None), Refused]


def test_added_partitions_get_the_wanted_number_of_replicas() -> None:
    shard = made()
    assert moves(shard, (3, 4)) == [None]
    assert len(decide(shard, requests.CreatePartitions("t", 3)).partitions[2].replicas) == 2


def test_the_number_of_replicas_may_be_kept() -> None:
    shard = made()
    assert moves(shard, (1,), other_counts=False) == [Code.INVALID_REPLICATION_FACTOR]
    assert moves(shard, (1, 3), other_counts=False) == [None]


def test_replica_that_stays_need_not_be_live() -> None:
    shard = made()
    fence(shard, 2)
    assert moves(shard, (3, 2)) == [None]


def test_replica_moves_to_no_other_process_of_a_machine() -> None:
    """Both would count as in sync meanwhile, and one machine is lost at once."""
    shard = cluster(1, 2, 3)
    for process in (1, 2):
        node = 1 + 1000 * process
        decide(shard, requests.RegisterBroker(node, incarnation(node), "d", "", whole=True, process=process))
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2]]))
    for target in ((1001, 2), (1, 2, 1001)):
        [refused] = decide(shard, Reassign((Move(topic_id(shard), 0, target),)))
        assert isinstance(refused, Refused) and "1 and 1001 are processes of one machine" in refused.why
    assert decide(shard, Reassign((Move(topic_id(shard), 0, (2, 3)),))) == (None,)
    [refused] = decide(shard, Reassign((Move(topic_id(shard), 0, (2001, 3)),)))
    assert isinstance(refused, Refused)
    assert partition(shard).replicas == (2, 3, 1)

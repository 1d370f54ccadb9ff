"""Tests of the controller's decisions about brokers whose disk is full: moves, ISRs, elections, and the way back."""

from __future__ import annotations

import pytest

from tests.unit.controller.test_controller import decide, refusal
from tests.unit.controller.test_leaders import (
    TWO,
    cluster,
    incarnation,
    isr_change,
    partition,
    register,
    states,
    topic_id,
)
from tiered.config.settings import Settings
from tiered.controller import requests
from tiered.controller.controller import Controller
from tiered.controller.missing_replicas import MissingReplicas
from tiered.controller.partition_health import describe_out_of_sync
from tiered.controller.preferred_leaders import plan_preferred_leaders
from tiered.errors import Code
from tiered.metadata.changes import DISK_FULL, DISK_RECOVERING, DISK_USABLE


def report(shard: Controller, node: int, disk: str) -> object:
    return decide(shard, requests.ReportDisk(node, incarnation(node), disk))


def test_full_leader_hands_over_and_leaves_a_large_isr() -> None:
    shard = cluster(1, 2, 3)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2, 3]], configs=TWO))
    assert report(shard, 1, DISK_FULL) == 1
    assert states(shard) == (2, (2, 3), ()) and partition(shard).leader_epoch == 1
    assert (shard.image.brokers[1].disk, shard.image.brokers[1].moved_leaders) == (DISK_FULL, 1)
    assert describe_out_of_sync(shard.image, partition(shard)) == "broker 1 (disk full)"


def test_full_follower_leaves_an_isr_that_is_large_enough_at_once() -> None:
    shard = cluster(1, 2, 3)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2, 3]], configs=TWO))
    assert report(shard, 2, DISK_FULL) == 0, "no leadership moved"
    assert states(shard) == (1, (1, 3), ()) and partition(shard).leader_epoch == 0
    report(shard, 3, DISK_FULL)
    assert states(shard) == (1, (1, 3), ()), "without it, acks=all would be refused: it leaves by its lag"


def test_full_follower_leaves_once_another_replica_joins() -> None:
    shard = cluster(1, 2, 3)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2, 3]], configs=TWO))
    decide(shard, requests.AlterPartitions(1, incarnation(1), (isr_change(shard, 1, 2),)))
    report(shard, 2, DISK_FULL)
    assert states(shard) == (1, (1, 2), ())
    decide(shard, requests.AlterPartitions(1, incarnation(1), (isr_change(shard, 1, 2, 3),)))
    assert states(shard) == (1, (1, 3), ())


def test_full_leader_stays_in_an_isr_that_would_be_too_small() -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2]], configs=TWO))
    assert report(shard, 1, DISK_FULL) == 1
    assert states(shard) == (2, (1, 2), ())


def test_full_leader_keeps_leading_while_no_isr_member_has_room() -> None:
    shard = cluster(1, 2, 3)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2, 3]], configs=TWO))
    decide(shard, requests.CreateTopic("u", assignments=[[1]]))
    decide(shard, requests.HandOver(3, incarnation(3)))
    assert report(shard, 2, DISK_FULL) == 0
    assert report(shard, 1, DISK_FULL) == 0
    assert states(shard) == (1, (1, 2), ()) and partition(shard).leader_epoch == 0
    assert shard.image.topics["u"].partitions[0].leader == 1


def test_full_leader_hands_over_once_an_isr_member_has_room() -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2]]))
    for node in (2, 1):
        assert report(shard, node, DISK_FULL) == 0
    assert states(shard) == (1, (1,), ()), "the follower has left"
    report(shard, 2, DISK_RECOVERING)
    decide(shard, requests.AlterPartitions(1, incarnation(1), (isr_change(shard, 1, 2),)))
    assert states(shard) == (2, (2,), ())


def test_full_leader_hands_over_to_a_replica_that_joins_the_isr() -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2]]))
    decide(shard, requests.AlterPartitions(1, incarnation(1), (isr_change(shard, 1),)))
    assert report(shard, 1, DISK_FULL) == 0
    joins = requests.AlterPartitions(1, incarnation(1), (isr_change(shard, 1, 2),))
    assert decide(shard, joins) == (Code.NONE,)
    assert states(shard) == (2, (2,), ())


def test_broker_with_a_full_disk_joins_no_isr_until_it_has_room() -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2]]))
    report(shard, 1, DISK_FULL)
    assert states(shard) == (2, (2,), ())
    joins = isr_change(shard, 2, 1)
    assert decide(shard, requests.AlterPartitions(2, incarnation(2), (joins,))) == (Code.INELIGIBLE_REPLICA,)
    report(shard, 1, DISK_RECOVERING)
    assert decide(shard, requests.AlterPartitions(2, incarnation(2), (joins,))) == (Code.NONE,)
    assert states(shard) == (2, (1, 2), ())


def test_leaderships_return_only_to_a_usable_disk() -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2]], configs=TWO))
    report(shard, 1, DISK_FULL)
    place = (topic_id(shard), 0)
    elect = requests.ElectLeaders(True, (place,))
    assert decide(shard, elect) == ((*place, Code.PREFERRED_LEADER_NOT_AVAILABLE),)
    assert plan_preferred_leaders(shard.image) == ()
    report(shard, 1, DISK_RECOVERING)
    assert plan_preferred_leaders(shard.image) == ()
    report(shard, 1, DISK_USABLE)
    assert plan_preferred_leaders(shard.image) == (place,)


@pytest.mark.parametrize(("disk", "leader"), [(DISK_FULL, 3), (DISK_RECOVERING, 3), (DISK_USABLE, 2)])
def test_election_prefers_a_broker_whose_disk_is_usable(disk: str, leader: int) -> None:
    shard = cluster(1, 2, 3)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2, 3]], configs={"min.insync.replicas": "3"}))
    report(shard, 2, disk)
    decide(shard, requests.FenceBroker(1, incarnation(1)))
    assert states(shard) == (leader, (2, 3), (1,))
    decide(shard, requests.FenceBroker(3, incarnation(3)))
    assert partition(shard).leader == 2, "a full disk leads rather than nobody"


def test_new_partition_is_led_by_a_broker_with_room() -> None:
    shard = cluster(1, 2)
    report(shard, 1, DISK_FULL)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2]]))
    assert states(shard) == (2, (2,), ())


def test_disk_of_a_new_incarnation_counts_as_usable() -> None:
    shard = cluster(1, 2)
    report(shard, 1, DISK_FULL)
    decide(shard, requests.AnnounceBroker(1, incarnation(1), "h:1", {}))
    assert shard.image.bad_disk_ids() == {1}
    decide(shard, requests.RegisterBroker(1, incarnation(1, 1), "d", "", whole=True))
    assert not shard.image.bad_disk_ids()


def test_report_that_changes_nothing_writes_nothing() -> None:
    shard = cluster(1)
    assert shard.decide(requests.ReportDisk(1, incarnation(1), DISK_USABLE), 0).changes == ()
    assert refusal(shard, requests.ReportDisk(1, "other", DISK_FULL)) is Code.STALE_BROKER_EPOCH
    assert refusal(shard, requests.ReportDisk(1, incarnation(1), "odd")) is Code.INVALID_REQUEST


def test_new_partitions_avoid_a_full_disk_while_others_have_room() -> None:
    shard = cluster(1, 2, 3)
    report(shard, 2, DISK_FULL)
    decide(shard, requests.CreateTopic("t", 6, 2))
    assert all(2 not in partition(shard, p).replicas for p in range(6))
    decide(shard, requests.CreatePartitions("t", 9))
    assert all(2 not in partition(shard, p).replicas for p in range(9))
    report(shard, 2, DISK_RECOVERING)
    decide(shard, requests.CreatePartitions("t", 12))
    assert any(2 in partition(shard, p).replicas for p in range(9, 12))


def test_new_partition_on_a_full_disk_is_led_and_acknowledged_elsewhere() -> None:
    shard = cluster(1, 2, 3)
    report(shard, 1, DISK_FULL)
    decide(shard, requests.CreateTopic("t", 3, 3, configs=TWO))
    for p in range(3):
        found = partition(shard, p)
        assert sorted(found.replicas) == [1, 2, 3] and found.leader != 1 and 1 not in found.isr
    report(shard, 2, DISK_FULL)
    decide(shard, requests.CreateTopic("u", 1, 3, configs=TWO))
    [small] = shard.image.topics["u"].partitions
    assert small.leader == 3 and sorted(small.isr) == [1, 2, 3], "with fewer in sync, acks=all would be refused"
    report(shard, 3, DISK_FULL)
    decide(shard, requests.CreateTopic("v", 1, 1))
    assert shard.image.topics["v"].partitions[0].leader in (1, 2, 3)


def test_missing_replicas_wait_until_the_disk_has_room() -> None:
    settings = Settings(default_replication_factor=2)
    shard = cluster(1, settings=settings)
    decide(shard, requests.CreateTopic("t", 1))
    plan = MissingReplicas()
    assert not plan.is_needed(shard.image, settings)
    register(shard, 2)
    report(shard, 2, DISK_FULL)
    assert not plan.is_needed(shard.image, settings) and plan.plan(shard.image, settings) == ()
    report(shard, 2, DISK_RECOVERING)
    assert plan.is_needed(shard.image, settings)
    assert [each.replicas for each in plan.plan(shard.image, settings)] == [(1, 2)]

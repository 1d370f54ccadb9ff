"""Tests of the actions of one broker when the committed image changes."""

from __future__ import annotations

from tests.unit.controller.test_controller import controller, decide
from tiered.controller import requests
from tiered.ids import TopicId, TopicPartition
from tiered.metadata import changes as kinds
from tiered.metadata.changes import NO_LEADER, Change
from tiered.metadata.delta import Delta, Follow, Lead, compute_delta
from tiered.metadata.image import Image

T = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def broker(node_id: int, incarnation: str = "") -> kinds.BrokerRegistered:
    return kinds.BrokerRegistered(node_id, incarnation or f"i{node_id}", "d", "", "", 0)


def led_partition(partition: int, leader: int, epoch: int, *isr: int) -> kinds.PartitionChanged:
    return kinds.PartitionChanged(T, partition, leader, epoch, isr, ())


def image(*changes: Change) -> Image:
    """Returns two brokers and a topic of two partitions. Each broker leads one partition, and both are in sync in
    both."""
    topic = kinds.TopicCreated("t", T, ((1, 2), (2, 1)), {}, 0)
    return Image().apply(
        [broker(1), broker(2), topic, led_partition(0, 1, 0, 1, 2), led_partition(1, 2, 0, 2, 1), *changes], 0
    )


def test_delta_of_two_images_has_the_actions_of_the_broker() -> None:
    shard = controller(1, 2)
    start = shard.image
    decide(shard, requests.CreateTopic("t", 2, 1))
    created = shard.image
    topic_id = created.topics["t"].topic_id
    assert compute_delta(start, created, 1, "i1") == Delta(leaders=(Lead(FIRST, topic_id, 0, True),))
    assert compute_delta(start, created, 2, "i2") == Delta(leaders=(Lead(SECOND, topic_id, 0, True),))
    decide(shard, requests.AlterTopicConfigs("t", {"segment.ms": "5"}))
    decide(shard, requests.AlterBrokerConfigs(1, {"log.segment.bytes": "8388608"}))
    assert compute_delta(created, shard.image, 1, "i1") == Delta(configured_topics=("t",), broker_configs_changed=True)
    again = shard.image
    decide(shard, requests.RegisterBroker(1, "again", "d", ""))
    assert compute_delta(again, shard.image, 1, "again") == Delta(leaders=(Lead(FIRST, topic_id, 1, False),))
    decide(shard, requests.DeleteTopic("t"))
    assert compute_delta(again, shard.image, 1, "again") == Delta(dropped=(FIRST,))


def test_reported_loss_is_in_the_delta() -> None:
    shard = controller(1)
    decide(shard, requests.CreateTopic("t"))
    before, topic_id = shard.image, shard.image.topics["t"].topic_id
    decide(shard, requests.ReportLoss(topic_id, 0, 0, 7))
    found = compute_delta(before, shard.image, 1, "i1")
    assert [(tp, loss.from_offset) for tp, loss in found.loss_changes if loss is not None] == [(FIRST, 7)]
    before = shard.image
    decide(shard, requests.AcknowledgeLosses(((topic_id, 0, 0),)))
    assert compute_delta(before, shard.image, 1, "i1") == Delta(loss_changes=((FIRST, None),)), "or acknowledged"
    assert compute_delta(shard.image, shard.image, 1, "i1") == Delta()


def test_broker_follows_the_leaders_of_its_replicas() -> None:
    empty = Image().apply([broker(1), broker(2)], 0)
    assert compute_delta(empty, image(), 1, "i1") == Delta(
        leaders=(Lead(FIRST, T, 0, True),), followers=(Follow(SECOND, T, 2, 0, True),)
    )


def test_moved_leadership_is_resigned_by_one_and_taken_by_the_other() -> None:
    old = image()
    new = old.apply([led_partition(0, 2, 1, 2)], 1)
    assert compute_delta(old, new, 1, "i1") == Delta(resigned=(FIRST,), followers=(Follow(FIRST, T, 2, 1),))
    assert compute_delta(old, new, 2, "i2") == Delta(leaders=(Lead(FIRST, T, 1, False, was_in_sync=True),))


def test_was_in_sync_needs_another_leader_one_change_before() -> None:
    old = image()
    elected = led_partition(0, 2, 1, 2)
    two_steps = old.apply([led_partition(0, 1, 0, 1), elected], 1)  # out of sync, then elected all the same
    no_leader = old.apply([led_partition(0, NO_LEADER, 0)], 1)
    later = Image().apply([*(broker(node) for node in (1, 2, 3))], 0)
    assert compute_delta(old, old.apply([elected], 1), 2, "i2").leaders[0].was_in_sync
    for before, after, why in (
        (old, two_steps, "what lies between two images is not known"),
        (old.apply([led_partition(0, 1, 0, 1)], 1), two_steps, "it was not in sync"),
        (no_leader, no_leader.apply([led_partition(0, 2, 1, 2)], 2), "nobody led"),
        (image(broker(2, "before")), old.apply([elected], 1), "another incarnation was in sync"),
        (later, old.apply([elected], 1), "nothing is known of before"),
    ):
        assert [each.was_in_sync for each in compute_delta(before, after, 2, "i2").leaders if each.tp == FIRST] == [
            False
        ], why


def test_follower_without_leader_gets_a_follow_action() -> None:
    old = image()
    new = old.apply([led_partition(0, NO_LEADER, 0)], 1)
    assert compute_delta(old, new, 1, "i1") == Delta(resigned=(FIRST,), followers=(Follow(FIRST, T, NO_LEADER, 0),))
    assert compute_delta(old, new, 2, "i2") == Delta(followers=(Follow(FIRST, T, NO_LEADER, 0),))
    assert compute_delta(new, new.apply([led_partition(0, 1, 1, 1)], 2), 2, "i2") == Delta(
        followers=(Follow(FIRST, T, 1, 1),)
    )


def test_changed_isr_under_the_same_epoch_goes_to_the_leader() -> None:
    old = image()
    new = old.apply([led_partition(0, 1, 0, 1)], 1)
    assert compute_delta(old, new, 1, "i1") == Delta(isr_changed=((FIRST, new.topics["t"].partitions[0]),))
    assert compute_delta(old, new, 2, "i2") == Delta()
    assert compute_delta(old, old.apply([led_partition(0, 1, 1, 1)], 1), 1, "i1") == Delta(
        leaders=(Lead(FIRST, T, 1, False),)
    )


def test_another_incarnation_neither_leads_nor_follows() -> None:
    old = Image().apply([broker(1), broker(2)], 0)
    assert compute_delta(old, image(), 1, "earlier") == Delta()
    assert compute_delta(image(), image().apply([led_partition(1, 1, 1, 1)], 1), 1, "earlier") == Delta()


def test_new_incarnation_starts_all_its_replicas() -> None:
    """The new incarnation starts unchanged partitions too. It never treats their logs as new."""
    old = image(broker(2, "gone"))
    new = old.apply([broker(1, "new"), led_partition(0, 1, 1, 1)], 1)
    assert compute_delta(old, new, 1, "new") == Delta(
        leaders=(Lead(FIRST, T, 1, False),), followers=(Follow(SECOND, T, 2, 0),)
    )
    assert compute_delta(old, old.apply([broker(1, "new")], 1), 1, "new").leaders == (Lead(FIRST, T, 0, False),)


def test_replaced_or_stopped_incarnation_resigns_from_everything() -> None:
    old = image()
    for last in (broker(1, "new"), kinds.BrokerStopped(1, "i1")):
        assert compute_delta(old, old.apply([last], 1), 1, "i1") == Delta(resigned=(FIRST,))


def test_changed_registration_of_a_broker_restarts_no_replica() -> None:
    assert compute_delta(image(), image().apply([broker(1)], 1), 1, "i1") == Delta()


def test_fenced_broker_follows_the_new_leader() -> None:
    old = image()
    new = old.apply([kinds.BrokerFenced(1, "i1"), led_partition(0, 2, 1, 2), led_partition(1, 2, 0, 2)], 1)
    assert compute_delta(old, new, 1, "i1") == Delta(resigned=(FIRST,), followers=(Follow(FIRST, T, 2, 1),))


def test_partition_first_seen_in_a_later_epoch_is_not_new() -> None:
    """Another broker created, led and lost the partition in slots that are applied in one step: its records may be
    cold."""
    empty = Image().apply([broker(1), broker(2)], 0)
    assert compute_delta(empty, image(led_partition(1, 1, 1, 1)), 1, "i1").leaders == (
        Lead(FIRST, T, 0, True),
        Lead(SECOND, T, 1, False),
    )


def test_replica_that_moved_to_another_broker_is_dropped() -> None:
    old = image()
    new = old.apply([kinds.PartitionChanged(T, 0, 2, 1, (2,), (), replicas=(2,))], 1)
    assert compute_delta(old, new, 1, "i1") == Delta(dropped=(FIRST,), resigned=(FIRST,))
    assert compute_delta(new, old.apply([led_partition(0, 2, 2, 2)], 2), 1, "i1") == Delta(
        followers=(Follow(FIRST, T, 2, 2),)
    )


def test_recreated_topic_is_dropped_and_started_empty() -> None:
    """Both happen in one step: the old log is dropped, and the new one starts empty under the same epoch."""
    shard = controller(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2))
    before = shard.image
    decide(shard, requests.DeleteTopic("t"))
    decide(shard, requests.CreateTopic("t", 1, 2))
    again = shard.image.topics["t"]
    leader = again.partitions[0].leader
    follower = 3 - leader
    led_anew = compute_delta(before, shard.image, leader, f"i{leader}")
    assert led_anew.dropped == (FIRST,) and led_anew.leaders == (Lead(FIRST, again.topic_id, 0, True),)
    followed_anew = compute_delta(before, shard.image, follower, f"i{follower}")
    assert followed_anew.dropped == (FIRST,)
    assert followed_anew.followers == (Follow(FIRST, again.topic_id, leader, 0, True),)


def test_removed_follower_drops_its_log() -> None:
    shard = controller(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2))
    before, topic = shard.image, shard.image.topics["t"]
    leader = topic.partitions[0].leader
    follower = 3 - leader
    decide(shard, requests.Reassign((requests.Move(topic.topic_id, 0, (leader,)),)))
    assert shard.image.topics["t"].partitions[0].replicas == (leader,)
    assert compute_delta(before, shard.image, follower, f"i{follower}") == Delta(dropped=(FIRST,))

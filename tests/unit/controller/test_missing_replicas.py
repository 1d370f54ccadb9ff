"""Missing replicas that are added as brokers join."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.controller.test_controller import controller as made
from tests.unit.controller.test_controller import decide
from tiered.config.settings import Settings
from tiered.controller.controller import Controller
from tiered.controller.missing_replicas import plan_missing_replicas
from tiered.controller.requests import CreateTopic, FenceBroker, Move, Reassign, RegisterBroker
from tiered.ids import TopicId
from tiered.metadata.topic_names import OFFSETS_TOPIC

SETTINGS = Settings(default_replication_factor=3)


def controller(*brokers: int) -> Controller:
    shard = made(*brokers)
    ids = (TopicId(f"AAAAAAAAQACAAAAAAAAAA{last}") for last in "Qg")
    return Controller(shard.image, SETTINGS, ids.__next__)


def join(shard: Controller, *brokers: int) -> None:
    for node in brokers:
        decide(shard, RegisterBroker(node, f"i{node}", f"d{node}", "", whole=True))


def test_topics_of_default_factor_start_small_and_gain_replicas() -> None:
    shard = controller(1)
    decide(shard, CreateTopic("t", 4))
    topic = shard.image.topics["t"]
    assert [each.replicas for each in topic.partitions] == [(1,)] * 4 and topic.wanted == 3
    assert plan_missing_replicas(shard.image, SETTINGS) == ()
    join(shard, 2)
    assert plan_missing_replicas(shard.image, SETTINGS) == tuple(Move(topic.topic_id, p, (1, 2)) for p in range(4))
    join(shard, 3, 4)
    found = plan_missing_replicas(shard.image, SETTINGS)
    assert [len(each.replicas or ()) for each in found] == [3] * 4
    held = [node for each in found for node in each.replicas or ()]
    assert held.count(1) == 4 and {held.count(node) for node in (2, 3, 4)} == {2, 3}, "evenly"
    assert decide(shard, Reassign(found)) == (None,) * 4
    assert plan_missing_replicas(shard.image, SETTINGS) == (), "it is on its way"


def test_chosen_or_complete_replicas_stay() -> None:
    shard = controller(1)
    decide(shard, CreateTopic("said", 1, 1))
    decide(shard, CreateTopic("assigned", assignments=[[1]]))
    join(shard, 2, 3)
    assert shard.image.topics["said"].wanted == 0
    assert plan_missing_replicas(shard.image, SETTINGS) == ()


def test_reduced_topic_gains_no_replicas_and_a_cancelled_one_does() -> None:
    shard = controller(1, 2)
    decide(shard, CreateTopic("t", 2))
    topic = shard.image.topics["t"]
    join(shard, 3)
    found = plan_missing_replicas(shard.image, SETTINGS)
    assert len(found) == 2
    decide(shard, Reassign(found))
    decide(shard, Reassign(tuple(replace(each, replicas=None) for each in found)))
    assert plan_missing_replicas(shard.image, SETTINGS) == found
    decide(shard, Reassign((Move(topic.topic_id, 1, topic.partitions[1].replicas[:1]),)))
    assert plan_missing_replicas(shard.image, SETTINGS) == ()


def test_internal_topics_get_replicas_up_to_their_own_number() -> None:
    shard = controller(1)
    decide(shard, CreateTopic(OFFSETS_TOPIC, 2, 1))
    join(shard, 2, 3)
    decide(shard, FenceBroker(2, "i2"))
    assert {each.replicas for each in plan_missing_replicas(shard.image, SETTINGS)} == {(1, 3)}
    assert plan_missing_replicas(shard.image, replace(SETTINGS, offsets_topic_replication_factor=1)) == ()
    decide(shard, FenceBroker(1, "i1"))
    assert plan_missing_replicas(shard.image, SETTINGS) == (), "nobody leads it: there is nothing to copy from"


def test_new_replicas_are_on_other_racks_if_possible() -> None:
    shard = controller(1)
    decide(shard, CreateTopic("t"))
    for node, rack in ((1, "a"), (2, "a"), (3, "b")):
        decide(shard, RegisterBroker(node, f"j{node}", f"d{node}", "", rack, whole=True))
    assert [each.replicas for each in plan_missing_replicas(shard.image, replace(SETTINGS))] == [(1, 3, 2)]


def test_new_replicas_are_on_other_machines() -> None:
    shard = controller(1)
    decide(shard, CreateTopic("t", 2))
    decide(shard, RegisterBroker(1001, "i1001", "d1001", "", whole=True, process=1))
    assert plan_missing_replicas(shard.image, SETTINGS) == ()
    join(shard, 2)
    decide(shard, RegisterBroker(1002, "i1002", "d1002", "", whole=True, process=1))
    found = plan_missing_replicas(shard.image, SETTINGS)
    assert [each.replicas for each in found] == [(1, 2), (1, 1002)]

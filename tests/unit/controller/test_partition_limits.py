"""Limits on the partitions of a cluster and the replicas of a broker, wherever they are created."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import replace

import pytest

from tests.unit.controller.test_controller import decide
from tiered.config.settings import Settings
from tiered.controller import requests
from tiered.controller.controller import Controller
from tiered.controller.missing_replicas import plan_missing_replicas
from tiered.controller.partition_limits import BROKER_MAX, CLUSTER_MAX
from tiered.controller.requests import CreatePartitions, CreateTopic, CreateTopics, Move, Reassign, Request
from tiered.errors import Code, Refused
from tiered.ids import encode_uuid
from tiered.metadata.changes import ALL_BROKERS
from tiered.metadata.image import Image, TopicImage, from_json, to_json
from tiered.metadata.topic_names import OFFSETS_TOPIC

FEW = Settings(tiered_partitions_max=8, tiered_partitions_max_per_broker=5, offsets_topic_num_partitions=4)


def controller(*brokers: int, settings: Settings = FEW) -> Controller:
    ids = itertools.count(1)
    shard = Controller(Image(), settings, lambda: encode_uuid(uuid.UUID(int=next(ids))))
    for node in brokers:
        join(shard, node)
    return shard


def join(shard: Controller, node: int) -> None:
    decide(shard, requests.RegisterBroker(node, f"i{node}", f"d{node}", "", whole=True))


def refusal(shard: Controller, request: Request) -> str:
    """Returns the text of a refusal by policy."""
    with pytest.raises(Refused) as refused:
        shard.decide(request, 1000)
    assert refused.value.code is Code.POLICY_VIOLATION
    return refused.value.why


def test_broker_takes_as_many_replicas_as_its_limit_and_no_more() -> None:
    shard = controller(1)
    decide(shard, CreateTopic("t", 5))
    assert BROKER_MAX in refusal(shard, CreateTopic("u"))
    assert BROKER_MAX in refusal(shard, CreateTopic("u", assignments=[[1]]))
    assert BROKER_MAX in refusal(shard, CreatePartitions("t", 6))
    decide(shard, requests.DeleteTopic("t"))
    decide(shard, CreateTopic("u", 5))


def test_cluster_takes_as_many_partitions_as_its_limit_and_no_more() -> None:
    shard = controller(1, 2, 3)
    decide(shard, CreateTopic("t", 7, 1))
    assert CLUSTER_MAX in refusal(shard, CreateTopic("u", 2, 1))
    decide(shard, CreatePartitions("t", 8))
    assert CLUSTER_MAX in refusal(shard, CreatePartitions("t", 9))


def test_topics_of_a_request_count_together_and_fitting_ones_are_made() -> None:
    shard = controller(1)
    made = decide(shard, CreateTopics(tuple(CreateTopic(name, 2) for name in "abc")))
    assert isinstance(made, tuple)
    assert [isinstance(each, TopicImage) for each in made] == [True, True, False]
    assert sorted(shard.image.topics) == ["a", "b"]


def test_validation_alone_is_refused_too() -> None:
    assert BROKER_MAX in refusal(controller(1), CreateTopic("t", 6, validate_only=True))


def test_offsets_topic_of_usual_size_is_made_on_a_full_broker() -> None:
    """Groups need it. Clients may create it too, so another size is refused like any topic."""
    shard = controller(1)
    decide(shard, CreateTopic("t", 5))
    assert CLUSTER_MAX in refusal(shard, CreateTopic(OFFSETS_TOPIC, 5))
    decide(shard, CreateTopic(OFFSETS_TOPIC, 4))


def test_reassignment_to_a_full_broker_is_refused_and_others_are_made() -> None:
    shard = controller(1, 2, 3)
    decide(shard, CreateTopic("full", assignments=[[2]] * 4))
    topic = decide(shard, CreateTopic("t", assignments=[[1]] * 3))
    assert isinstance(topic, TopicImage)
    reply = decide(shard, Reassign((Move(topic.topic_id, 0, (2,)), Move(topic.topic_id, 1, (2,)))))
    assert isinstance(reply, tuple)
    assert reply[0] is None
    assert reply[1].code is Code.POLICY_VIOLATION and BROKER_MAX in reply[1].why
    assert shard.image.replica_counts == {1: 3, 2: 5}, "a replica that leaves counts until it has left"


def test_topics_gain_no_replicas_on_full_brokers() -> None:
    settings = replace(FEW, default_replication_factor=2)
    shard = controller(1, settings=settings)
    topic = decide(shard, CreateTopic("t", 2))
    assert isinstance(topic, TopicImage)
    join(shard, 2)
    decide(shard, CreateTopic("full", assignments=[[2]] * 4))
    assert plan_missing_replicas(shard.image, settings) == (Move(topic.topic_id, 0, (1, 2)),)


def test_limits_change_while_brokers_run_for_all_or_for_one() -> None:
    shard = controller(1, 2)
    decide(shard, requests.AlterBrokerConfigs(ALL_BROKERS, {BROKER_MAX: "1", CLUSTER_MAX: "100"}))
    decide(shard, requests.AlterBrokerConfigs(2, {BROKER_MAX: "50"}))
    assert BROKER_MAX in refusal(shard, CreateTopic("t", assignments=[[1], [1]]))
    decide(shard, CreateTopic("t", assignments=[[2]] * 50))


def test_existing_partitions_stay_above_a_later_limit() -> None:
    shard = controller(1)
    decide(shard, CreateTopic("t", 5))
    decide(shard, requests.AlterBrokerConfigs(ALL_BROKERS, {BROKER_MAX: "1"}))
    assert len(shard.image.topics["t"].partitions) == 5
    assert BROKER_MAX in refusal(shard, CreateTopic("u"))


def test_image_counts_partitions_and_replicas_as_they_come_and_go() -> None:
    shard = controller(1, 2, 3, settings=Settings())
    decide(shard, CreateTopic("t", 3, 2))
    decide(shard, CreateTopic("u", 2, 3))
    decide(shard, CreatePartitions("t", 5))
    topic_id = shard.image.topics["t"].topic_id
    decide(shard, Reassign((Move(topic_id, 0, (3,)), Move(topic_id, 1, (1, 2, 3))), other_counts=True))
    decide(shard, requests.DeleteTopic("u"))
    image = shard.image
    held = [node for each in image.topics["t"].partitions for node in each.replicas]
    assert (image.partition_count, dict(image.replica_counts)) == (5, {node: held.count(node) for node in (1, 2, 3)})
    read = from_json(to_json(image))
    assert (read.partition_count, read.replica_counts) == (image.partition_count, image.replica_counts)

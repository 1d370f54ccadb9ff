"""Limits on the partitions of a cluster and the replicas of a broker, wherever they are created."""

from __future__ import annotations

import itertools
import uuid
from copy import deepcopy
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
from tiered.ids import TopicId, encode_uuid
from tiered.metadata.changes import ALL_BROKERS, TopicCreated
from tiered.metadata.changes import from_json as change_from_json
from tiered.metadata.image import Image, from_json, to_json
from tiered.metadata.parts.topics import TopicImage
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


def test_topics_of_one_decision_count_for_their_creator_together() -> None:
    """Three quarters of eight are six; of the two that are left nobody has more than one."""
    shard = controller(1, 2, 3)
    wanted = tuple(CreateTopic(f"t{number}", 1, 1, creator="User:greedy") for number in range(8))
    made = decide(shard, CreateTopics(wanted))
    assert isinstance(made, tuple)
    refused = [each for each in made if isinstance(each, Refused)]
    assert len(refused) == 2 and {each.code for each in refused} == {Code.THROTTLING_QUOTA_EXCEEDED}
    assert f"({CLUSTER_MAX})" in refused[0].why and "User:greedy has 6" in refused[0].why
    decide(shard, CreateTopic("u", 1, 1, creator="User:other"))
    decide(shard, CreateTopic("v", 1, 1))
    assert CLUSTER_MAX in refusal(shard, CreateTopic("w", 1, 1))


def test_creator_has_a_share_of_the_replicas_of_each_broker() -> None:
    shard = controller(1, 2)
    decide(shard, CreateTopic("t", assignments=[[1]] * 3, creator="User:greedy"))
    with pytest.raises(Refused) as refused:
        shard.decide(CreateTopic("u", assignments=[[1]], creator="User:greedy"), 1000)
    assert f"({BROKER_MAX})" in refused.value.why and "User:greedy has 3" in refused.value.why
    decide(shard, CreateTopic("u", assignments=[[2]], creator="User:greedy"))
    decide(shard, CreateTopic("v", assignments=[[1]], creator="User:other"))


def test_creators_outlive_a_snapshot_and_older_topics_have_none() -> None:
    shard = controller(1, 2, 3)
    decide(shard, CreateTopic("t", 2, 1, creator="User:alice"))
    body = to_json(shard.image)
    older = {**body, "topics": [{key: value for key, value in body["topics"][0].items() if key != "creator"}]}
    assert from_json(deepcopy(body)).topics["t"].creator == "User:alice"
    assert from_json(deepcopy(older)).topics["t"].creator == ""
    change = {
        "kind": "topic_created",
        "name": "u",
        "topic_id": "u" * 22,
        "assignments": [[1]],
        "configs": {},
        "at_ms": 1,
    }
    assert change_from_json(change) == TopicCreated("u", TopicId("u" * 22), ((1,),), {}, 1)

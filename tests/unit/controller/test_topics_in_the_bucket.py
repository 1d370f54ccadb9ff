"""Tests of the setting `flush=bucket`: where it is allowed, and what it does to partitions (decision 0026)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.controller.test_controller import controller, decide, refusal
from tests.unit.controller.test_features import older_cluster
from tiered.config.settings import Settings
from tiered.controller import requests
from tiered.controller.controller import Controller
from tiered.controller.requests import Request
from tiered.errors import Code, Refused
from tiered.metadata.changes import ALL_BROKERS
from tiered.metadata.effective_config import broker_settings, topic_config
from tiered.metadata.parts.topics import ChainRef, PartitionImage
from tiered.metadata.topic_names import OFFSETS_TOPIC

BUCKET = {"flush": "bucket"}
FOR_ALL = requests.AlterBrokerConfigs(ALL_BROKERS, {"log.flush": "bucket"})


def state(shard: Controller, name: str = "t") -> PartitionImage:
    return shard.image.topics[name].partitions[0]


def note(shard: Controller, *, is_in_bucket: bool = True) -> requests.NoteStoredEnds:
    topic = shard.image.topics["t"]
    known = (topic.topic_id, 0, topic.partitions[0].partition_epoch, is_in_bucket)
    leader = topic.partitions[0].leader
    return requests.NoteStoredEnds(leader, shard.image.brokers[leader].incarnation, (), (known,))


@pytest.mark.parametrize("for_all", [False, True])
def test_topic_begins_in_the_bucket(for_all: bool) -> None:
    shard = controller(1, 2)
    if for_all:
        decide(shard, FOR_ALL)
    decide(shard, requests.CreateTopic("t", 1, 1, configs={} if for_all else BUCKET))
    assert state(shard).is_in_bucket and len(state(shard).chains) == 1


@pytest.mark.parametrize("for_all", [False, True])
def test_topic_in_use_is_in_the_bucket_once_its_leader_says_so(for_all: bool) -> None:
    shard = controller(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 1))
    before = note(shard)
    decide(shard, FOR_ALL if for_all else requests.AlterTopicConfigs("t", BUCKET))
    assert not state(shard).is_in_bucket
    decide(shard, before)
    assert not state(shard).is_in_bucket, "a note from before the change counts for nothing"
    decide(shard, note(shard, is_in_bucket=False))
    assert not state(shard).is_in_bucket, "the leader has not applied the change yet"
    decide(shard, note(shard))
    assert state(shard).is_in_bucket
    leader = state(shard).leader
    assert state(shard).chains == (ChainRef(0, leader, f"i{leader}"),)


@pytest.mark.parametrize("for_all", [False, True])
def test_topic_that_leaves_the_bucket_keeps_its_chains_for_its_leader(for_all: bool) -> None:
    shard = controller(1, 2)
    if for_all:
        decide(shard, FOR_ALL)
    decide(shard, requests.CreateTopic("t", 1, 1, configs={} if for_all else BUCKET))
    known = state(shard).chains
    decide(
        shard,
        requests.AlterBrokerConfigs(ALL_BROKERS, {"log.flush": None})
        if for_all
        else requests.AlterTopicConfigs("t", {"flush": "ack"}),
    )
    assert not state(shard).is_in_bucket and state(shard).chains == known
    decide(shard, note(shard, is_in_bucket=False))
    assert state(shard).chains == ()


@pytest.mark.parametrize("other", ["remote.storage.enable=false", "remote.log.copy.disable=true"])
def test_topic_whose_segments_stay_on_disk_is_refused(other: str) -> None:
    """Its chain would never end."""
    name, _, value = other.partition("=")
    shard = controller(1)
    assert refusal(shard, requests.CreateTopic("t", 1, 1, configs={name: value, **BUCKET})) is Code.INVALID_CONFIG
    decide(shard, requests.CreateTopic("t", 1, 1, configs=BUCKET))
    assert refusal(shard, requests.AlterTopicConfigs("t", {name: value})) is Code.INVALID_CONFIG
    decide(shard, requests.CreateTopic("u", 1, 1, configs={name: value}))
    assert refusal(shard, requests.AlterTopicConfigs("u", BUCKET)) is Code.INVALID_CONFIG
    with pytest.raises(Refused, match="topic u: flush=bucket"):
        shard.decide(FOR_ALL, 0)


def test_internal_topics_need_no_segments() -> None:
    shard = controller(1, settings=Settings(tiered_internal_topics_flush="bucket"))
    decide(shard, requests.CreateTopic(OFFSETS_TOPIC, 1, 1))
    assert state(shard, OFFSETS_TOPIC).is_in_bucket
    without = controller(1)
    decide(without, requests.CreateTopic(OFFSETS_TOPIC, 1, 1))
    assert not state(without, OFFSETS_TOPIC).is_in_bucket
    decide(without, FOR_ALL)
    decide(without, requests.CreateTopic("t", 1, 1))
    assert state(without).is_in_bucket, "internal topics do not hinder the setting of all"


REQUESTS: tuple[Request, ...] = (
    requests.CreateTopic("t", 1, 1, configs=BUCKET),
    requests.AlterTopicConfigs("old", BUCKET),
    FOR_ALL,
    requests.RegisterBroker(2, "i2", "d2", "127.0.0.1:1", whole=True),
)


@pytest.mark.parametrize("request_", REQUESTS)
def test_setting_is_refused_below_its_level(request_: Request) -> None:
    is_started_so = isinstance(request_, requests.RegisterBroker)
    shard = older_cluster(1, settings=Settings(log_flush="bucket") if is_started_so else None)
    decide(shard, requests.CreateTopic("old", 1, 1, configs={"flush": "none"}))
    with pytest.raises(Refused, match=r"flush=bucket: .* set it from tiered.metadata.version=3 on"):
        shard.decide(request_, 0)


def test_value_of_a_file_counts_once_it_is_in_the_metadata_log() -> None:
    """Otherwise the controller could wait for disks that no leader waited for."""
    started_so = Settings(log_flush="bucket")
    shard = controller(1, settings=started_so)
    decide(shard, requests.CreateTopic("t", 1, 1))
    assert shard.image.broker_configs == {ALL_BROKERS: {"log.flush": "bucket"}} and state(shard).is_in_bucket
    other = controller(1)
    decide(other, requests.CreateTopic("t", 1, 1))
    leader = topic_config(other.image.topics["t"], broker_settings(other.image, started_so, 1).topic_defaults())
    assert leader.flush == "none" and not state(other).is_in_bucket
    decide(other, requests.AlterBrokerConfigs(ALL_BROKERS, {"log.flush": "ack"}))
    assert broker_settings(other.image, replace(started_so, node_id=1), 1).log_flush == "ack"
    assert refusal(other, requests.AlterBrokerConfigs(1, {"log.flush": "bucket"})) is Code.INVALID_CONFIG

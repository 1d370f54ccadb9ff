"""Limits on the settings that requests may give topics: levels of compression, and sizes of batches."""

from __future__ import annotations

import pytest

from tests.unit.controller.test_controller import decide
from tests.unit.controller.test_partition_limits import controller, refusal
from tiered.config.settings import Settings
from tiered.config.topic_limits import LIMITS
from tiered.controller.requests import AlterBrokerConfigs, AlterTopicConfigs, CreateTopic, CreateTopics
from tiered.errors import Code, Refused
from tiered.metadata.changes import ALL_BROKERS
from tiered.metadata.topic_names import OFFSETS_TOPIC

LOW = Settings(
    tiered_compression_gzip_level_max=7,
    tiered_compression_lz4_level_max=5,
    tiered_compression_zstd_level_max=3,
    tiered_max_message_bytes_max=1000,
)
MOST = {"compression.gzip.level": 7, "compression.lz4.level": 5, "compression.zstd.level": 3, "max.message.bytes": 1000}


def test_each_limit_has_a_case_here() -> None:
    assert MOST.keys() == LIMITS.keys()


@pytest.mark.parametrize("name", LIMITS)
def test_topic_gets_the_limit_and_no_more(name: str) -> None:
    shard, most = controller(1, settings=LOW), MOST[name]
    assert LIMITS[name][0] in refusal(shard, CreateTopic("t", configs={name: str(most + 1)}))
    decide(shard, CreateTopic("t", configs={name: str(most)}))
    for text in (str(most + 1), f" +{most + 1}"):
        assert LIMITS[name][0] in refusal(shard, AlterTopicConfigs("t", {name: text}))
        assert LIMITS[name][0] in refusal(shard, AlterTopicConfigs("t", {name: text}, replace=True))
    assert shard.image.topics["t"].configs == {name: str(most)}


def test_limit_refuses_one_topic_of_a_request_and_creates_the_others() -> None:
    shard = controller(1, settings=LOW)
    reply = decide(shard, CreateTopics((CreateTopic("t", configs={"max.message.bytes": "1001"}), CreateTopic("u"))))
    assert isinstance(reply, tuple)
    assert isinstance(reply[0], Refused) and reply[0].code is Code.POLICY_VIOLATION
    assert set(shard.image.topics) == {"u"}


def test_values_that_no_limit_concerns_are_taken() -> None:
    shard = controller(1, settings=LOW)
    configs = {"compression.lz4.level": "9", "compression.zstd.level": "-131072", "compression.gzip.level": "-1"}
    decide(shard, CreateTopic("t", configs=configs))
    assert shard.image.topics["t"].configs == configs


def test_topic_above_a_new_limit_keeps_its_value_and_changes_others() -> None:
    shard = controller(1, settings=Settings())
    decide(shard, CreateTopic("t", configs={"compression.zstd.level": "12"}))
    decide(shard, AlterBrokerConfigs(ALL_BROKERS, {"tiered.compression.zstd.level.max": "6"}))
    decide(shard, AlterTopicConfigs("t", {"retention.ms": "1"}))
    decide(shard, AlterTopicConfigs("t", {"compression.zstd.level": "12", "retention.ms": "2"}, replace=True))
    assert shard.image.topics["t"].configs == {"compression.zstd.level": "12", "retention.ms": "2"}
    assert "is 6" in refusal(shard, AlterTopicConfigs("t", {"compression.zstd.level": "11"}))
    decide(shard, AlterBrokerConfigs(ALL_BROKERS, {"tiered.compression.zstd.level.max": "22"}))
    decide(shard, AlterTopicConfigs("t", {"compression.zstd.level": "22"}))


def test_internal_topic_has_its_batches_whatever_the_limit() -> None:
    shard = controller(1, settings=LOW)
    decide(shard, CreateTopic(OFFSETS_TOPIC, 1))
    assert int(shard.image.topics[OFFSETS_TOPIC].configs["max.message.bytes"]) > 1000


def test_batches_of_new_topics_are_at_most_16_mib_by_default() -> None:
    shard = controller(1)
    assert "is 16777216" in refusal(shard, CreateTopic("t", configs={"max.message.bytes": str((16 << 20) + 1)}))
    decide(shard, CreateTopic("t", configs={"max.message.bytes": str(16 << 20)}))

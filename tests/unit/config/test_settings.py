"""Tests of settings: accepted values, refused values and the texts of refusals."""

from __future__ import annotations

import re

import pytest

from tiered.config.kafka_aliases import LARGER_UNITS, SAME_MEANING, WITHOUT_EFFECT
from tiered.config.settings import Settings, TopicConfig, broker_rows, parse_address, topic_rows
from tiered.errors import Code, Refused


def refusal(given: dict[str, str], table: type[TopicConfig] | type[Settings] = TopicConfig) -> str:
    """Returns the text of the refusal of `given`."""
    with pytest.raises(Refused) as refused:
        table.from_strings(given)
    assert refused.value.code is Code.INVALID_CONFIG
    return refused.value.why


def test_defaults_are_kafkas_with_tiering_on() -> None:
    config = TopicConfig()
    assert (config.retention_ms, config.segment_bytes, config.max_message_bytes) == (604_800_000, 1 << 30, 1_048_588)
    assert config.remote_storage_enable and config.cleanup_policy == ("delete",)
    assert (config.local_retention_ms, config.local_retention_bytes) == (-2, -2)


def test_values_are_typed_by_their_row() -> None:
    config = TopicConfig.from_strings(
        {
            "retention.ms": "-1",
            "remote.storage.enable": "FALSE",
            "compression.type": "zstd",
            "cleanup.policy": " delete ",
        }
    )
    assert config.retention_ms == -1
    assert config.remote_storage_enable is False
    assert config.compression_type == "zstd"
    assert config.cleanup_policy == ("delete",)


def test_missing_values_come_from_the_given_defaults() -> None:
    config = TopicConfig.from_strings({"segment.ms": "5"}, TopicConfig(segment_bytes=4096))
    assert (config.segment_ms, config.segment_bytes) == (5, 4096)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"retention.mss": "1"}, "retention.mss: unknown topic setting; did you mean retention.ms?"),
        ({"zzz": "1"}, "zzz: unknown topic setting"),
        ({"tiered.upload.max.lag.ms": "1"}, "tiered.upload.max.lag.ms: it is a setting of brokers, not of topics"),
        ({"segment.bytes": "lots"}, "segment.bytes=lots: it must be an integer from 1048576 to 2147483647"),
        ({"segment.bytes": "1048575"}, "segment.bytes=1048575: it must be an integer from 1048576 to 2147483647"),
        ({"segment.bytes": "1e9"}, "segment.bytes=1e9: it must be an integer from 1048576 to 2147483647"),
        ({"remote.storage.enable": "1"}, "remote.storage.enable=1: it must be true or false"),
        (
            {"message.timestamp.type": "Now"},
            "message.timestamp.type=Now: it must be CreateTime or LogAppendTime",
        ),
        ({"cleanup.policy": "shred"}, "cleanup.policy=shred: it must be a list of delete or compact"),
        (
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
            "max.compaction.lag.ms=4: it must not be less than min.compaction.lag.ms=5",
        ),
    ],
)
def test_refusal_names_the_key_the_value_and_the_allowed_values(given: dict[str, str], words: str) -> None:
    assert refusal(given) == words


def test_internal_segment_bytes_win_over_segment_bytes() -> None:
    assert TopicConfig.from_strings({"segment.bytes": "1048576"}).segment_size == 1 << 20
    assert TopicConfig.from_strings({"segment.bytes": "1048576", "internal.segment.bytes": "9"}).segment_size == 9


@pytest.mark.parametrize("policy", ["", "delete", "compact", "compact,delete"])
def test_cleanup_policies_are_delete_compact_both_and_neither(policy: str) -> None:
    config = TopicConfig.from_strings({"cleanup.policy": policy})
    assert ",".join(config.cleanup_policy) == policy


@pytest.mark.parametrize(
    "given",
    [
        {"retention.ms": "1000", "local.retention.ms": "1001"},
        {"retention.ms": "1000", "local.retention.ms": "-1"},
        {"retention.bytes": "1000", "local.retention.bytes": "2000"},
    ],
)
def test_local_retention_may_not_exceed_total_retention(given: dict[str, str]) -> None:
    assert "must not exceed retention." in refusal(given)


def test_local_retention_means_nothing_without_tiering() -> None:
    """Kafka takes such a topic too, and a copy of it must not lose its settings."""
    given = {"retention.ms": "1000", "local.retention.ms": "-1", "local.retention.bytes": "5", "retention.bytes": "1"}
    assert "must not exceed retention." in refusal(given)
    TopicConfig.from_strings(given | {"remote.storage.enable": "false"})


def test_local_retention_may_be_shorter_equal_or_follow() -> None:
    for local in ("-2", "0", "1000"):
        TopicConfig.from_strings({"retention.ms": "1000", "local.retention.ms": local})
    TopicConfig.from_strings({"retention.ms": "-1", "local.retention.ms": "-1"})


def test_broker_settings_are_defaults_of_topics() -> None:
    settings = Settings.from_strings(
        {"log.segment.bytes": "1048576", "log.retention.ms": "9", "message.max.bytes": "77"}
    )
    assert settings.topic_defaults() == TopicConfig(segment_bytes=1 << 20, retention_ms=9, max_message_bytes=77)
    assert Settings().topic_defaults() == TopicConfig()


def test_every_topic_setting_has_a_broker_default_of_the_same_type() -> None:
    named = {row.topic_name: row for row in broker_rows().values() if row.topic_name}
    without = {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
    without |= {f"confluent.{part}.schema.validation" for part in ("key", "value")}
    without |= {f"confluent.{part}.subject.name.strategy" for part in ("key", "value")}
    without |= {"remote.log.copy.disable", "remote.log.delete.on.disable", "internal.segment.bytes"}
    assert set(named) == set(topic_rows()) - without, "Kafka's brokers have no names for these"
    for name, row in topic_rows().items():
        if name in without:
            continue
        assert (named[name].default, named[name].allowed_values) == (row.default, row.allowed_values)


def test_broker_may_turn_tiering_off() -> None:
    settings = Settings.from_strings({"remote.log.storage.system.enable": "false"})
    assert settings.topic_defaults().remote_storage_enable is False


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "1"}, 60_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "1", "log.retention.ms": "5"}, 5),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_finest_unit_wins(given: dict[str, str], expected: int) -> None:
    assert Settings.from_strings(given).log_retention_ms == expected


def test_refusal_of_a_larger_unit_names_its_key() -> None:
    assert refusal({"log.retention.hours": "soon"}, Settings).startswith(
        "log.retention.hours=soon: it must be an integer"
    )
    assert refusal({"log.retention.hours": str(2**62)}, Settings).startswith("log.retention.hours=")


def test_names_of_kafkas_files_are_aliases() -> None:
    settings = Settings.from_strings({"log.dirs": "/data", "broker.id": "7", "process.roles": "broker,controller"})
    assert (settings.data_dir, settings.node_id) == ("/data", 7)
    assert "one directory" in refusal({"log.dirs": "/a,/b"}, Settings)


def test_every_name_has_one_meaning() -> None:
    other = [*LARGER_UNITS, *SAME_MEANING, *WITHOUT_EFFECT]
    assert len(set(other)) == len(other)
    assert not set(other) & set(broker_rows())


@pytest.mark.parametrize("text", ["8082", "127.0.0.1", ":80", "host:port", "host:70000", "host:-1"])
def test_address_is_host_and_port(text: str) -> None:
    assert refusal({"http": text}, Settings) == f"http={text}: it must be HOST:PORT with a port from 0 to 65535"


def test_ipv6_host_needs_brackets() -> None:
    assert parse_address("[::1]:8082", "http") == ("::1", 8082)
    assert parse_address("localhost:0", "http") == ("localhost", 0)


def test_settings_as_text_parse_to_equal_settings() -> None:
    for made in (TopicConfig(flush="ack", retention_ms=-1), TopicConfig()):
        assert TopicConfig.from_strings(made.to_strings()) == made
    assert Settings.from_strings(Settings(node_id=3).to_strings()) == Settings(node_id=3)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("min.cleanable.dirty.ratio", "0.25", "1.5"),
        ("min.cleanable.dirty.ratio", "1", "much"),
        ("preallocate", "true", "often"),
        ("remote.log.copy.disable", "TRUE", "1"),
        ("remote.log.delete.on.disable", "True", "1"),
        ("segment.index.bytes", "4", "3"),
        ("retention.bytes", "-5", "few"),
        ("compression.lz4.level", "12", "18"),
        ("leader.replication.throttled.replicas", "0:1,1:2", None),
        ("max.compaction.lag.ms", "5", "0"),
    ],
)
def test_settings_of_tools_accept_only_values_that_are_kept(name: str, good: str, bad: str | None) -> None:
    made = TopicConfig.from_strings({name: good})
    assert made.to_strings()[name] == ("1.0" if good == "1" else good.lower())
    if bad is not None:
        with pytest.raises(Refused) as refused:
            TopicConfig.from_strings({name: bad})
        assert refused.value.code is Code.INVALID_CONFIG and name in refused.value.why


def test_text_of_settings_shows_no_secret() -> None:
    secrets = [name for name, row in broker_rows().items() if row.secret]
    shown = repr(Settings.from_strings(dict.fromkeys(secrets, "hunter2")))
    assert secrets and "hunter2" not in shown


def test_setting_whose_name_says_secret_is_never_shown() -> None:
    for name, row in broker_rows().items():
        assert row.secret or not re.search(r"password|secret|credential|\.key$|jaas", name), name

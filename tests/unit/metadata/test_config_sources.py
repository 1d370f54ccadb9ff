"""Tests of the sources of a setting's value, the strongest first."""

from __future__ import annotations

from dataclasses import replace

from tiered.config.listener_overrides import ListenerOverride
from tiered.config.settings import Settings, broker_rows, listed_topic_rows
from tiered.ids import TopicId
from tiered.metadata.changes import ALL_BROKERS
from tiered.metadata.config_sources import (
    ConfigEntry,
    ConfigSource,
    TopicConfigEntries,
    broker_config_entries,
    cluster_config_entries,
    topic_config_entries,
)
from tiered.metadata.effective_config import broker_settings, overridden_settings, topic_config
from tiered.metadata.image import Image
from tiered.metadata.parts.brokers import BrokerImage, BrokersImage
from tiered.metadata.parts.topics import PartitionImage, TopicImage
from tiered.security.secret import Secret

STARTED = replace(Settings(), node_id=1, log_retention_ms=5, num_partitions=3)
IMAGE = Image(
    brokers_image=BrokersImage(
        configs={-1: {"log.retention.ms": "6", "log.roll.ms": "7"}, 1: {"log.retention.ms": "8"}}
    )
)


def topic(**configs: str) -> TopicImage:
    given = {name.replace("_", "."): value for name, value in configs.items()}
    return TopicImage("t", TopicId("A" * 22), (PartitionImage((1,)),), given, 0)


def trail(shown: list[ConfigEntry], key: str) -> list[tuple[str, str | None, int]]:
    (found,) = [each for each in shown if each.row.name == key]
    return [(name, value, int(source)) for name, value, source in found.synonyms]


def test_narrowest_source_comes_first() -> None:
    below = [("log.retention.ms", "8", 2), ("log.retention.ms", "6", 3), ("log.retention.ms", "5", 4),
             ("log.retention.ms", "604800000", 5)]  # fmt: skip
    shown = topic_config_entries(IMAGE, STARTED, topic(retention_ms="9"))
    assert trail(shown, "retention.ms") == [("retention.ms", "9", 1), *below]
    assert trail(topic_config_entries(IMAGE, STARTED, topic()), "retention.ms") == below
    assert trail(broker_config_entries(IMAGE, STARTED, 1), "log.retention.ms") == below
    assert trail(broker_config_entries(IMAGE, STARTED, 2), "log.retention.ms") == [below[1], below[3]], (
        "of others it knows less"
    )
    assert [each.row.name for each in cluster_config_entries(IMAGE)] == ["log.retention.ms", "log.roll.ms"]


def test_setting_that_was_given_is_static_even_with_its_default_value() -> None:
    started = Settings.from_strings({"num.partitions": "1", "log.retention.hours": "168", "log.roll.ms": "5"})
    found = {each.row.name: each.source for each in broker_config_entries(Image(), started, 1)}
    static = {name for name, source in found.items() if source is ConfigSource.STATIC_BROKER_CONFIG}
    assert static == {"num.partitions", "log.retention.ms", "log.roll.ms"}
    again = Settings.from_strings({"log.roll.ms": "6"}, defaults=started)
    assert again.given == started.given, "what changes later was not given at the start"
    of_topic = {each.row.name: each.source for each in topic_config_entries(Image(), started, topic())}
    assert of_topic["retention.ms"] is ConfigSource.STATIC_BROKER_CONFIG


def test_listeners_that_follow_from_a_flag_are_static() -> None:
    started = Settings.from_strings({"node.id": "1", "kafka": "127.0.0.1:0"})
    registered = BrokerImage(1, "i", "d", "", "", True, 0, {"PLAINTEXT": "127.0.0.1:4567"})
    image = Image(brokers_image=BrokersImage({1: registered, 2: replace(registered, node_id=2)}))
    for settings, node in ((started, 1), (started, 2), (Settings(), 2)):
        entries = broker_config_entries(image, settings, node)
        assert trail(entries, "advertised.listeners")[0] == ("advertised.listeners", "PLAINTEXT://127.0.0.1:4567", 4)
    assert trail(broker_config_entries(image, started, 1), "listeners")[0] == (
        "listeners",
        "PLAINTEXT://127.0.0.1:0",
        4,
    )
    given = Settings.from_strings({"advertised.listeners": "PLAINTEXT://other:1"})
    assert trail(broker_config_entries(image, given, 1), "advertised.listeners")[0][1] == "PLAINTEXT://other:1"
    unset = broker_config_entries(image, Settings(node_id=1), 1)
    assert trail(unset, "advertised.listeners") == [("advertised.listeners", "", 5)]


def test_settings_of_a_listener_are_shown_with_their_source() -> None:
    prefix = "listener.name.sasl_plaintext"
    started = Settings.from_strings(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            f"{prefix}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            f"{prefix}.ssl.key.password": "eightyeight",
            f"{prefix}.plain.sasl.jaas.config": 'a.PlainLoginModule required user_alice="pencil";',
            f"{prefix}.max.connections": "7",
        }
    )
    image = Image(brokers_image=BrokersImage(configs={ALL_BROKERS: {f"{prefix}.max.connections": "8"}}))
    entries = [each for each in broker_config_entries(image, started, started.node_id) if prefix in each.row.name]
    static, dynamic = ConfigSource.STATIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert [(each.row.name.removeprefix(prefix), each.value, each.source, each.is_read_only) for each in entries] == [
        (".max.connections", "8", dynamic, False),
        (".sasl.enabled.mechanisms", "SCRAM-SHA-512", static, True),
        (".ssl.key.password", None, static, True),
    ]


def test_secret_has_no_value() -> None:
    """Neither where it was set, nor where it was not."""
    started = replace(STARTED, ssl_key_password=Secret("eightyeight"))
    image = Image(brokers_image=BrokersImage(configs={ALL_BROKERS: {"ssl.keystore.password": "ninetynine"}}))
    entries = broker_config_entries(image, started, started.node_id)
    assert "eightyeight" not in repr(entries) and "ninetynine" not in repr(entries)
    shown = {each.row.name: (each.value, each.source) for each in entries}
    assert shown["ssl.key.password"] == (None, ConfigSource.STATIC_BROKER_CONFIG)
    assert shown["ssl.keystore.password"] == (None, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def test_internal_setting_is_shown_only_of_a_topic_that_sets_it() -> None:
    name = "internal.segment.bytes"
    shown = {each.row.name: each.value for each in topic_config_entries(IMAGE, STARTED, topic(retention_ms="9"))}
    assert name not in shown and shown["retention.ms"] == "9"
    own = {
        each.row.name: each.value for each in topic_config_entries(IMAGE, STARTED, topic(internal_segment_bytes="5"))
    }
    assert own[name] == "5" and own.keys() - shown.keys() == {name}


def test_shown_value_is_the_effective_one() -> None:
    for configs in ({}, {"retention_ms": "9", "segment_bytes": "4194304", "min_cleanable_dirty_ratio": "0.25"}):
        in_force = topic_config(topic(**configs), broker_settings(IMAGE, STARTED, 1).topic_defaults()).to_strings()
        del in_force["internal.segment.bytes"]
        assert {
            each.row.name: each.value for each in topic_config_entries(IMAGE, STARTED, topic(**configs))
        } == in_force
    assert {each.row.name: each.value or "" for each in broker_config_entries(IMAGE, STARTED, 1)} == broker_settings(
        IMAGE, STARTED, 1
    ).to_strings()
    untiered = replace(STARTED, remote_log_storage_system_enable=False)
    (tiered,) = [
        each for each in topic_config_entries(Image(), untiered, topic()) if each.row.name == "remote.storage.enable"
    ]
    assert (tiered.value, tiered.source) == ("false", ConfigSource.STATIC_BROKER_CONFIG)


def test_overridden_start_value_of_a_broker_is_named() -> None:
    assert overridden_settings(IMAGE, STARTED, 1) == {"log.retention.ms": (5, "8")}
    assert overridden_settings(IMAGE, replace(STARTED, log_retention_ms=8), 1) == {}
    assert overridden_settings(IMAGE, Settings(), 2) == {}, "nobody asked for what is stock"


def test_min_insync_replicas_never_comes_from_one_broker() -> None:
    started = replace(STARTED, min_insync_replicas=2)
    assert trail(broker_config_entries(Image(), started, 1), "min.insync.replicas") == [("min.insync.replicas", "1", 5)]
    assert trail(topic_config_entries(Image(), started, topic()), "min.insync.replicas") == [
        ("min.insync.replicas", "1", 5)
    ]
    assert broker_settings(Image(), started, 1).min_insync_replicas == 1
    assert overridden_settings(Image(), started, 1) == {"min.insync.replicas": (2, "1")}, (
        "the broker says so when it starts"
    )
    agreed = Image(brokers_image=BrokersImage(configs={-1: {"min.insync.replicas": "2"}}))
    assert broker_settings(agreed, STARTED, 1).min_insync_replicas == 2
    assert overridden_settings(agreed, started, 1) == {}


def test_settings_are_sorted_and_marked_if_they_can_change() -> None:
    assert [each.row.name for each in topic_config_entries(Image(), STARTED, topic())] == sorted(listed_topic_rows())
    shown = broker_config_entries(Image(), STARTED, 1)
    assert [each.row.name for each in shown] == sorted(broker_rows())
    changeable = {each.row.name for each in shown if not each.is_read_only}
    assert {"log.retention.ms", "max.connections"} <= changeable and "num.partitions" not in changeable
    assert not any(each.is_read_only for each in topic_config_entries(Image(), STARTED, topic()))


def test_limits_of_a_listener_are_shown_with_their_sources() -> None:
    name = "listener.name.out.max.connections"
    started = replace(
        STARTED,
        listeners=("OUT://127.0.0.1:1",),
        listener_overrides=(ListenerOverride("OUT", "max.connections", 3),),
    )
    image = Image(brokers_image=BrokersImage(configs={-1: {name: "5"}}))
    assert trail(broker_config_entries(image, started, 1), name) == [(name, "5", 3), (name, "3", 4)]
    assert [(each.row.name, each.is_read_only) for each in cluster_config_entries(image)] == [(name, False)]
    assert broker_settings(image, started, 1).for_listener("OUT").max_connections == 5


def test_limit_of_a_listener_that_a_broker_does_not_have_is_left_out() -> None:
    """A listener may get another name after its limit was stored: the broker starts nevertheless."""
    image = Image(
        brokers_image=BrokersImage(configs={-1: {"listener.name.old.max.connections": "5", "max.connections": "7"}})
    )
    assert broker_settings(image, STARTED, 1).max_connections == 7


def test_topics_share_values_that_they_do_not_override() -> None:
    settings = TopicConfigEntries(IMAGE, STARTED)
    one, other = settings.entries_of(topic(retention_ms="9")), settings.entries_of(topic(segment_ms="9"))
    assert sum(a is not b for a, b in zip(one, other, strict=True)) == 2

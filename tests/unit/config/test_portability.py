"""Tests of the settings that do not survive a move between Kafka and here."""

from __future__ import annotations

import pytest

from tests.peer.setting_texts import TEXTS
from tiered.config.portability import NO_EFFECT, OTHER_EFFECT, REFUSED, check_for_here, check_for_kafka
from tiered.config.settings import TopicConfig


@pytest.mark.parametrize(
    ("configs", "name", "effect", "why"),
    [
        ({"preallocate": "true"}, "preallocate", NO_EFFECT, "segment files grow"),
        ({"internal.segment.bytes": "1024"}, "internal.segment.bytes", REFUSED, "it is for tests"),
        ({"min.cleanable.dirty.ratio": "NaN"}, "min.cleanable.dirty.ratio", REFUSED, "a number from 0 to 1"),
        ({"retention.ms": "5", "local.retention.ms": "9"}, "local.retention.ms", REFUSED, "must not exceed"),
        ({"remote.log.copy.disable": "true"}, "remote.log.copy.disable", OTHER_EFFECT, "is tiered here"),
    ],
)
def test_setting_of_kafka_is_noted(configs: dict[str, str], name: str, effect: str, why: str) -> None:
    [note] = check_for_here({"retention.bytes": "-1"} | configs)
    assert (note.name, note.value, note.effect) == (name, configs[name], effect) and why in note.why


def test_values_that_both_take_are_not_noted() -> None:
    for each in TEXTS:
        if each.shown is not None and each.name not in ("preallocate", "remote.log.copy.disable"):
            assert [*check_for_here({each.name: each.shown})] == [*check_for_kafka({each.name: each.shown})] == []
    assert not [*check_for_here({"remote.log.copy.disable": "true", "remote.storage.enable": "true"})]


@pytest.mark.parametrize(
    ("configs", "names"),
    [
        ({"flush": "none"}, ["flush"]),
        ({"segment.bytes": "1048576", "compression.gzip.level": "1"}, []),
        ({"compression.gzip.level": "0"}, ["compression.gzip.level"]),
        ({"remote.storage.enable": "true"}, ["remote.storage.enable"]),
        ({"remote.storage.enable": "true", "cleanup.policy": "compact"}, ["remote.storage.enable"]),
        ({"remote.storage.enable": "false", "cleanup.policy": "compact"}, []),
    ],
)
def test_setting_that_kafka_refuses_is_noted(configs: dict[str, str], names: list[str]) -> None:
    assert [each.name for each in check_for_kafka(configs)] == names
    assert all(each.effect == REFUSED and each.value == configs[each.name] for each in check_for_kafka(configs))


def test_default_settings_are_noted_by_name_alone() -> None:
    """MirrorMaker copies no defaults; an operator may set one by hand."""
    names = {each.name for each in check_for_kafka(TopicConfig().to_strings())}
    assert names == {"flush", "remote.storage.enable"}


def test_settings_above_the_default_limits_of_brokers_are_noted() -> None:
    [size, level] = check_for_here({"max.message.bytes": "16777217", "compression.zstd.level": "13"})
    assert {size.effect, level.effect} == {REFUSED}
    assert "tiered.compression.zstd.level.max" in level.why and "tiered.max.message.bytes.max" in size.why
    assert not [*check_for_here({"max.message.bytes": "16777216", "compression.zstd.level": "12"})]

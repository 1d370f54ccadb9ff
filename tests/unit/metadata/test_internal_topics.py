"""Tests of the rules for internal topics: coordinators depend on settings that nobody may change."""

from __future__ import annotations

import pytest

from tiered.config.settings import Settings
from tiered.errors import Code, Refused
from tiered.metadata.internal_topics import check_changeable, check_configs, internal_topic_configs
from tiered.metadata.topic_names import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC

SETTINGS = Settings(
    offsets_topic_segment_bytes=1 << 20,
    transaction_state_log_segment_bytes=2 << 20,
    transaction_state_log_min_isr=3,
    share_coordinator_state_topic_segment_bytes=3 << 20,
    share_coordinator_state_topic_min_isr=4,
)
FIXED = ("cleanup.policy", "remote.storage.enable", "retention.ms", "retention.bytes")


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC])
def test_internal_topic_is_neither_tiered_nor_does_it_expire(name: str) -> None:
    configs = internal_topic_configs(name, SETTINGS)
    assert [configs[key] for key in FIXED] == ["delete", "false", "-1", "-1"]
    check_configs(name, configs)


def test_settings_of_brokers_set_segments_and_the_smallest_isr() -> None:
    offsets, transactions, shares = (
        internal_topic_configs(name, SETTINGS) for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC)
    )
    assert offsets["segment.bytes"] == offsets["max.message.bytes"] == str(1 << 20)
    assert "min.insync.replicas" not in offsets
    assert transactions["segment.bytes"] == transactions["max.message.bytes"] == str(2 << 20)
    assert transactions["min.insync.replicas"] == "3"
    assert shares["segment.bytes"] == shares["max.message.bytes"] == str(3 << 20)
    assert shares["min.insync.replicas"] == "4"


@pytest.mark.parametrize("key", FIXED)
def test_fixed_setting_of_an_internal_topic_is_neither_changed_nor_removed(key: str) -> None:
    configs = internal_topic_configs(OFFSETS_TOPIC, SETTINGS)
    for changed in ({**configs, key: "1"}, {name: value for name, value in configs.items() if name != key}):
        with pytest.raises(Refused, match=f"^{key}: topic {OFFSETS_TOPIC} must keep ") as refused:
            check_configs(OFFSETS_TOPIC, changed)
        assert refused.value.code is Code.INVALID_CONFIG


def test_internal_topic_is_not_deleted_extended_or_truncated() -> None:
    with pytest.raises(Refused, match="it cannot be deleted or changed") as refused:
        check_changeable(TRANSACTIONS_TOPIC)
    assert refused.value.code is Code.INVALID_TOPIC_EXCEPTION


def test_topic_of_a_user_has_none_of_these_rules() -> None:
    assert internal_topic_configs("t", SETTINGS) == {}
    check_configs("t", {"cleanup.policy": "compact"})
    check_changeable("t")

"""Rules for internal topics: fixed settings, and operations that are refused.

`__consumer_offsets`, `__transaction_state` and `__share_group_state` are kept until a snapshot in the bucket holds
them, so they are not tiered and do not expire. The number of partitions decides which partition coordinates a group, a
transactional id or a share partition, so the number cannot change.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered.config.settings import LONG_MAX, Settings
from tiered.errors import Code, Refused
from tiered.metadata.topic_names import INTERNAL, OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC

_FIXED = {
    "cleanup.policy": "delete",
    "remote.storage.enable": "false",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(LONG_MAX),
    "message.timestamp.after.max.ms": str(LONG_MAX),
}


def internal_topic_configs(name: str, settings: Settings) -> dict[str, str]:
    """Returns the settings with which an internal topic is created. A large group needs a large batch."""
    if name not in INTERNAL:
        return {}
    segment_bytes, min_isr = {
        OFFSETS_TOPIC: (settings.offsets_topic_segment_bytes, None),
        TRANSACTIONS_TOPIC: (
            settings.transaction_state_log_segment_bytes,
            settings.transaction_state_log_min_isr,
        ),
        SHARE_STATE_TOPIC: (
            settings.share_coordinator_state_topic_segment_bytes,
            settings.share_coordinator_state_topic_min_isr,
        ),
    }[name]
    configs = {**_FIXED, "segment.bytes": str(segment_bytes), "max.message.bytes": str(segment_bytes)}
    if settings.tiered_internal_topics_flush:
        configs["flush"] = settings.tiered_internal_topics_flush
    if min_isr is not None:
        configs["min.insync.replicas"] = str(min_isr)
    return configs


def check_configs(name: str, configs: Mapping[str, str]) -> None:
    """Refuses settings that let an internal topic lose records or be tiered."""
    if name in INTERNAL:
        for key, value in _FIXED.items():
            if configs.get(key) != value:
                raise Refused(Code.INVALID_CONFIG, f"{key}: topic {name} must keep {value}, coordinators depend on it")


def check_changeable(name: str) -> None:
    """Refuses to delete, extend or truncate an internal topic."""
    if name in INTERNAL:
        raise Refused(Code.INVALID_TOPIC_EXCEPTION, f"topic {name} is internal: it cannot be deleted or changed")

"""Rules for internal topics: fixed settings, and operations that are refused.

`__consumer_offsets` and `__transaction_state` are kept until a snapshot in the bucket holds them, so they are not
tiered and do not expire. The number of partitions decides which partition coordinates a group or a transactional id, so
the number cannot change.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered.config.settings import LONG_MAX, Settings
from tiered.errors import Code, Refused
from tiered.metadata.topic_names import INTERNAL, OFFSETS_TOPIC

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
    is_of_groups = name == OFFSETS_TOPIC
    segment_bytes = str(
        settings.offsets_topic_segment_bytes if is_of_groups else settings.transaction_state_log_segment_bytes
    )
    configs = {**_FIXED, "segment.bytes": segment_bytes, "max.message.bytes": segment_bytes}
    if settings.tiered_internal_topics_flush:
        configs["flush"] = settings.tiered_internal_topics_flush
    if not is_of_groups:
        configs["min.insync.replicas"] = str(settings.transaction_state_log_min_isr)
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

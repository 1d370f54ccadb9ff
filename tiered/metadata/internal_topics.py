"""Rules of the broker's own topics: what they set for themselves, and what nobody may do to them.

`__consumer_offsets` is kept until an image in the bucket holds it, so it is neither tiered nor does it expire; its
number of partitions says where groups are, so it stays.
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
    """What a topic of the broker's own is created with, whoever creates it; a large group needs a large batch."""
    if name != OFFSETS_TOPIC:
        return {}
    segment_bytes = str(settings.offsets_topic_segment_bytes)
    return {**_FIXED, "segment.bytes": segment_bytes, "max.message.bytes": segment_bytes}


def check_configs(name: str, configs: Mapping[str, str]) -> None:
    """Refuses settings under which a topic of the broker's own would forget, or take to the bucket, what it holds."""
    if name in INTERNAL:
        for key, value in _FIXED.items():
            if configs.get(key) != value:
                raise Refused(Code.INVALID_CONFIG, f"{key}: topic {name} keeps {value}, groups depend on it")


def check_changeable(name: str) -> None:
    """Refuses to delete, grow or cut a topic of the broker's own."""
    if name in INTERNAL:
        raise Refused(Code.INVALID_TOPIC_EXCEPTION, f"topic {name} is the broker's own: it is not deleted or changed")

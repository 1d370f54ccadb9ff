"""Features of the cluster: versions of its protocols that an operator raises or lowers (KIP-584, KIP-1022).

A level of a feature tells clients what they may use. All brokers of one program version serve every level.

`tiered.metadata.version` is for brokers, as `metadata.version` is in Kafka: brokers of an earlier program refuse kinds
and fields of metadata that they do not know. Those of a level are written once an operator has set it, after the last
broker has the new program. A new cluster has the highest level. Each broker tells the controller which level it
supports, in its registration and in each heartbeat; one that tells none supports level 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

TRANSACTION_VERSION = "transaction.version"
METADATA_VERSION = "tiered.metadata.version"
GROUP_VERSION = "group.version"


class FeatureLevels(NamedTuple):
    """The levels of one feature that this program serves, and the level of a cluster that has set none."""

    lowest: int
    highest: int
    initial: int


FEATURES: dict[str, FeatureLevels] = {
    TRANSACTION_VERSION: FeatureLevels(0, 2, 2),
    GROUP_VERSION: FeatureLevels(0, 1, 1),
    METADATA_VERSION: FeatureLevels(0, 6, 0),
}

HIGHEST_METADATA_VERSION = FEATURES[METADATA_VERSION].highest
"""The level of `tiered.metadata.version` that this program supports."""

DISK_REPORTS = CREATORS = LOSS_TIMES = SUPPORTED_LEVELS = 1
"""Levels of `tiered.metadata.version`: states of disks, creators of topics, times of losses, and the supported level in
a registration."""

PROCESSES = DELETED_NAMES = 2
"""Level of `tiered.metadata.version` from which on brokers may be processes of one machine and take over replicas of
each other, and the changes that end a topic have its name."""

CONSUMER_GROUPS = 2
"""Level of `tiered.metadata.version` from which on `group.version` may be set, and consumer groups (KIP-848) are
served: coordinators of an earlier program lose their members."""

CHAINS = 3
"""Level of `tiered.metadata.version` from which on records of topics with `flush=bucket` are in write-ahead chains, and
partitions name these chains."""

GROUP_CONFIGS = MIXED_GROUPS = 4
"""Level of `tiered.metadata.version` from which on groups may have settings of their own, and change their protocol
while members are in them."""

SCHEMA_VALIDATION = 5
"""Level of `tiered.metadata.version` from which on topics may have records validated by the schema registry."""

SHARE_GROUPS = 6
"""Level of `tiered.metadata.version` from which on `__share_group_state` is made: brokers of an earlier program treat
it as a topic of clients, and delete its records by age."""

PROCESSES_REFUSED = (
    f"brokers can be processes of one machine from {METADATA_VERSION}={PROCESSES} on: raise it once all brokers have"
    " this program (docs/how-to/upgrade.md), and start again"
)

FIELDS_SINCE: dict[str, dict[str, int]] = {
    "BrokerImage": {
        "disk": DISK_REPORTS,
        "disk_since_ms": DISK_REPORTS,
        "moved_leaders": DISK_REPORTS,
        "process": PROCESSES,
    },
    "BrokerRegistered": {"process": PROCESSES},
    "CreateTopic": {"creator": CREATORS},
    "TopicCreated": {"creator": CREATORS},
    "TopicDeleted": {"name": DELETED_NAMES},
    "TopicForgotten": {"name": DELETED_NAMES},
    "NoteStoredEnds": {"chained": CHAINS},
    "PartitionChanged": {"chains": CHAINS, "is_in_bucket": CHAINS},
    "PartitionImage": {"chains": CHAINS, "is_in_bucket": CHAINS},
    "TopicImage": {"creator": CREATORS},
    "RegisterBroker": {"metadata_version": SUPPORTED_LEVELS, "process": PROCESSES, "adopted": PROCESSES},
    "ReportLoss": {"newest_ms": LOSS_TIMES},
    "LossReported": {"newest_ms": LOSS_TIMES},
    "Loss": {"newest_ms": LOSS_TIMES},
}
"""Fields above level 0, by class. Below its level each is left out of bytes. A field that is missing
has its default, and in messages between brokers it is 0 or empty."""

KEYS_SINCE: dict[str, int] = {"group_configs": GROUP_CONFIGS}
"""Tables of a snapshot above level 0. Each is left out while it is empty, as it is below its level."""

NAMES_SINCE: dict[str, int] = {
    "confluent.key.schema.validation": SCHEMA_VALIDATION,
    "confluent.key.subject.name.strategy": SCHEMA_VALIDATION,
    "confluent.value.schema.validation": SCHEMA_VALIDATION,
    "confluent.value.subject.name.strategy": SCHEMA_VALIDATION,
    "internal.segment.bytes": 1,
    "tiered.certificate.expiry.warning.days": 1,
    "tiered.clock.skew.max.ms": 1,
    "tiered.compression.gzip.level.max": 1,
    "tiered.compression.lz4.level.max": 1,
    "tiered.compression.zstd.level.max": 1,
    "tiered.max.message.bytes.max": 1,
    "tiered.trace.min.ms": CHAINS,
    "tiered.upload.pause": CHAINS,
    "store_request_rate": 1,
}
"""Settings above level 0 of topics, those of brokers that the metadata log may have, and client quotas. A broker of an
earlier program ends if the log has a setting that it does not know, and does not enforce such a quota."""


def find_level(set_levels: Mapping[str, int], name: str) -> int:
    """Returns the level in force, given the levels that operators have set."""
    return set_levels.get(name, FEATURES[name].initial)


def has_consumer_groups(set_levels: Mapping[str, int]) -> bool:
    """True if clients may use consumer groups (KIP-848)."""
    return find_level(set_levels, GROUP_VERSION) > 0 and find_metadata_version(set_levels) >= CONSUMER_GROUPS


def find_metadata_version(set_levels: Mapping[str, int]) -> int:
    """Returns the level of `tiered.metadata.version` in force."""
    return find_level(set_levels, METADATA_VERSION)

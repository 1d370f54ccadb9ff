"""Limits of consumer groups: Kafka's settings of the same names."""

from __future__ import annotations

from typing import NamedTuple

from tiered.value import value


class MigrationPolicy(NamedTuple):
    """The conversions between classic groups and consumer groups that happen while members are in them."""

    upgrades: bool
    downgrades: bool


MIGRATION_POLICIES = {
    "bidirectional": MigrationPolicy(upgrades=True, downgrades=True),
    "upgrade": MigrationPolicy(upgrades=True, downgrades=False),
    "downgrade": MigrationPolicy(upgrades=False, downgrades=True),
    "disabled": MigrationPolicy(upgrades=False, downgrades=False),
}
"""By the value of `group.consumer.migration.policy`."""


class ConsumerTimeouts(NamedTuple):
    """Timeouts of the members of one consumer group."""

    session_ms: int
    heartbeat_ms: int


@value
class GroupSettings:
    """Limits of one shard. The defaults are those of the broker's settings."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 500
    size_max: int = 1_000
    """Members of one group. The same number of ids may be given out and not used yet."""
    metadata_bytes_max: int = 4_096
    """Longest metadata that a client may commit with an offset, in UTF-16 code units."""
    retention_ms: int = 10_080 * 60_000
    """Time after which an offset that nobody uses expires (KIP-211)."""
    retention_check_ms: int = 600_000
    bytes_max: int = 256 << 20
    """Memory that all groups of a broker may take, in bytes."""
    record_bytes_max: int = 1_000_000
    """Largest record that the log takes, in bytes. A group with all its members and their assignments is one record."""
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    regex_refresh_ms: int = 600_000
    """Time after which regular expressions of consumer groups are matched with the topics anew."""
    consumer_size_max: int = 2**31 - 1
    """Members of one consumer group."""
    share_session_timeout_ms: int = 45_000
    share_heartbeat_interval_ms: int = 5_000
    share_size_max: int = 200
    """Members of one share group."""

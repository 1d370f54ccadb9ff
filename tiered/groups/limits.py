"""The limits that groups live within: Kafka's settings of the same names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What a shard is given; the defaults are those of the broker's settings."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 500
    size_max: int = 1_000
    """Members of one group; as many again may have an id and not be members yet."""
    metadata_bytes_max: int = 4_096
    """What a client may keep beside an offset."""
    retention_ms: int = 10_080 * 60_000
    """How long offsets are kept once nobody uses them."""
    retention_check_ms: int = 600_000
    bytes_max: int = 256 << 20
    """What all groups of a broker may hold in memory."""
    record_bytes_max: int = 1_000_000
    """What the log takes as one record: a group with all its members and their assignments is one."""

"""Expiry of committed offsets by Kafka's rules (KIP-211).

In an empty group, offsets expire one retention time after the group became empty (I19). In a group that never had
members, each offset expires one retention time after its commit. In a stable group of consumers, offsets of topics
without a subscriber expire one retention time after their commit. During a rebalance no offset expires.

While a transaction that wrote an offset for a partition is open, the offset of that partition does not expire.

An offset with its own expiry time (OffsetCommit v2-4) expires at that time instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered.groups.classic import ClassicGroup, ClassicGroupState
from tiered.groups.consumer.group import ConsumerGroup
from tiered.groups.log_state import GroupOffsets
from tiered.groups.pending_offsets import PendingOffsets
from tiered.groups.records import NO_TIME, OffsetValue


def find_expired_offsets(
    group: ClassicGroup, offsets: GroupOffsets, pending: PendingOffsets, now_ms: int, retention_ms: int
) -> Iterator[tuple[str, int]]:
    """Yields topic and partition of each expired offset."""
    for topic, partitions in offsets.items():
        if not _may_expire(group, topic):
            continue
        for partition, offset in partitions.items():
            is_pending = pending.has_partition(group.name, topic, partition)
            if not is_pending and _has_expired(group, offset, now_ms, retention_ms):
                yield topic, partition


def find_expired_consumer_offsets(
    group: ConsumerGroup, offsets: GroupOffsets, pending: PendingOffsets, cutoff_ms: int
) -> Iterator[tuple[str, int]]:
    """Yields topic and partition of each expired offset of a consumer group: those committed up to `cutoff_ms` for
    topics without a subscriber. A group without members has no subscribers."""
    for topic, partitions in offsets.items():
        if group.is_subscribed(topic):
            continue
        for partition, offset in partitions.items():
            if offset.commit_ms <= cutoff_ms and not pending.has_partition(group.name, topic, partition):
                yield topic, partition


def _may_expire(group: ClassicGroup, topic: str) -> bool:
    if group.protocol_type is None:
        return True
    if group.state is ClassicGroupState.STABLE:
        return group.subscribed_topics is not None and topic not in group.subscribed_topics
    return group.state is ClassicGroupState.EMPTY


def _has_expired(group: ClassicGroup, offset: OffsetValue, now_ms: int, retention_ms: int) -> bool:
    if offset.expire_ms != NO_TIME:
        return now_ms >= offset.expire_ms
    was_group = group.protocol_type is not None and group.state is ClassicGroupState.EMPTY
    since = group.state_since_ms if was_group and group.state_since_ms != NO_TIME else offset.commit_ms
    return now_ms - since >= retention_ms

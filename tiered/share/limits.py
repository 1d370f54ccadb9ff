"""Limits of share groups, each with Kafka's setting that it comes from."""

from __future__ import annotations

from tiered.value import value


@value
class ShareLimits:
    """Limits of one share partition. The defaults are Kafka's."""

    delivery_count_max: int = 5
    """Deliveries of a record after which it is archived in place of another one (group.share.delivery.count.limit)."""
    lock_ms: int = 30_000
    """Time for which an acquired record belongs to its member (group.share.record.lock.duration.ms)."""
    in_flight_max: int = 2_000
    """Offsets between the first record that is not done and the last acquired one
    (group.share.partition.max.record.locks)."""


@value
class ShareCoordinatorSettings:
    """Limits of one share coordinator shard, and the memory that it shares."""

    updates_per_snapshot: int = 500
    """Updates of a share partition after which its next record is a snapshot
    (share.coordinator.snapshot.update.records.per.snapshot)."""
    batches_max: int = 20_000
    """Batches of one share partition: twice what a leader with Kafka's highest bound of in-flight records writes."""
    bytes_max: int = 256 << 20
    """Memory of all shards of a broker. New share partitions take half of it at most, so that those that exist can go
    on."""

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

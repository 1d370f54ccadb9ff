"""Which partition a key belongs to: as Kafka's default partitioner, so that all clients agree."""

from __future__ import annotations

from tiered.ports import Buffer
from tiered.records.native import murmur2


def partition_of(key: Buffer, partitions: int) -> int:
    """The partition of a key, 0 to `partitions - 1`. A record without a key has none: spread those as you like."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions

"""Kafka's default partitioner for keys, so that all clients choose the same partition."""

from __future__ import annotations

from tiered.ports import Buffer
from tiered.records.native import murmur2


def partition_of(key: Buffer, partitions: int) -> int:
    """Returns the partition of a key, 0 to `partitions - 1`. Records without a key may go to any partition."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions

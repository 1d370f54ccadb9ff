"""The partition of an internal topic that coordinates a key: a group, a transactional id."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=10_000)
def partition_of(key: str, partitions: int) -> int:
    """Returns Kafka's partition for a key: Java's hash of the text."""
    units = key.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    code = code - (1 << 32) if code >= 1 << 31 else code
    return (0 if code == -(1 << 31) else abs(code)) % partitions

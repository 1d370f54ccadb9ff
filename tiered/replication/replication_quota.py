"""Replication quota: limits the rate at which replicas outside the ISR are copied, if a topic lists them (KIP-73).

Pure: takes bytes and monotonic nanoseconds, returns a pause. Copied bytes are paid off as time passes; a broker with a
debt pauses. Idle time is saved up to one second, so that copies in bursts still reach the rate.
"""

from __future__ import annotations

from tiered.quotas.rate import TokenBucket

UNLIMITED = 2**63 - 1
BURST_NS = 1_000_000_000
PAUSE_MAX_NS = 1_000_000_000
"""The longest pause, because the rate may change meanwhile."""
EVERY_REPLICA = "*"


class ReplicationQuota:
    """One budget in bytes per second, shared by all throttled copies in one direction: from a broker, or to it."""

    def __init__(self, rate: int = UNLIMITED) -> None:
        self._rate = rate
        self._bucket: TokenBucket | None = None
        """The bytes that may be copied now; None before the first are, and for a rate without a debt."""

    def set_rate(self, rate: int, now_ns: int) -> ReplicationQuota:
        """Changes the rate and returns the quota. A debt keeps its size in bytes."""
        if rate != self._rate:
            if rate <= 0 or rate >= UNLIMITED or not self._debt_ns(now_ns):
                self._bucket = None
            self._rate = rate
        return self

    def record(self, count: int, now_ns: int) -> None:
        """Records that `count` bytes were copied."""
        if 0 < self._rate < UNLIMITED:
            if self._bucket is None:
                self._bucket = TokenBucket(1, BURST_NS // 1_000_000, self._rate, now_ns / 1e6)
            self._bucket.record(count, self._rate, now_ns / 1e6)

    def pause_ns(self, now_ns: int) -> int:
        """Returns how long to copy nothing; 0 if there is room."""
        if self._rate >= UNLIMITED:
            return 0
        if self._rate <= 0:
            return PAUSE_MAX_NS
        return min(PAUSE_MAX_NS, self._debt_ns(now_ns))

    def _debt_ns(self, now_ns: int) -> int:
        return round(self._bucket.debt_ms(self._rate, now_ns / 1e6) * 1e6) if self._bucket is not None else 0


class ThrottledReplicas:
    """Tells if a list of throttled replicas (`partition:broker` entries, or `*`) names a replica. Searches the list
    only when it is a new one: a list may be as long as a topic has replicas."""

    __slots__ = ("_entries", "_is_listed")

    def __init__(self) -> None:
        self._entries: tuple[str, ...] | None = None
        self._is_listed = False

    def __call__(self, entries: tuple[str, ...], partition: int, broker: int) -> bool:
        if entries is not self._entries:
            self._entries = entries
            self._is_listed = EVERY_REPLICA in entries or f"{partition}:{broker}" in entries
        return self._is_listed


def list_throttled_replicas(
    reassignments: dict[int, tuple[tuple[int, ...], tuple[int, ...]]],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the lists of throttled replicas for one topic under reassignment: (replicas that are copied from,
    replicas that copy). `reassignments` maps a partition to its present and its future replicas."""
    moves = sorted(reassignments.items())
    leaders = tuple(f"{partition}:{node}" for partition, (old, _) in moves for node in old)
    followers = tuple(f"{partition}:{node}" for partition, (old, new) in moves for node in new if node not in old)
    return leaders, followers

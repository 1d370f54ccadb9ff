"""How fast replicas that are not in sync may be copied, where a topic names them (KIP-73).

Pure: bytes and monotonic nanoseconds in, a pause out. What was taken is paid for as time passes; whoever owes waits. An
idle second is saved up, no more, so that copies which come in lumps still make the rate.
"""

from __future__ import annotations

UNLIMITED = 2**63 - 1
BURST_NS = 1_000_000_000
PAUSE_MAX_NS = 1_000_000_000
"""After so long it is asked again: the rate may be another by then."""
EVERY_REPLICA = "*"


class ReplicationQuota:
    """One budget in bytes per second, shared by all copies that a broker gives, or takes."""

    def __init__(self, rate: int = UNLIMITED) -> None:
        self._rate = rate
        self._available_at_ns: int | None = None
        """When everything that was taken is paid for; None before anything was."""

    def set_rate(self, rate: int, now_ns: int) -> ReplicationQuota:
        """The same, at `rate` from now on: what is owed stays owed in bytes."""
        if rate != self._rate:
            debt_ns = max(0, self._available_at_ns - now_ns) if self._available_at_ns is not None else 0
            debt_bytes = debt_ns * self._rate // 1_000_000_000 if 0 < self._rate < UNLIMITED else 0
            self._rate, self._available_at_ns = rate, None
            if debt_bytes:
                self._available_at_ns = now_ns + self._cost_ns(debt_bytes)
        return self

    def record(self, count: int, now_ns: int) -> None:
        """So many bytes were copied."""
        if self._rate < UNLIMITED:
            earliest_ns = now_ns - BURST_NS
            paid_ns = earliest_ns if self._available_at_ns is None else max(self._available_at_ns, earliest_ns)
            self._available_at_ns = paid_ns + self._cost_ns(count)

    def pause_ns(self, now_ns: int) -> int:
        """How long to copy nothing; 0: there is room."""
        if self._rate >= UNLIMITED:
            return 0
        if self._rate <= 0:
            return PAUSE_MAX_NS
        return min(PAUSE_MAX_NS, max(0, self._available_at_ns - now_ns)) if self._available_at_ns is not None else 0

    def _cost_ns(self, count: int) -> int:
        return count * 1_000_000_000 // self._rate if self._rate > 0 else 0


class ThrottledReplicas:
    """Whether a list (`partition:broker` words, or `*`) names a replica; looked up again only when it is another list:
    one may be as long as a topic has replicas."""

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
    """The lists of one topic whose partitions move, each from its replicas to others: those that may be copied from,
    and those that copy."""
    leaders = tuple(f"{p}:{node}" for p, (now, _) in sorted(reassignments.items()) for node in now)
    followers = tuple(f"{p}:{node}" for p, (now, to) in sorted(reassignments.items()) for node in to if node not in now)
    return leaders, followers

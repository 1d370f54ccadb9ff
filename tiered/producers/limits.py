"""The limits on producer ids, which all logs of a broker share.

Pure. The number of producer ids is bounded, because clients may invent ids.
"""

from __future__ import annotations

from tiered.quotas.shares import PRODUCER_IDS, Holdings, is_scarce


class ProducerLimits:
    """Limits on the producer ids of all logs of a broker, together and each. `producer_count` is how many they have
    now."""

    __slots__ = ("_holdings", "keys_forgotten", "per_partition", "producer_count", "total")

    def __init__(self, per_partition: int = 10_000, total: int = 200_000) -> None:
        self.per_partition = per_partition
        self.total = total
        self.producer_count = 0
        self.keys_forgotten = 0
        """Keyed ids that had to make room for others before their time was over."""
        self._holdings: Holdings | None = None

    @property
    def holdings(self) -> Holdings:
        """The share of each holder in the total. Made at the first look: recoveries of logs never look."""
        if self._holdings is None:
            self._holdings = Holdings(PRODUCER_IDS, lambda: self.total, lambda: self.producer_count)
        return self._holdings

    @property
    def keys_per_partition(self) -> int:
        """Most keyed ids that a leader accepts in one partition."""
        return max(self.per_partition // 2, 1)

    @property
    def is_scarce(self) -> bool:
        """True if more than three quarters of the total are used: silent producers then expire sooner."""
        return is_scarce(self.total, self.producer_count)

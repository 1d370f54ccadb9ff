"""The time that changes of metadata cost this broker: commits, new images and what follows of them on the event loop,
and the threads that put entries into the bucket.

No change has a time of its own: one entry of the log has the changes of many callers, and several entries make one
image. So a caller pays the mean of the newest changes for each of its own. A broker measures its own work, also while
another broker is the controller: that one needs about as much.
"""

from __future__ import annotations

CHANGES = 1_000
"""Changes after which older ones count half."""
MEAN_NS_MAX = 10_000_000
"""Largest mean: a broker that was behind makes one image of a snapshot, whose changes nobody counts."""


class ChangeTime:
    """The mean time of a change. The parts that do the work count its time by `spend`."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self._changes = 0

    def spend(self, spent_ns: int) -> None:
        """Counts time that changes took."""
        self.spent_ns += spent_ns

    def count(self, changes: int) -> None:
        """Counts changes that are committed."""
        self._changes += changes
        if self._changes >= 2 * CHANGES:
            self._changes //= 2
            self.spent_ns //= 2

    @property
    def mean_ns(self) -> int:
        """Nanoseconds of one change; 0 before the first."""
        return min(self.spent_ns // self._changes, MEAN_NS_MAX) if self._changes else 0

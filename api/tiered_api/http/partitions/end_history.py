"""Where a partition ended when: tells since when a reader at an offset is behind, without a look at any record."""

from __future__ import annotations

from bisect import bisect_right

ENDS_MAX = 64
"""Of one partition; of more, every second one of the older ones goes."""


class EndHistory:
    """The ends of one partition at the looks of before, each with the last time at which it was seen (ms)."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times: list[int] = []

    def record_end(self, end: int, now_ms: int) -> None:
        """It ends there now. Where it ended later before, records are gone, and what was known is void."""
        ends, times = self._ends, self._times
        if ends and end < ends[-1]:
            ends.clear()
            times.clear()
        if ends and end == ends[-1]:
            times[-1] = now_ms
            return
        if len(ends) == ENDS_MAX:
            del ends[1:-1:2], times[1:-1:2]
        ends.append(end)
        times.append(now_ms)

    def behind_since_ms(self, offset: int) -> tuple[int, bool]:
        """When a reader at `offset` had all for the last time, and whether that is known; else it was earlier."""
        found = bisect_right(self._ends, offset) - 1
        return self._times[max(found, 0)], found >= 0

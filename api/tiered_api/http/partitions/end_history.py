"""Past end offsets of a partition: they tell since when a reader at an offset is behind, without reading records."""

from __future__ import annotations

from bisect import bisect_right

ENDS_MAX = 64
"""Most entries of one partition; at this limit, every second entry is dropped."""


class EndHistory:
    """The past ends of one partition, each with the last time at which it was seen (ms)."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times: list[int] = []

    def record_end(self, end: int, now_ms: int) -> None:
        """Records the current end. If the end has moved back, records were lost, and the earlier entries are
        dropped."""
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
        """Returns when a reader at `offset` was last up to date, and True if that is known; otherwise it was
        earlier."""
        found = bisect_right(self._ends, offset) - 1
        return self._times[max(found, 0)], found >= 0

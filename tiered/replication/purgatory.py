"""Parked callers: each waits until a position passes an offset. Who wakes is decided here; how, by the carrier.

Produces wait for the high watermark, long polls for new data. Both are bounded: one caller too many is refused.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

from tiered.errors import Code, Refused

T = TypeVar("T")

PARKED_MAX = 10_000


class ProgressListener(Protocol):
    """Who follows the ends of many partitions, and looks later."""

    def on_progress(self, index: int) -> None:
        """There may be more in that place of it."""


def add_listener(listeners: dict[tuple[ProgressListener, int], None], listener: ProgressListener, index: int) -> None:
    """One more of them. `Refused` when too many watch."""
    if len(listeners) >= PARKED_MAX:
        raise Refused(Code.THROTTLING_QUOTA_EXCEEDED, f"{PARKED_MAX} requests wait on this partition already")
    listeners[listener, index] = None


class Purgatory(Generic[T]):
    """Tokens by the offset that they wait for. A token that left early is forgotten when its offset comes up."""

    def __init__(self, limit: int = PARKED_MAX) -> None:
        self._limit = limit
        self._heap: list[tuple[int, int, T]] = []
        self._live: set[int] = set()
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def park(self, token: T, offset: int) -> int:
        """Waits until `wake(offset)` or beyond; returns the number to `leave` with. `Refused` when too many wait."""
        if len(self._live) >= self._limit:
            raise Refused(Code.THROTTLING_QUOTA_EXCEEDED, f"{self._limit} requests wait on this partition already")
        self._count += 1
        self._live.add(self._count)
        heapq.heappush(self._heap, (offset, self._count, token))
        return self._count

    def unpark(self, number: int) -> None:
        """The caller does not wait any more. Places that nobody waits in are given back in time."""
        self._live.discard(number)
        if len(self._heap) > 2 * len(self._live) + 16:
            self._heap = [place for place in self._heap if place[1] in self._live]
            heapq.heapify(self._heap)

    def wake(self, position: int) -> list[T]:
        """Tokens whose offset is at or below `position`, in order; they are parked no more."""
        woken: list[T] = []
        while self._heap and self._heap[0][0] <= position:
            _, number, token = heapq.heappop(self._heap)
            if number in self._live:
                self._live.remove(number)
                woken.append(token)
        return woken

    def wake_all(self) -> list[T]:
        """Everybody: the partition is led elsewhere, or gone."""
        woken = [token for _, number, token in sorted(self._heap, key=lambda place: place[:2]) if number in self._live]
        self._heap, self._live = [], set()
        return woken

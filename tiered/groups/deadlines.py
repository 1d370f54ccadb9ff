"""Deadlines by name: setting one later costs nothing, and each is in the heap about once."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

Name = tuple[str, str, str]
"""What is due: kind, group, member."""

_SLACK = 64


class Deadlines:
    """Moved deadlines stay in the heap at their old time and are put right when that comes."""

    def __init__(self) -> None:
        self._at: dict[Name, int] = {}
        self._queued: dict[Name, int] = {}
        self._heap: list[tuple[int, Name]] = []

    def __contains__(self, name: Name) -> bool:
        return name in self._at

    def __iter__(self) -> Iterator[Name]:
        return iter(self._at)

    def set(self, name: Name, at_ms: int) -> None:
        """`name` is due at `at_ms`, whatever was said before."""
        self._at[name] = at_ms
        queued = self._queued.get(name)
        if queued is None or at_ms < queued:
            self._queue(at_ms, name)

    def cancel(self, name: Name) -> None:
        """`name` is not due any more."""
        if self._at.pop(name, None) is not None and len(self._heap) > 2 * len(self._at) + _SLACK:
            self._heap = [(at, each) for each, at in self._at.items()]
            heapq.heapify(self._heap)
            self._queued = dict(self._at)

    def next(self) -> int | None:
        """When the next one is due."""
        while self._heap:
            at, name = self._heap[0]
            wanted = self._at.get(name) if self._queued.get(name) == at else None
            if wanted == at:
                return at
            heapq.heappop(self._heap)
            if self._queued.get(name) == at:
                del self._queued[name]
                if wanted is not None:
                    self._queue(wanted, name)
        return None

    def take(self, now_ms: int) -> Iterator[Name]:
        """Those that are due, earliest first; each is forgotten as it is taken, and may be set anew meanwhile."""
        while (at := self.next()) is not None and at <= now_ms:
            _, name = heapq.heappop(self._heap)
            del self._queued[name], self._at[name]
            yield name

    def _queue(self, at_ms: int, name: Name) -> None:
        self._queued[name] = at_ms
        heapq.heappush(self._heap, (at_ms, name))

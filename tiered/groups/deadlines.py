"""Deadlines by name: setting one later costs nothing, and each is in the heap about once."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

DeadlineKey = tuple[str, str, str]
"""What is due: kind, group, member."""

_SLACK = 64


class Deadlines:
    """Moved deadlines stay in the heap at their old time and are put right when that comes."""

    def __init__(self) -> None:
        self._due_ms: dict[DeadlineKey, int] = {}
        self._queued: dict[DeadlineKey, int] = {}
        self._heap: list[tuple[int, DeadlineKey]] = []

    def __contains__(self, name: DeadlineKey) -> bool:
        return name in self._due_ms

    def __iter__(self) -> Iterator[DeadlineKey]:
        return iter(self._due_ms)

    def set(self, key: DeadlineKey, due_ms: int) -> None:
        """`name` is due at `at_ms`, whatever was said before."""
        self._due_ms[key] = due_ms
        queued = self._queued.get(key)
        if queued is None or due_ms < queued:
            self._queue(due_ms, key)

    def cancel(self, key: DeadlineKey) -> None:
        """`name` is not due any more."""
        if self._due_ms.pop(key, None) is not None and len(self._heap) > 2 * len(self._due_ms) + _SLACK:
            self._heap = [(at, each) for each, at in self._due_ms.items()]
            heapq.heapify(self._heap)
            self._queued = dict(self._due_ms)

    def next_due_ms(self) -> int | None:
        """When the next one is due."""
        while self._heap:
            at, name = self._heap[0]
            wanted = self._due_ms.get(name) if self._queued.get(name) == at else None
            if wanted == at:
                return at
            heapq.heappop(self._heap)
            if self._queued.get(name) == at:
                del self._queued[name]
                if wanted is not None:
                    self._queue(wanted, name)
        return None

    def pop_due(self, now_ms: int) -> Iterator[DeadlineKey]:
        """Those that are due, earliest first; each is forgotten as it is taken, and may be set anew meanwhile."""
        while (at := self.next_due_ms()) is not None and at <= now_ms:
            _, name = heapq.heappop(self._heap)
            del self._queued[name], self._due_ms[name]
            yield name

    def _queue(self, due_ms: int, key: DeadlineKey) -> None:
        self._queued[key] = due_ms
        heapq.heappush(self._heap, (due_ms, key))

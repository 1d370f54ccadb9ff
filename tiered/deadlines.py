"""Deadlines by key, in a heap that holds about one entry for each key. To move a deadline to a later time costs
nothing."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

DeadlineKey = tuple[str, str, str]
"""(kind, name, part of it): what is due, for whom."""

_SLACK = 64


class Deadlines:
    """A heap in which a deadline that moved to a later time stays at its old place until its old time comes."""

    def __init__(self) -> None:
        self._due_ms: dict[DeadlineKey, int] = {}
        self._queued: dict[DeadlineKey, int] = {}
        self._heap: list[tuple[int, DeadlineKey]] = []

    def __contains__(self, name: DeadlineKey) -> bool:
        return name in self._due_ms

    def __iter__(self) -> Iterator[DeadlineKey]:
        return iter(self._due_ms)

    def set(self, key: DeadlineKey, due_ms: int) -> None:
        """Sets the deadline of `key` to `due_ms`, in place of an earlier one."""
        self._due_ms[key] = due_ms
        queued = self._queued.get(key)
        if queued is None or due_ms < queued:
            self._queue(due_ms, key)

    def cancel(self, key: DeadlineKey) -> None:
        """Removes the deadline of `key`."""
        if self._due_ms.pop(key, None) is not None and len(self._heap) > 2 * len(self._due_ms) + _SLACK:
            self._heap = [(at, each) for each, at in self._due_ms.items()]
            heapq.heapify(self._heap)
            self._queued = dict(self._due_ms)

    def next_due_ms(self) -> int | None:
        """Returns the earliest deadline; None if there is none."""
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
        """Yields the keys whose deadline has come, earliest first.

        Each key is removed before it is yielded, so the caller may set it again.
        """
        while (at := self.next_due_ms()) is not None and at <= now_ms:
            _, name = heapq.heappop(self._heap)
            del self._queued[name], self._due_ms[name]
            yield name

    def _queue(self, due_ms: int, key: DeadlineKey) -> None:
        self._queued[key] = due_ms
        heapq.heappush(self._heap, (due_ms, key))

"""Parked requests: each waits until a position reaches an offset. Kafka: purgatory.

Produce requests wait for the high watermark, fetches for new records. The number of both is bounded: one more is
refused. Decides which requests wake; the caller completes them.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

from tiered.errors import Code, Refused

T = TypeVar("T")

PARKED_MAX = 10_000


class ProgressListener(Protocol):
    """An object that follows the ends of many partitions and reads from them later."""

    def on_progress(self, index: int) -> None:
        """There may be more records in the partition that the listener knows by `index`."""


class ProgressListeners(dict[tuple[ProgressListener, int], None]):
    """Listeners to one position of a partition, each with the index by which it knows the partition. A dict, so that
    the check for no listener costs no call."""

    __slots__ = ()

    def add(self, listener: ProgressListener, index: int) -> None:
        """Adds a listener. Raises `Refused` if there are too many."""
        if len(self) >= PARKED_MAX:
            raise Refused(
                Code.THROTTLING_QUOTA_EXCEEDED, f"{PARKED_MAX} requests wait for this partition already: retry later"
            )
        self[listener, index] = None

    def notify(self) -> None:
        """Tells each listener that there may be more records. The call must not add or remove listeners."""
        for listener, index in self:
            listener.on_progress(index)


class Purgatory(Generic[T]):
    """Tokens of parked requests, by the offset that they wait for. A token that was unparked is dropped when its offset
    is reached."""

    __slots__ = ("_count", "_heap", "_limit", "waiting")

    def __init__(self, limit: int = PARKED_MAX) -> None:
        self._limit = limit
        self._heap: list[tuple[int, int, T]] = []
        self.waiting: dict[int, None] = {}
        """Numbers of the tokens that are parked. An empty dict takes a third of the memory of an empty set."""
        self._count = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def park(self, token: T, offset: int) -> int:
        """Parks `token` until `wake` is called with `offset` or above. Returns the number to `unpark` with. Raises
        `Refused` if too many wait."""
        if len(self.waiting) >= self._limit:
            raise Refused(
                Code.THROTTLING_QUOTA_EXCEEDED, f"{self._limit} requests wait for this partition already: retry later"
            )
        self._count += 1
        self.waiting[self._count] = None
        heapq.heappush(self._heap, (offset, self._count, token))
        return self._count

    def unpark(self, number: int) -> None:
        """Removes a token. Frees the memory of removed tokens from time to time."""
        self.waiting.pop(number, None)
        if len(self._heap) > 2 * len(self.waiting) + 16:
            self._heap = [entry for entry in self._heap if entry[1] in self.waiting]
            heapq.heapify(self._heap)

    def wake(self, position: int) -> list[T]:
        """Removes and returns the tokens whose offset is at or below `position`, in order."""
        tokens: list[T] = []
        while self._heap and self._heap[0][0] <= position:
            _, number, token = heapq.heappop(self._heap)
            if number in self.waiting:
                del self.waiting[number]
                tokens.append(token)
        return tokens

    def wake_all(self) -> list[T]:
        """Removes and returns all tokens, in order."""
        entries = sorted(self._heap, key=lambda entry: entry[:2])
        tokens = [token for _, number, token in entries if number in self.waiting]
        self._heap, self.waiting = [], {}
        return tokens

"""The slowest requests of a broker, minute by minute, and when requests are traced at all.

Requests are traced while `tiered.trace.min.ms` is set, or while an operator watches. Then the slowest of each of the
last minutes are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappush, heappushpop
from itertools import count
from typing import NamedTuple

from tiered.ports import Clock, Rng
from tiered.request_trace import RequestTrace

OFF_MS = -1
KEPT_PER_MINUTE = 50
MINUTES = 10
MINUTE_MS = 60_000


class Kept(NamedTuple):
    """A request in the heap of its minute: the fastest first."""

    slow_ns: int
    number: int
    trace: RequestTrace


class SlowestRequests:
    """At most `KEPT_PER_MINUTE` requests of each of the last `MINUTES` minutes."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, list[Kept]]] = deque(maxlen=MINUTES)
        self._numbers = count()

    def add(self, trace: RequestTrace, now_ms: int) -> None:
        """Adds a request that has ended, unless its minute has enough that are slower."""
        minute = now_ms // MINUTE_MS
        if not self._minutes or self._minutes[-1][0] != minute:
            self._minutes.append((minute, []))
        heap, kept = self._minutes[-1][1], Kept(trace.slow_ns, next(self._numbers), trace)
        if len(heap) < KEPT_PER_MINUTE:
            heappush(heap, kept)
        else:
            heappushpop(heap, kept)

    def list(self, now_ms: int) -> list[RequestTrace]:
        """Returns the requests of the last minutes, the slowest first."""
        first = now_ms // MINUTE_MS - MINUTES
        kept = [each for minute, heap in self._minutes if minute > first for each in heap]
        return [each.trace for each in sorted(kept, reverse=True)]

    def list_after(self, number: int, now_ms: int) -> Sequence[Kept]:
        """Returns what was kept after the request with this number and is kept still, in that order."""
        first = now_ms // MINUTE_MS - MINUTES
        kept = [each for minute, heap in self._minutes if minute > first for each in heap if each.number > number]
        return sorted(kept, key=lambda each: each.number)


class RequestTraces:
    """Switches tracing on and off, and keeps the slowest requests."""

    def __init__(self, clock: Clock, rng: Rng) -> None:
        self._clock = clock
        self._random = rng.stream("trace-ids")
        self._slowest = SlowestRequests()
        self._min_ms = OFF_MS
        self._watching = 0
        self._subscribers: list[Callable[[], object]] = []

    @property
    def is_on(self) -> bool:
        """True while requests are traced."""
        return self._min_ms >= 0 or self._watching > 0

    def subscribe(self, on_change: Callable[[], object]) -> None:
        """Calls `on_change` whenever tracing goes on or off."""
        self._subscribers.append(on_change)

    def set_min_ms(self, min_ms: int) -> None:
        """Keeps requests that take at least so long from now on, none if it is `OFF_MS`."""
        was_on, self._min_ms = self.is_on, min_ms
        self._tell(was_on)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Keeps requests of any time meanwhile."""
        was_on, self._watching = self.is_on, self._watching + 1
        self._tell(was_on)
        try:
            yield
        finally:
            was_on, self._watching = self.is_on, self._watching - 1
            self._tell(was_on)

    def add(self, trace: RequestTrace) -> bool:
        """Keeps a request that has ended now, if it is slow, and gives it an id. True if it is kept."""
        if not self._watching and not 0 <= self._min_ms * 1_000_000 <= trace.slow_ns:
            return False
        trace.trace_id = f"{self._random.getrandbits(128):032x}"
        self._slowest.add(trace, self._clock.wall_ms())
        return True

    def list(self) -> list[RequestTrace]:
        """Returns the slowest requests of the last minutes, the slowest first."""
        return self._slowest.list(self._clock.wall_ms())

    def list_after(self, number: int) -> Sequence[Kept]:
        """Returns the slowest requests of the last minutes that were kept after one with this number, in order."""
        return self._slowest.list_after(number, self._clock.wall_ms())

    def _tell(self, was_on: bool) -> None:
        if self.is_on != was_on:
            for on_change in self._subscribers:
                on_change()

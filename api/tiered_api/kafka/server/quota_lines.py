"""The requests that wait because their clients use more than their share of the time: one line for each quota (I28).

A reply names a pause of one sample at most, as in Kafka. So a client with many connections could send one request in
each sample over each of them. Here the next request of any of its connections waits until the share is back at the
quota. The requests of one line are served in the order in which they came. Each connection has one of them at most.

A request whose reply comes later has not paid yet. The next one of its line follows after `GAP_SECONDS`, when the first
steps of it are charged. The steps of a long request wait too. Those of the oldest such request go on first: else many
large requests would all be begun, and none would end.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Event, TimerHandle
from collections.abc import Awaitable
from functools import partial
from typing import Protocol

from tiered.access.client_quotas import ClientQuotas
from tiered.ports import Clock
from tiered.quotas.precedence import Limit

GAP_SECONDS = 0.01
LOOK_SECONDS = 1.0
"""Longest time until a line looks at the rate again: old samples end sooner than the rate says."""
SERVED_AT_ONCE = 16
"""Most requests of one line that are served before others get their turn."""


class WaitingConnection(Protocol):
    """A connection whose request waits."""

    @property
    def pending(self) -> int:
        """Number of requests whose replies are missing."""

    def serve_held(self) -> None:
        """Handles the request now."""


class QuotaLine:
    """The connections whose requests wait for one quota, in their order."""

    def __init__(self) -> None:
        self.waiting: dict[WaitingConnection, None] = {}
        self.timer: TimerHandle | None = None


class QuotaLines:
    """The lines of one server."""

    def __init__(self, loop: AbstractEventLoop, clock: Clock, quotas: ClientQuotas) -> None:
        self._loop = loop
        self._clock = clock
        self._quotas = quotas
        self._lines: dict[Limit, QuotaLine] = {}
        self._begun: dict[Limit, dict[object, Event]] = {}
        """Requests that have waited between two steps and have not ended, the oldest first, and what wakes them."""
        self._served: WaitingConnection | None = None
        """The connection whose request leaves its line now."""

    def must_wait(self, connection: WaitingConnection, limit: Limit) -> bool:
        """True if a request has to wait: its client is over the quota, or other requests of it wait already."""
        if connection is self._served:
            return False
        return limit in self._lines or self._quotas.find_pause(limit) > 0

    def append(self, connection: WaitingConnection, limit: Limit) -> None:
        """Puts a connection at the end of its line. It calls `remove` once its request does not wait any more."""
        line = self._lines.get(limit)
        if line is None:
            line = self._lines[limit] = QuotaLine()
            self._serve_later(limit, line, self._quotas.find_pause(limit) / 1000)
        line.waiting[connection] = None

    def remove(self, connection: WaitingConnection, limit: Limit) -> None:
        """Takes a connection out of its line: its request is served, or the connection has ended."""
        line = self._lines.get(limit)
        if line is not None:
            line.waiting.pop(connection, None)

    def clear(self) -> None:
        """Ends all lines, because the quotas change. The connections begin anew."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            if line.timer is not None:
                line.timer.cancel()
        begun, self._begun = self._begun, {}
        for requests in begun.values():
            for turn in requests.values():
                turn.set()

    def find_wait(self, request: object, limit: Limit) -> Awaitable[None] | None:
        """Returns the wait of a request before its next step, None if it may go on. `end` follows once it has ended."""
        begun = self._begun.get(limit)
        is_oldest = begun is None or next(iter(begun)) is request
        return None if is_oldest and self._quotas.find_pause(limit) <= 0 else self._wait_step(request, limit)

    async def _wait_step(self, request: object, limit: Limit) -> None:
        begun = self._begun.setdefault(limit, {})
        if request not in begun:
            begun[request] = Event()
        while self._begun.get(limit) is begun and request in begun:
            if next(iter(begun)) is not request:
                await begun[request].wait()
                continue
            seconds = self._quotas.find_pause(limit) / 1000
            if seconds <= 0:
                return
            await self._clock.sleep(min(seconds, LOOK_SECONDS))

    def end(self, request: object, limit: Limit) -> None:
        """Forgets a request that has ended. The next one goes on."""
        begun = self._begun.get(limit)
        if begun is None or begun.pop(request, None) is None:
            return
        if begun:
            next(iter(begun.values())).set()
        else:
            del self._begun[limit]

    def _serve_later(self, limit: Limit, line: QuotaLine, seconds: float) -> None:
        line.timer = self._loop.call_later(min(seconds, LOOK_SECONDS), partial(self._serve, limit, line))

    def _serve(self, limit: Limit, line: QuotaLine) -> None:
        seconds = 0.0
        for _ in range(SERVED_AT_ONCE):
            seconds = self._quotas.find_pause(limit) / 1000
            if seconds > 0 or not line.waiting:
                break
            connection = next(iter(line.waiting))
            del line.waiting[connection]
            self._served = connection
            try:
                connection.serve_held()
            finally:
                self._served = None
            if connection.pending:
                seconds = GAP_SECONDS
                break
        if self._lines.get(limit) is not line:
            return  # the quotas changed meanwhile
        if line.waiting:
            self._serve_later(limit, line, seconds)
        else:
            del self._lines[limit]

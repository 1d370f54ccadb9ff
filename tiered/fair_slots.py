"""A bounded number of slots for expensive work, taken in turn by the owners of the work.

Waiting work is kept by owner: the address of a client, for example. A free slot goes to the next owner, so an owner
waits for one piece of work of each other owner at most, however much the others have waiting. Little work may wait: the
owner with most waiting work is refused first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tiered.errors import Code, Refused


class FairSlots:
    """Slots for `limit` pieces of work at once; at most `waiting_max` pieces wait."""

    def __init__(self, limit: int, waiting_max: int) -> None:
        self._free = limit
        self._waiting_max = waiting_max
        self._waiting = 0
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting work by owner. The next slot is for the first owner."""

    @asynccontextmanager
    async def take(self, owner: str) -> AsyncIterator[None]:
        """Waits for a slot, and holds it until the work is done. `Refused` with REQUEST_TIMED_OUT if too much work
        waits: clients repeat such a request."""
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait(owner)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, owner: str) -> None:
        if self._waiting >= self._waiting_max:
            self._make_room(owner)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(owner, deque()).append(turn)
        self._waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._release()
            else:
                self._forget(owner, turn)
            raise

    def _make_room(self, owner: str) -> None:
        """Refuses the newest work of the owner with most waiting work, or the work of the given owner if that owner
        would have as much."""
        busiest = max(self._queues, key=lambda each: len(self._queues[each]), default=owner)
        if busiest == owner or len(self._queues[busiest]) <= len(self._queues.get(owner, ())) + 1:
            raise _make_refusal()
        refused = self._queues[busiest][-1]
        self._forget(busiest, refused)
        if not refused.done():
            refused.set_exception(_make_refusal())

    def _forget(self, owner: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues.get(owner)
        if queue is not None and turn in queue:
            queue.remove(turn)
            self._waiting -= 1
            if not queue:
                del self._queues[owner]

    def _release(self) -> None:
        while self._queues:
            owner = next(iter(self._queues))
            queue = self._queues.pop(owner)
            turn = queue.popleft()
            self._waiting -= 1
            if queue:
                self._queues[owner] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def _make_refusal() -> Refused:
    return Refused(Code.REQUEST_TIMED_OUT, "too many requests of this kind wait already: try again")

"""A bounded number of slots for expensive work, taken in turn by the owners of the work.

Waiting work is kept by owner: the address of a client, for example. A free slot goes to the next owner, so an owner
waits for one piece of work of each other owner at most, however much the others have waiting. The parts of an owner,
such as the connections of an address, take its turns in the same way. Little work may wait: the owner with most waiting
work is refused first.
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
        self._queues: dict[str, dict[str, deque[asyncio.Future[None]]]] = {}
        """Waiting work by owner and part. The next slot is for the first part of the first owner."""

    @asynccontextmanager
    async def take(self, owner: str, part: str = "") -> AsyncIterator[None]:
        """Waits for a slot, and holds it until the work is done. `Refused` with REQUEST_TIMED_OUT if too much work
        waits: clients repeat such a request."""
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait(owner, part)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, owner: str, part: str) -> None:
        if self._waiting >= self._waiting_max:
            self._make_room(owner)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(owner, {}).setdefault(part, deque()).append(turn)
        self._waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._release()
            else:
                self._forget(owner, part, turn)
            raise

    def _make_room(self, owner: str) -> None:
        """Refuses the newest work of the owner with most waiting work, or the work of the given owner if that owner
        would have as much."""
        waiting = {each: sum(map(len, parts.values())) for each, parts in self._queues.items()}
        busiest = max(waiting, key=waiting.__getitem__, default=owner)
        if busiest == owner or waiting[busiest] <= waiting.get(owner, 0) + 1:
            raise _too_many_waiting()
        parts = self._queues[busiest]
        part = max(parts, key=lambda each: len(parts[each]))
        refused = parts[part][-1]
        self._forget(busiest, part, refused)
        if not refused.done():
            refused.set_exception(_too_many_waiting())

    def _forget(self, owner: str, part: str, turn: asyncio.Future[None]) -> None:
        parts = self._queues.get(owner, {})
        queue = parts.get(part)
        if queue is not None and turn in queue:
            queue.remove(turn)
            self._waiting -= 1
            if not queue:
                del parts[part]
            if not parts:
                del self._queues[owner]

    def _release(self) -> None:
        while self._queues:
            owner = next(iter(self._queues))
            parts = self._queues.pop(owner)
            part = next(iter(parts))
            queue = parts.pop(part)
            turn = queue.popleft()
            self._waiting -= 1
            if queue:
                parts[part] = queue
            if parts:
                self._queues[owner] = parts
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def _too_many_waiting() -> Refused:
    return Refused(Code.REQUEST_TIMED_OUT, "too many requests of this kind wait already: try again")

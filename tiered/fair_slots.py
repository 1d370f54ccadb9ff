"""A bounded number of slots for expensive work, taken in turn by the owners of the work.

Waiting work is kept by owner: the address of a client, for example. A free slot goes to the next owner, so an owner
waits for one piece of work of each other owner at most, however much the others have waiting. The parts of an owner,
such as the connections of an address, take its turns in the same way. Little work may wait: the owner with most waiting
work is refused first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tiered.errors import Code, Refused


class FairSlots:
    """Slots for `limit` pieces of work at once; at most `waiting_max` pieces wait. `may_run` says if an owner may have
    one more slot now: a free slot goes to the next owner that may."""

    def __init__(self, limit: int, waiting_max: int, may_run: Callable[[str], bool] = lambda owner: True) -> None:
        self._limit = limit
        self._waiting_max = waiting_max
        self._may_run = may_run
        self.by_owner: dict[str, int] = {}
        """Slots that each owner has."""
        self.taken = 0
        self.waiting = 0
        self._queues: dict[str, dict[str, deque[asyncio.Future[None]]]] = {}
        """Waiting work by owner and part. The next slot is for the first part of the first owner."""

    @asynccontextmanager
    async def take(self, owner: str, part: str = "") -> AsyncIterator[None]:
        """Waits for a slot, and holds it until the work is done. `Refused` with REQUEST_TIMED_OUT if too much work
        waits: clients repeat such a request."""
        if self.taken < self._limit and self._may_run(owner):
            self._occupy(owner)
        else:
            await self._wait(owner, part)
        try:
            yield
        finally:
            self._release(owner)

    async def _wait(self, owner: str, part: str) -> None:
        if self.waiting >= self._waiting_max:
            self._make_room(owner, part)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(owner, {}).setdefault(part, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._release(owner)
            else:
                self._forget(owner, part, turn)
            raise

    def _make_room(self, owner: str, part: str) -> None:
        """Refuses the newest work of the owner with most waiting work. If the given owner would have as much, refuses
        the newest work of its part with most. If the given part would have as much, refuses the work of the part."""
        waiting = {each: sum(map(len, parts.values())) for each, parts in self._queues.items()}
        busiest = max(waiting, key=waiting.__getitem__, default=owner)
        if busiest == owner or waiting[busiest] <= waiting.get(owner, 0) + 1:
            busiest = owner
        parts = self._queues.get(busiest, {})
        busiest_part = max(reversed(parts), key=lambda each: len(parts[each]), default=part)
        own = len(parts.get(part, ())) if busiest == owner else -2
        if len(parts.get(busiest_part, ())) <= own + 1:
            raise _too_many_waiting()
        refused = parts[busiest_part][-1]
        self._forget(busiest, busiest_part, refused)
        if not refused.done():
            refused.set_exception(_too_many_waiting())

    def _forget(self, owner: str, part: str, turn: asyncio.Future[None]) -> None:
        parts = self._queues.get(owner, {})
        queue = parts.get(part)
        if queue is not None and turn in queue:
            queue.remove(turn)
            self.waiting -= 1
            if not queue:
                del parts[part]
            if not parts:
                del self._queues[owner]

    def _occupy(self, owner: str) -> None:
        self.taken += 1
        self.by_owner[owner] = self.by_owner.get(owner, 0) + 1

    def _release(self, owner: str) -> None:
        self.taken -= 1
        self.by_owner[owner] -= 1
        if not self.by_owner[owner]:
            del self.by_owner[owner]
        while self.taken < self._limit:
            following = next(filter(self._may_run, self._queues), None)
            if following is None:
                return
            turn = self._pop(following)
            if not turn.done():
                self._occupy(following)
                turn.set_result(None)

    def _pop(self, owner: str) -> asyncio.Future[None]:
        """Takes the next work of an owner out of its queues: of the part whose turn it is."""
        parts = self._queues.pop(owner)
        part = next(iter(parts))
        queue = parts.pop(part)
        turn = queue.popleft()
        self.waiting -= 1
        if queue:
            parts[part] = queue
        if parts:
            self._queues[owner] = parts
        return turn


def _too_many_waiting() -> Refused:
    return Refused(Code.REQUEST_TIMED_OUT, "too many requests of this kind wait already: try again")

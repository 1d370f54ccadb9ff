"""Shares the loop among clients: long work is done in pieces, and those of one turn of the loop take `TURN_SECONDS`.

Small requests are dealt with as they come: one waits for the pieces of one turn at most. Work that waits goes on in the
order in which it came, piece by piece.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

TURN_SECONDS = 0.01
"""What a turn spends on long work: when it is over, the rest waits for the next ones."""


class Turns:
    """Of one server. A piece is what runs between two calls of `is_free`, `wait` or `soon`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], bool]] = deque()
        """Each runs its piece. True: the piece begins in the next turn, and is all of that one."""
        self._until = 0.0
        self._counts = False
        """Whether the end of this turn will be noticed."""

    def is_free(self) -> bool:
        """True if there is time for another piece in this turn, and nobody waits for it."""
        if self._waiting:
            return False
        if not self._counts:
            self._counts = True
            self._until = self._loop.time() + TURN_SECONDS
            self._loop.call_soon(self._next)
            return True
        return self._loop.time() < self._until

    def soon(self, piece: Callable[[], object]) -> None:
        """Runs a piece in a later turn."""

        def start() -> bool:
            piece()
            return False

        self._append(start)

    def _append(self, start: Callable[[], bool]) -> None:
        self._waiting.append(start)
        if not self._counts:
            self._counts = True
            self._loop.call_soon(self._next)

    async def wait(self) -> None:
        """Returns at once while this turn has time, else in a later one."""
        if not self.is_free():
            its_turn: asyncio.Future[bool] = self._loop.create_future()

            def start() -> bool:
                gone = its_turn.done()
                if not gone:
                    its_turn.set_result(True)
                return not gone

            self._append(start)
            await its_turn

    def _next(self) -> None:
        """A new turn: one of those that wait goes on, and more while there is time."""
        self._counts = bool(self._waiting)
        if not self._waiting:
            return
        self._loop.call_soon(self._next)
        until = self._loop.time() + TURN_SECONDS
        for _ in range(len(self._waiting)):
            later = self._waiting.popleft()()
            if later or self._loop.time() >= until:
                break
        self._until = until

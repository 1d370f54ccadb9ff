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
        self._turn_end = 0.0
        self._end_scheduled = False
        """Whether the end of this turn will be noticed."""

    def has_time(self) -> bool:
        """True if there is time for another piece in this turn, and nobody waits for it."""
        if self._waiting:
            return False
        if not self._end_scheduled:
            self._end_scheduled = True
            self._turn_end = self._loop.time() + TURN_SECONDS
            self._loop.call_soon(self._run_turn)
            return True
        return self._loop.time() < self._turn_end

    def run_later(self, piece: Callable[[], object]) -> None:
        """Runs a piece in a later turn."""

        def start() -> bool:
            piece()
            return False

        self._append(start)

    def _append(self, start: Callable[[], bool]) -> None:
        self._waiting.append(start)
        if not self._end_scheduled:
            self._end_scheduled = True
            self._loop.call_soon(self._run_turn)

    async def wait_turn(self) -> None:
        """Returns at once while this turn has time, else in a later one."""
        if not self.has_time():
            its_turn: asyncio.Future[bool] = self._loop.create_future()

            def start() -> bool:
                gone = its_turn.done()
                if not gone:
                    its_turn.set_result(True)
                return not gone

            self._append(start)
            await its_turn

    def _run_turn(self) -> None:
        """A new turn: one of those that wait goes on, and more while there is time."""
        self._end_scheduled = bool(self._waiting)
        if not self._waiting:
            return
        self._loop.call_soon(self._run_turn)
        until = self._loop.time() + TURN_SECONDS
        for _ in range(len(self._waiting)):
            later = self._waiting.popleft()()
            if later or self._loop.time() >= until:
                break
        self._turn_end = until

"""Fair shares of the event loop: long work runs in pieces, and the pieces of one turn take `TURN_SECONDS`.

Small requests run as they arrive, and wait for the pieces of one turn at most. Waiting work continues in the order of
its arrival, piece by piece.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

TURN_SECONDS = 0.01
"""Time for long work in one turn. After it, the rest waits for later turns."""


class Turns:
    """The turns of one server. A piece is the code between two calls of `has_time`, `wait_turn` or `run_later`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], bool]] = deque()
        """Callbacks that each run a piece. True means that the piece begins in the next turn and takes all of that
        turn."""
        self._turn_end = 0.0
        self._end_scheduled = False
        """True if a callback at the end of this turn is scheduled."""

    def has_time(self) -> bool:
        """True if this turn has time for another piece, and no work waits for its turn."""
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
        """Returns at once while this turn has time, else in a later turn."""
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
        """Starts a new turn: runs one waiting piece, and more while there is time."""
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

"""Fair shares of the event loop: long work runs in pieces, and the pieces of one turn take `TURN_SECONDS`.

Small requests run as they arrive, and wait for the pieces of one turn at most. Other work waits, and is due later the
more its client used the turns lately. So a client with few requests does not wait for the backlog of others. Work that
is due continues piece by piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from heapq import heappop, heappush, heapreplace
from itertools import count
from math import exp, log1p
from typing import NamedTuple
from weakref import WeakValueDictionary

from tiered.ports import Clock

TURN_SECONDS = 0.01
"""Time for long work in one turn. After it, the rest waits for later turns."""
USAGE_SECONDS = 1.0
"""Time constant in which a used turn is forgotten. Bounds the delay of work to about ten times as much."""
PIECE_SECONDS = 0.000_1
"""Time that each piece counts in addition to its own: what a turn of the event loop takes. Less usage hardly delays."""
HOST_PART = 0.001
"""Part of the usage of a host that counts for each of its connections. New connections do not escape it."""


class TurnShare:
    """The time that one connection used lately, and all connections of its host."""

    __slots__ = ("__weakref__", "_host", "_updated", "_used")

    def __init__(self, host: TurnShare | None = None) -> None:
        self._host = host
        self._used = 0.0
        self._updated = 0.0

    def add(self, seconds: float, now: float) -> None:
        """Adds used time."""
        self._used = self.used_seconds(now) + seconds
        self._updated = now
        if self._host is not None:
            self._host.add(seconds, now)

    def used_seconds(self, now: float) -> float:
        """Returns the used time, less what is forgotten by now."""
        return self._used * exp((self._updated - now) / USAGE_SECONDS) if self._used else 0.0

    def delay(self, now: float) -> float:
        """Returns how much later than that of an idle client the work of this client is due.

        The logarithm keeps the order of clients while they wait: all usage is forgotten at the same rate.
        """
        used = self.used_seconds(now) + (self._host.used_seconds(now) * HOST_PART if self._host is not None else 0.0)
        return USAGE_SECONDS * log1p(used / PIECE_SECONDS)


CLIENT: ContextVar[TurnShare | None] = ContextVar("client", default=None)
"""The client for which the current task, and the tasks that it starts, take turns."""


class WaitingPiece(NamedTuple):
    """A piece that waits. The piece that is due first comes first.

    `start` runs the piece. It returns True if the piece begins in the next turn and takes all of that turn.
    """

    due: float
    number: int
    since: float
    share: TurnShare
    start: Callable[[], bool]


class Turns:
    """The turns of one server. A piece is the code between two calls of `has_time`, `wait_turn` or `run_later`."""

    def __init__(self, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[WaitingPiece] = []
        """A heap."""
        self._numbers = count()
        self._turn_end = 0.0
        self._end_scheduled = False
        """True if a callback at the end of this turn is scheduled."""
        self._clock = clock
        self._piece_began_ns = 0
        """CPU time when the piece that runs now began: time without a core is not its client's."""
        self._hosts: WeakValueDictionary[str, TurnShare] = WeakValueDictionary()
        self._others = TurnShare()
        """The share of tasks without a client."""

    def make_share(self, host: str) -> TurnShare:
        """Returns the share of a new connection from a host."""
        shared = self._hosts.get(host)
        if shared is None:
            shared = self._hosts[host] = TurnShare()
        return TurnShare(shared)

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

    def run_later(self, piece: Callable[[], object], share: TurnShare) -> None:
        """Runs a piece of a client in a later turn."""

        def start() -> bool:
            self._begin_piece()
            piece()
            self._end_piece(share)
            return False

        self._append(start, share)

    def _append(self, start: Callable[[], bool], share: TurnShare) -> None:
        now = self._loop.time()
        heappush(self._waiting, WaitingPiece(now + share.delay(now), next(self._numbers), now, share, start))
        if not self._end_scheduled:
            self._end_scheduled = True
            self._loop.call_soon(self._run_turn)

    async def wait_turn(self) -> None:
        """Returns at once while this turn has time, else in a later turn."""
        if not self.has_time():
            await self.wait_next_turn()

    async def wait_next_turn(self) -> None:
        """Returns in a later turn. The work of one client continues in the order of these calls."""
        its_turn: asyncio.Future[bool] = self._loop.create_future()
        share = CLIENT.get() or self._others

        def start() -> bool:
            gone = its_turn.done()
            if not gone:
                # The task continues between these two callbacks.
                self._loop.call_soon(self._begin_piece)
                its_turn.set_result(True)
                self._loop.call_soon(self._end_piece, share)
            return not gone

        self._append(start, share)
        await its_turn

    def _begin_piece(self) -> None:
        self._piece_began_ns = self._clock.cpu_ns()

    def _end_piece(self, share: TurnShare) -> None:
        share.add(PIECE_SECONDS + (self._clock.cpu_ns() - self._piece_began_ns) / 1e9, self._loop.time())

    def _run_turn(self) -> None:
        """Starts a new turn: runs one waiting piece, and more while there is time."""
        self._end_scheduled = bool(self._waiting)
        if not self._waiting:
            return
        self._loop.call_soon(self._run_turn)
        until = self._loop.time() + TURN_SECONDS
        for _ in range(len(self._waiting)):
            later = self._pop_due().start()
            if later or self._loop.time() >= until:
                break
        self._turn_end = until

    def _pop_due(self) -> WaitingPiece:
        """Takes the piece that is due first, by what its client used until now."""
        now, waiting = self._loop.time(), self._waiting
        while True:
            piece = waiting[0]
            due = piece.since + piece.share.delay(now)
            if due <= piece.due:
                return heappop(waiting)
            heapreplace(waiting, piece._replace(due=due))

"""Fair shares of the event loop: long work runs in pieces, and the pieces of one turn take `TURN_SECONDS`.

`each_of` makes the pieces of a loop over items: a piece ends by time, and no loop counts its items. Work for a client
waits for its turn then (`Turns.each_of`). Work of the broker itself goes on in the next turn of the event loop.

Small requests run as they arrive, and wait for the pieces of one turn at most. Other work waits, and is due later the
more its client used the turns lately. So a client with few requests does not wait for the backlog of others. Work that
is due continues piece by piece.

A task continues in the next turn of the event loop. Up to `TASKS_PER_TURN` tasks continue in one turn, in the order in
which they are due, until they have used `GATHER_SECONDS` together. The rest of them keeps its places in the order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextvars import ContextVar
from heapq import heappop, heappush, heapreplace
from itertools import count
from math import exp, log1p
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from tiered.ports import Clock
from tiered.request_trace import QUEUE, timed

T = TypeVar("T")

TURN_SECONDS = 0.01
"""Time for long work in one turn. After it, the rest waits for later turns."""
GATHER_SECONDS = 0.002
"""Time of the tasks of one turn after which no more of them continue. A turn costs as much as several small requests,
and a task of its turn delays the requests that arrive by no more than this and its own time."""
TASKS_PER_TURN = 16
"""Bounds the tasks that wake for nothing, because those before them took the time."""
USAGE_SECONDS = 1.0
"""Time constant in which a used turn is forgotten. Bounds the delay of work to about ten times as much."""
TURN_COST_SECONDS = 0.000_1
"""Time that each piece counts in addition to its own: what a turn of the event loop takes. Less usage hardly delays."""
PIECE_SECONDS = 0.001
"""Time after which a piece of a loop ends."""
HOST_PART = 0.001
"""Part of the usage of a host that counts for each of its connections. New connections do not escape it."""


def each_of(items: Iterable[T]) -> AsyncIterator[T]:
    """Yields the items one by one, for work of the broker itself. Other tasks run after each piece of them."""
    return _in_pieces(items, _wait_next_iteration)


async def _in_pieces(items: Iterable[T], wait: Callable[[], Awaitable[None]]) -> AsyncIterator[T]:
    """Yields the items, and waits after each `PIECE_SECONDS`. No time passes for the loop of the simulator: there only
    a test that sets `PIECE_SECONDS` to 0 has more than one piece."""
    time = asyncio.get_running_loop().time
    ends = time() + PIECE_SECONDS
    for each in items:
        yield each
        if time() >= ends:
            await wait()
            ends = time() + PIECE_SECONDS


async def _wait_next_iteration() -> None:
    await asyncio.sleep(0)


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
        return USAGE_SECONDS * log1p(used / TURN_COST_SECONDS)


CLIENT: ContextVar[TurnShare | None] = ContextVar("client", default=None)
"""The client for which the current task, and the tasks that it starts, take turns."""


FIND_WAIT: ContextVar[Callable[[], Awaitable[None] | None] | None] = ContextVar("find_wait", default=None)
"""Returns the wait of the current task before its next piece, because its client used too much time. None if it may go
on."""


class WaitingPiece(NamedTuple):
    """A piece that waits. The piece that is due first comes first."""

    due: float
    number: int
    since: float
    share: TurnShare
    work: Callable[[], object] | asyncio.Future[bool]
    """A function, or a task that waits: its result is True for the first of its turn."""


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
        self._gather_end = 0.0
        """Time from which no more tasks of this turn continue."""
        self._clock = clock
        self.mono_ns = clock.mono_ns
        self._piece_began_ns = -1
        """CPU time when the piece that runs now began, -1 if none runs. Time without a core is not its client's."""
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
        self._append(self._new_piece(share, piece))

    def _new_piece(self, share: TurnShare, work: Callable[[], object] | asyncio.Future[bool]) -> WaitingPiece:
        now = self._loop.time()
        return WaitingPiece(now + share.delay(now), next(self._numbers), now, share, work)

    def _append(self, piece: WaitingPiece) -> None:
        heappush(self._waiting, piece)
        if not self._end_scheduled:
            self._end_scheduled = True
            self._loop.call_soon(self._run_turn)

    async def wait_turn(self) -> None:
        """Returns at once while this turn has time, else in a later turn. Waits for the pause of the client before."""
        find_wait = FIND_WAIT.get()
        if find_wait is not None and (wait := find_wait()) is not None:
            await wait
        if not self.has_time():
            await timed(QUEUE, self.wait_next_turn())

    def each_of(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yields the items one by one, with a wait like that of `wait_turn` after each piece of them."""
        return _in_pieces(items, self.wait_turn)

    async def run_steps(self, steps: Generator[None, None, T]) -> T:
        """Returns the result of a generator, with a wait like that of `wait_turn` before each of its steps."""
        while True:
            await self.wait_turn()
            try:
                next(steps)
            except StopIteration as ended:
                result: T = ended.value
                return result

    async def wait_next_turn(self) -> None:
        """Returns in a later turn. The work of one client continues in the order of these calls."""
        its_turn: asyncio.Future[bool] = self._loop.create_future()
        piece = self._new_piece(CLIENT.get() or self._others, its_turn)
        while True:
            self._append(piece)
            is_first = await its_turn
            now = self._loop.time()
            if is_first:
                self._gather_end = now + GATHER_SECONDS
            if now < self._gather_end:
                return
            self._piece_began_ns, its_turn = -1, self._loop.create_future()
            piece = piece._replace(work=its_turn)

    def _begin_piece(self) -> None:
        self._piece_began_ns = self._clock.cpu_ns()

    def _end_piece(self, share: TurnShare) -> None:
        if self._piece_began_ns >= 0:
            used_ns, self._piece_began_ns = self._clock.cpu_ns() - self._piece_began_ns, -1
            share.add(TURN_COST_SECONDS + used_ns / 1e9, self._loop.time())

    def _run_turn(self) -> None:
        """Starts a new turn: runs waiting functions while there is time, and wakes the tasks that are due after them.

        The next turn is scheduled last. So it begins after the tasks of this one, and finds those that wait on.
        """
        self._end_scheduled = bool(self._waiting)
        if not self._waiting:
            return
        self._turn_end = self._loop.time() + TURN_SECONDS
        try:
            if not self._run_functions():
                self._wake_tasks()
        finally:
            self._loop.call_soon(self._run_turn)

    def _run_functions(self) -> bool:
        """Runs the functions that are due before any task. Returns True if they took the time of the turn."""
        for _ in range(len(self._waiting)):
            if not self._waiting:
                return False
            piece = self._peek_due()
            if isinstance(piece.work, asyncio.Future):
                return False
            heappop(self._waiting)
            self._begin_piece()
            piece.work()
            self._end_piece(piece.share)
            if self._loop.time() >= self._turn_end:
                return True
        return False

    def _wake_tasks(self) -> None:
        """Wakes the tasks that are due before any function. Each runs between two callbacks, which count its time."""
        woken = 0
        while woken < TASKS_PER_TURN and self._waiting:
            its_turn = self._peek_due().work
            if not isinstance(its_turn, asyncio.Future):
                return
            share = heappop(self._waiting).share
            if not its_turn.done():
                self._loop.call_soon(self._begin_piece)
                its_turn.set_result(not woken)
                self._loop.call_soon(self._end_piece, share)
                woken += 1

    def _peek_due(self) -> WaitingPiece:
        """Brings the piece to the front that is due first, by what its client used until now."""
        now, waiting = self._loop.time(), self._waiting
        while True:
            piece = waiting[0]
            due = piece.since + piece.share.delay(now)
            if due <= piece.due:
                return piece
            heapreplace(waiting, piece._replace(due=due))

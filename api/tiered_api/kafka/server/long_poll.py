"""A fetch of so many partitions that it is read and answered in pieces, between which others have their turns.

Each piece watches what it has read: a record that comes before the last piece is not missed. What came meanwhile is
read again once all were read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tiered.errors import Refused
from tiered_api.kafka.server.fetch.delayed_fetch import COLD_WAIT_MS, NAME, WAIT_MAX_MS, Poll
from tiered_api.kafka.server.fetch.frames import Found

LONG = 1_000
"""Partitions of a fetch that is long."""
PIECE = 1_000
"""Partitions of one piece."""


class LongPoll(Poll):
    """Of one request. It keeps the place of its answer from the beginning."""

    __slots__ = ("_at", "_began", "_late", "_told")

    def begin(self) -> None:
        """Reads the first partitions in a turn to come."""
        self._slot = self._connection.reserve(self.leave)
        self._fetches.waiting[self] = None
        self._fetches.parked += self.size
        self._began = asyncio.get_running_loop().time()
        self._late = False
        self._told: list[Found | bytes] = []
        self._at = 0
        self._due = True
        self._next(self._read_some)

    def finish(self) -> None:
        """Answers with what there is, as soon as all was read."""
        self._late = True
        if self._slot is not None and not self._due:
            self._due = True
            self._next(self._tell_some)

    def _soon(self) -> None:
        if not self._due and self._slot is not None:
            self._due = True
            self._next(self.look)

    def look(self) -> None:
        """Reads again what may have more now."""
        super().look()
        if self._late and self._slot is not None:
            self.finish()

    def _next(self, piece: Callable[[], None]) -> None:
        self._fetches.turns.soon(lambda: self._fetches.guard(self._connection, piece, NAME))

    def _read_some(self) -> None:
        if self._slot is None:
            return
        count, first = self.size, self._connection.turn % self.size
        end = min(self._at + PIECE, count)
        for number in range(self._at, end):
            place = (first + number) % count
            self._read(place)
            try:
                self._watch(place)
            except Refused:
                self._failed = True
        self._at = end
        if end < count:
            self._next(self._read_some)
        else:
            self._all_read()

    def _all_read(self) -> None:
        loop = asyncio.get_running_loop()
        for load in self._cold.values():
            load.calls.append(self._loaded)
        wait_ms = max(self._ask.max_wait_ms, COLD_WAIT_MS) if self._cold else self._ask.max_wait_ms
        at, guard = self._began + min(wait_ms, WAIT_MAX_MS) / 1000, self._fetches.guard
        self._timer = loop.call_at(at, guard, self._connection, self.finish, NAME)
        self._due = False
        if self._late or self.is_done():
            self.finish()
        elif self._dirty:
            self._soon()

    def _tell_some(self) -> None:
        if self._slot is None:
            return
        at = len(self._told)
        if at < self.size:
            end = min(at + PIECE, self.size)
            self._told += [self._founds[place] or self._nothing(place) for place in range(at, end)]
            self._next(self._tell_some)
            return
        slot = self._slot
        self.leave()
        self._connection.answer(slot, self.answer())

    def _all_founds(self) -> list[Found | bytes]:
        return self._told

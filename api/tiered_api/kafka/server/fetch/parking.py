"""The purgatory of fetches: reply slot, deadline and count of each fetch that waits for records.

Consumer and follower fetches differ in what they read and listen to. Both kinds wait in the same way.

A fetch may listen to very many partitions, and many connections may close at the same time. So the listeners are
removed in pieces, in turns that the client of the fetch pays for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tiered.system.turns import Turns
from tiered_api.kafka.server.slots.response_slot import RequestConnection, ResponseSlot, RunGuarded

PARKED_MAX = 500_000
"""Most partitions of parked fetches. A further fetch gets its reply at once, as if its time were up."""
PIECE_LISTENERS = 1_000
"""Most listeners that one piece removes, and that the reply of a fetch removes at once."""
CLOSE_LISTENERS = 16
"""Most listeners that are removed at once when a connection closes: one turn of the event loop closes hundreds."""


class ParkedFetch(Protocol):
    """A fetch that can wait."""

    @property
    def size(self) -> int:
        """Number of requested partitions."""

    def complete(self) -> None:
        """Replies with what there is."""

    def remove_listeners(self, most: int) -> bool:
        """Removes at most so many listeners. Returns True if more are left."""

    def on_close(self) -> None:
        """Stops waiting, because the connection is closed."""


class ParkedFetches:
    """All parked fetches of one handler."""

    __slots__ = ("fetches", "partitions", "run_guarded", "turns")

    def __init__(self, run_guarded: RunGuarded, turns: Turns) -> None:
        self.run_guarded = run_guarded
        self.turns = turns
        self.fetches: dict[ParkedFetch, None] = {}
        self.partitions = 0
        """Partitions of all parked fetches, and of those whose listeners are not removed yet."""

    def has_room(self, size: int) -> bool:
        """True if a fetch of `size` partitions may park."""
        return self.partitions + size <= PARKED_MAX

    def complete_all(self) -> None:
        """Completes all parked fetches, because the broker stops."""
        for fetch in list(self.fetches):
            fetch.complete()


class Parking:
    """The waiting state of one fetch.

    It keeps no reference to its fetch: a cycle would keep the records of a done fetch until the garbage collector runs.
    """

    __slots__ = ("_connection", "_deadline", "_name", "_parked", "slot")

    def __init__(self, parked: ParkedFetches, connection: RequestConnection, name: str) -> None:
        self._parked = parked
        self._connection = connection
        self._name = name
        self._deadline: asyncio.TimerHandle | None = None
        self.slot: ResponseSlot | None = None
        """Place of the reply while the fetch is parked."""

    @property
    def has_deadline(self) -> bool:
        """True once the deadline was set."""
        return self._deadline is not None

    def park(self, fetch: ParkedFetch) -> None:
        """Reserves the place of the reply and counts the fetch."""
        self.slot = self._connection.reserve_slot(fetch.on_close)
        self._parked.fetches[fetch] = None
        self._parked.partitions += fetch.size

    def set_deadline(self, fetch: ParkedFetch, when: float) -> None:
        """Completes the fetch at `when`, in the time of the event loop."""
        loop, run_guarded = asyncio.get_running_loop(), self._parked.run_guarded
        self._deadline = loop.call_at(when, run_guarded, self._connection, fetch.complete, self._name)

    def unpark(self, fetch: ParkedFetch, most: int = PIECE_LISTENERS) -> ResponseSlot | None:
        """Cancels the deadline, and removes at most so many listeners: the others go in later turns. Returns the slot
        to fill, None if the fetch is not parked."""
        if self._deadline is not None:
            self._deadline.cancel()
        slot, self.slot = self.slot, None
        if fetch in self._parked.fetches:
            del self._parked.fetches[fetch]
            self._remove_listeners(fetch, most)
        return slot

    def _remove_listeners(self, fetch: ParkedFetch, most: int) -> None:
        """Removes a piece of the listeners. Progress that they report until then marks a fetch that reads no more."""
        parked = self._parked
        if fetch.remove_listeners(most):
            parked.turns.run_later(partial(self._remove_listeners, fetch, PIECE_LISTENERS), self._connection.turn_share)
        else:
            parked.partitions -= fetch.size

    def run_guarded(self, step: Callable[[], None]) -> None:
        """Runs a later step of the fetch. An error closes its connection."""
        self._parked.run_guarded(self._connection, step, self._name)

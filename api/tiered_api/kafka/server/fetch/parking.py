"""The purgatory of fetches: reply slot, deadline and count of each fetch that waits for records.

Consumer and follower fetches differ in what they read and listen to. Both kinds wait in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from tiered_api.kafka.server.slots.response_slot import RequestConnection, ResponseSlot, RunGuarded

PARKED_MAX = 500_000
"""Most partitions of parked fetches. A further fetch gets its reply at once, as if its time were up."""


class ParkedFetch(Protocol):
    """A fetch that can wait."""

    @property
    def size(self) -> int:
        """Number of requested partitions."""

    def complete(self) -> None:
        """Replies with what there is."""

    def unpark(self) -> ResponseSlot | None:
        """Stops waiting."""


class ParkedFetches:
    """All parked fetches of one handler."""

    __slots__ = ("fetches", "partitions", "run_guarded")

    def __init__(self, run_guarded: RunGuarded) -> None:
        self.run_guarded = run_guarded
        self.fetches: dict[ParkedFetch, None] = {}
        self.partitions = 0
        """Partitions of all parked fetches."""

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
        self.slot = self._connection.reserve_slot(fetch.unpark)
        self._parked.fetches[fetch] = None
        self._parked.partitions += fetch.size

    def set_deadline(self, fetch: ParkedFetch, when: float) -> None:
        """Completes the fetch at `when`, in the time of the event loop."""
        loop, run_guarded = asyncio.get_running_loop(), self._parked.run_guarded
        self._deadline = loop.call_at(when, run_guarded, self._connection, fetch.complete, self._name)

    def unpark(self, fetch: ParkedFetch) -> ResponseSlot | None:
        """Cancels the deadline. Returns the slot to fill, None if the fetch is not parked."""
        parked = self._parked
        if fetch in parked.fetches:
            del parked.fetches[fetch]
            parked.partitions -= fetch.size
        if self._deadline is not None:
            self._deadline.cancel()
        slot, self.slot = self.slot, None
        return slot

    def run_guarded(self, step: Callable[[], None]) -> None:
        """Runs a later step of the fetch. An error closes its connection."""
        self._parked.run_guarded(self._connection, step, self._name)

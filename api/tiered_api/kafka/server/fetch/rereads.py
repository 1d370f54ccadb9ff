"""The next reads of parked consumer fetches, gathered over a few turns of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tiered.replication.replica_reads import ReplicaReads
from tiered.system.turns import TURN_SECONDS
from tiered_api.kafka.server.context.context import KafkaContext
from tiered_api.kafka.server.fetch.frames import PartitionResult, SliceCache
from tiered_api.kafka.server.fetch.parking import Parking

GATHER_SECONDS = 0.006
"""Longest time that a read waits for further records."""


class RereadQueue:
    """Parked fetches that have to read again. They read in one turn, and share what they find. A crowd takes several
    turns: each reply is encrypted and sent at once."""

    __slots__ = ("_context", "_due", "_gather_until", "_loop", "_produced_bytes", "shared_results", "slice_cache")

    def __init__(self, context: KafkaContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._due: list[tuple[Parking, Callable[[], None]]] = []
        self._gather_until = 0.0
        self._produced_bytes = 0
        """Value of `KafkaContext.produced_bytes` when the reads were put off last."""
        self.shared_results: dict[tuple[ReplicaReads, int, bool], tuple[PartitionResult, int]] | None = None
        """Results by source, offset and isolation: consumers at the log end read the same records. None outside the
        turn in which the fetches read, because the logs change between turns."""
        self.slice_cache: SliceCache | None = None
        """Bytes of file slices that several replies of the turn contain."""

    def schedule(self, parking: Parking, reread: Callable[[], None]) -> None:
        """Runs `reread` in the next turn of the event loop, or a little later while records arrive."""
        if not self._due:
            self._gather_until = self._loop.time() + GATHER_SECONDS
            self._loop.call_soon(self._run)
        self._due.append((parking, reread))

    def _run(self) -> None:
        """Runs the reads. While each turn brings records, puts the reads off, so that one reply carries them all."""
        produced = self._context.produced_bytes
        if produced != self._produced_bytes and self._loop.time() < self._gather_until:
            self._produced_bytes = produced
            self._loop.call_soon(self._run)
            return
        due, self._due = self._due, []
        if len(due) > 1:
            self.shared_results, self.slice_cache = {}, SliceCache()
        end = self._loop.time() + TURN_SECONDS
        for number, (parking, reread) in enumerate(due, 1):
            parking.run_guarded(reread)
            if number < len(due) and self._loop.time() >= end:
                self._put_off(due[number:])
                break
        self.shared_results = self.slice_cache = None

    def _put_off(self, rest: list[tuple[Parking, Callable[[], None]]]) -> None:
        """Leaves the rest of a crowd to a later turn: other clients have their requests handled before."""
        if not self._due:
            self._loop.call_soon(self._run)
        self._due = rest + self._due

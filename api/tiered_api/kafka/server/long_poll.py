"""A fetch of so many partitions that it is read and answered in pieces, between which others have their turns.

Each piece watches what it has read: a record that comes before the last piece is not missed. What came meanwhile is
read again once all were read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tiered.errors import Refused
from tiered_api.kafka.server.fetch.delayed_fetch import COLD_WAIT_MS, NAME, WAIT_MAX_MS, DelayedFetch
from tiered_api.kafka.server.fetch.frames import PartitionResult

LARGE_FETCH_PARTITIONS = 1_000
"""Partitions of a fetch that is long."""
PIECE_PARTITIONS = 1_000
"""Partitions of one piece."""


class LargeFetch(DelayedFetch):
    """Of one request. It keeps the place of its answer from the beginning."""

    __slots__ = ("_next_index", "_reply_results", "_started", "_timed_out")

    def start(self) -> None:
        """Reads the first partitions in a turn to come."""
        self._slot = self._connection.reserve_slot(self.unpark)
        self._fetches.parked_fetches[self] = None
        self._fetches.parked_partitions += self.size
        self._started = asyncio.get_running_loop().time()
        self._timed_out = False
        self._reply_results: list[PartitionResult | bytes] = []
        self._next_index = 0
        self._reread_scheduled = True
        self._schedule(self._read_piece)

    def complete(self) -> None:
        """Answers with what there is, as soon as all was read."""
        self._timed_out = True
        if self._slot is not None and not self._reread_scheduled:
            self._reread_scheduled = True
            self._schedule(self._reply_piece)

    def _schedule_reread(self) -> None:
        if not self._reread_scheduled and self._slot is not None:
            self._reread_scheduled = True
            self._schedule(self.reread)

    def reread(self) -> None:
        """Reads again what may have more now."""
        super().reread()
        if self._timed_out and self._slot is not None:
            self.complete()

    def _schedule(self, piece: Callable[[], None]) -> None:
        self._fetches.turns.run_later(lambda: self._fetches.run_guarded(self._connection, piece, NAME))

    def _read_piece(self) -> None:
        if self._slot is None:
            return
        count, first = self.size, self._connection.fetch_rotation % self.size
        end = min(self._next_index + PIECE_PARTITIONS, count)
        for number in range(self._next_index, end):
            place = (first + number) % count
            self._read_partition(place)
            try:
                self._watch(place)
            except Refused:
                self._has_error = True
        self._next_index = end
        if end < count:
            self._schedule(self._read_piece)
        else:
            self._on_all_read()

    def _on_all_read(self) -> None:
        loop = asyncio.get_running_loop()
        for load in self._cold_reads.values():
            load.callbacks.append(self._on_cold_read)
        wait_ms = max(self._request.max_wait_ms, COLD_WAIT_MS) if self._cold_reads else self._request.max_wait_ms
        at, guard = self._started + min(wait_ms, WAIT_MAX_MS) / 1000, self._fetches.run_guarded
        self._timer = loop.call_at(at, guard, self._connection, self.complete, NAME)
        self._reread_scheduled = False
        if self._timed_out or self.is_done():
            self.complete()
        elif self._changed:
            self._schedule_reread()

    def _reply_piece(self) -> None:
        if self._slot is None:
            return
        at = len(self._reply_results)
        if at < self.size:
            end = min(at + PIECE_PARTITIONS, self.size)
            self._reply_results += [self._results[place] or self._encode_empty(place) for place in range(at, end)]
            self._schedule(self._reply_piece)
            return
        slot = self._slot
        self.unpark()
        self._connection.send_response(slot, self.make_response())

    def _all_results(self) -> list[PartitionResult | bytes]:
        return self._reply_results

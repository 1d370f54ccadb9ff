"""A consumer fetch of very many partitions, read and encoded in pieces. Other clients have their turns in between.

Each piece listens to the partitions that it has read, so that no record is missed. Partitions with new records are read
again after the last piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tiered.errors import Refused
from tiered_api.kafka.server.fetch.delayed_fetch import DelayedFetch
from tiered_api.kafka.server.fetch.frames import PartitionResult

LARGE_FETCH_PARTITIONS = 1_000
"""A fetch of more partitions is served in pieces."""
PIECE_PARTITIONS = 1_000
"""Partitions of one piece."""


class LargeFetch(DelayedFetch):
    """One Fetch request of very many partitions. It is parked from the beginning."""

    __slots__ = ("_next_index", "_reply_results", "_started", "_timed_out")

    def start(self) -> None:
        """Parks the fetch, and reads the first partitions in a later turn."""
        self._begin_wait()
        self._started = asyncio.get_running_loop().time()
        self._timed_out = False
        self._reply_results: list[PartitionResult | bytes] = []
        self._next_index = 0
        self._reread_scheduled = True
        self._schedule(self._read_piece)

    def complete(self) -> None:
        """Replies with what there is once every partition was read."""
        self._timed_out = True
        if self._parking.slot is not None and not self._reread_scheduled:
            self._reread_scheduled = True
            self._schedule(self._reply_piece)

    def _schedule_reread(self) -> None:
        if not self._reread_scheduled and self._parking.slot is not None:
            self._reread_scheduled = True
            self._schedule(self.reread)

    def reread(self) -> None:
        """Reads the marked partitions again."""
        super().reread()
        if self._timed_out and self._parking.slot is not None:
            self.complete()

    def _schedule(self, piece: Callable[[], None]) -> None:
        self._context.kafka.turns.run_later(lambda: self._parking.run_guarded(piece), self._connection.turn_share)

    def _read_piece(self) -> None:
        if self._parking.slot is None:
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
        for load in self._cold_reads.values():
            load.callbacks.append(self._on_cold_read)
        self._parking.set_deadline(self, self._started + self._wait_seconds())
        self._reread_scheduled = False
        if self._timed_out or self.is_done():
            self.complete()
        elif self._changed:
            self._schedule_reread()

    def _reply_piece(self) -> None:
        if self._parking.slot is None:
            return
        at = len(self._reply_results)
        if at < self.size:
            end = min(at + PIECE_PARTITIONS, self.size)
            self._check_rights(range(at, end))
            self._reply_results += [self._results[place] or self._encode_empty(place) for place in range(at, end)]
            self._schedule(self._reply_piece)
            return
        slot = self.unpark()
        assert slot is not None, "the fetch was parked a moment ago"
        slot.reply(self.make_response())

    def _all_results(self) -> list[PartitionResult | bytes]:
        return self._reply_results

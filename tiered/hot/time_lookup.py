"""Look-ups by time: the first record that is not earlier than a timestamp, with few batches opened.

The header of a batch names the latest timestamp of its records. The broker does not open compressed batches when they
are produced, so the header may be false. A false header costs a batch that is opened for nothing. One request may open
`WASTED_BATCHES_MAX` such batches. After that a look-up ends at the next batch whose header matches, and returns its
first offset, as Kafka's time index would. The result is still right: no record before that offset is as late as the
timestamp.

One large batch is read and opened at a time, by a thread. Other look-ups wait for it without any batch in memory.
Addresses take turns, and the connections of an address do.
"""

from __future__ import annotations

from functools import partial

from tiered.errors import Corrupt
from tiered.fair_slots import FairSlots
from tiered.hot.disk_log import DiskLog
from tiered.hot.segment_index import CandidateBatch, HeaderBudget
from tiered.records.batch import decode_header, first_at_or_after
from tiered.records.compression import TooLarge
from tiered.records.model import HEADER_BYTES
from tiered.thread_pool import ThreadPool

WASTED_BATCHES_MAX = 4
INLINE_BYTES = 1 << 20
INLINE_COMPRESSED_BYTES = 1 << 10
INLINE_OPENED_BYTES = 1 << 20
"""Size limits of a batch that is opened on the event loop, in a millisecond or two: of any batch, and of a compressed
one before and after. A thread opens a larger one."""
OPENED_BYTES_MAX = 256 << 20
"""Decompressed bytes of a batch in which a look-up searches. A thread takes half a second for them, in little memory.
"""
WAITING_MAX = 2_000
"""Limit on the look-ups that wait for the thread: some megabytes."""

_workers = ThreadPool("time-lookup", 1)
_slots = FairSlots(1, WAITING_MAX)


class TimeLookups:
    """The look-ups by time of one request, of the connection `part` of the address `owner`.

    The look-ups share how many batches they may still open for nothing, and how many headers they may read.
    """

    def __init__(self, owner: str = "", part: str = "") -> None:
        self.headers = HeaderBudget()
        self.owner, self.part = owner, part
        self._wasted_left = WASTED_BATCHES_MAX

    async def find_in_batch(self, candidate: CandidateBatch, timestamp: int, start: int) -> tuple[int, int] | None:
        """Returns (offset, timestamp) of the batch's first record from offset `start` on that is not earlier than
        `timestamp`.

        Returns None if the batch has no such record. Returns the first offset of a batch that is not opened or cannot
        be opened. `Refused` with REQUEST_TIMED_OUT if too many look-ups wait already.
        """
        unopened = max(candidate.base_offset, start), candidate.max_timestamp
        if candidate.read is None or not self._wasted_left:
            return unopened
        try:
            found = await self._open(candidate, timestamp, start)
        except Corrupt:  # the compressed bytes cannot be opened: the client that reads them has to handle that
            return unopened
        if found is None:
            self._wasted_left -= 1
        return found

    async def _open(self, candidate: CandidateBatch, timestamp: int, start: int) -> tuple[int, int] | None:
        if _is_small(candidate):
            try:
                return _open_batch(candidate, timestamp, start, INLINE_OPENED_BYTES)
            except TooLarge:
                pass
        async with _slots.take(self.owner, self.part):
            return await _workers.run(partial(_open_batch, candidate, timestamp, start, OPENED_BYTES_MAX))


def _is_small(candidate: CandidateBatch) -> bool:
    """True if the batch is opened on the event loop."""
    if candidate.read is None or candidate.size > INLINE_BYTES:
        return False
    return candidate.size <= INLINE_COMPRESSED_BYTES or not decode_header(candidate.read(HEADER_BYTES)).codec


def _open_batch(candidate: CandidateBatch, timestamp: int, start: int, max_bytes: int) -> tuple[int, int] | None:
    """Reads and opens the batch. `Corrupt` if the batch is no longer at its place in the log."""
    assert candidate.read is not None
    data = candidate.read(candidate.size)
    if len(data) < candidate.size or decode_header(data).base_offset != candidate.base_offset:
        raise Corrupt("the batch of a look-up by time is gone")
    return first_at_or_after(data, 0, timestamp, start, max_bytes=max_bytes)


async def offset_for_timestamp(log: DiskLog, timestamp: int, lookups: TimeLookups) -> tuple[int, int, int] | None:
    """Returns (offset, timestamp, leader epoch) of the first record of a local log that is not earlier than `timestamp`
    (ms).

    Returns None if there is none.
    """
    start = log.start_offset
    while (candidate := log.find_batch_by_time(timestamp, start, lookups.headers)) is not None:
        found = await lookups.find_in_batch(candidate, timestamp, start)
        if found is not None:
            return (*found, log.epochs.epoch_at(found[0]))
        start = candidate.last_offset + 1
    return None

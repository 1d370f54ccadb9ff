"""Look-ups by time: the first record that is not earlier than a timestamp (I33), with few batches opened.

The header of a batch names the latest timestamp of its records. The broker does not open compressed batches when they
are produced, so the header may be false. A false header costs a batch that is opened for nothing. One request may open
`WASTED_BATCHES_MAX` such batches. After that a look-up ends at the next batch whose header matches, and returns its
first offset, as Kafka's time index would. The result is still right: no record before that offset is as late as the
timestamp.

One large batch is read and opened at a time, by a thread. Other look-ups wait for it without any batch in memory.
Addresses take turns, and the connections of an address do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from tiered.errors import Corrupt, TooLarge
from tiered.fair_slots import FairSlots
from tiered.hot.disk_log import DiskLog
from tiered.hot.segment_index import CandidateBatch, HeaderBudget
from tiered.ports import Buffer
from tiered.records import native
from tiered.records.batch import decode_header, first_at_or_after
from tiered.records.model import HEADER_BYTES, RecordSection
from tiered.records.pieces import open_pieces
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

NO_TIMESTAMP = -1

T = TypeVar("T")

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

    async def find_newest_in_batch(self, candidate: CandidateBatch, before: int, start: int) -> int:
        """Returns the greatest timestamp below `before` of the batch's records from offset `start` on.

        Returns `NO_TIMESTAMP` if there is none, and for a batch that is not opened or cannot be opened.
        """
        if candidate.read is None or not self._wasted_left:
            return NO_TIMESTAMP
        self._wasted_left -= 1
        try:
            return await self._run(candidate, partial(_newest_in_batch, candidate, before, start))
        except Corrupt:
            return NO_TIMESTAMP

    async def _open(self, candidate: CandidateBatch, timestamp: int, start: int) -> tuple[int, int] | None:
        return await self._run(candidate, partial(_open_batch, candidate, timestamp, start))

    async def _run(self, candidate: CandidateBatch, search: Callable[[int], T]) -> T:
        """Calls `search` with the limit on the decompressed bytes, here or in the thread."""
        if _is_small(candidate):
            try:
                return search(INLINE_OPENED_BYTES)
            except TooLarge:
                pass
        async with _slots.take(self.owner, self.part):
            return await _workers.run(partial(search, OPENED_BYTES_MAX))


def _is_small(candidate: CandidateBatch) -> bool:
    """True if the batch is opened on the event loop."""
    if candidate.read is None or candidate.size > INLINE_BYTES:
        return False
    return candidate.size <= INLINE_COMPRESSED_BYTES or not decode_header(candidate.read(HEADER_BYTES)).codec


def _open_batch(candidate: CandidateBatch, timestamp: int, start: int, max_bytes: int) -> tuple[int, int] | None:
    """Reads and opens the batch. `Corrupt` if the batch is no longer at its place in the log."""
    return first_at_or_after(_read_batch(candidate), 0, timestamp, start, max_bytes=max_bytes)


def _newest_in_batch(candidate: CandidateBatch, before: int, start: int, max_bytes: int) -> int:
    """Returns the greatest timestamp below `before` of the batch's records from offset `start` on. Opens it once."""
    data = _read_batch(candidate)
    head = decode_header(data)
    if head.is_log_append_time:
        return head.max_timestamp if head.max_timestamp < before and head.last_offset >= start else NO_TIMESTAMP
    pieces = open_pieces(data, 0, head, max_bytes=max_bytes)
    return max((_newest_in_section(each.section, before, start) for each in pieces), default=NO_TIMESTAMP)


def _newest_in_section(section: RecordSection, before: int, start: int) -> int:
    """Does the same for uncompressed records, by bisection."""
    body, base_offset, base_timestamp, _, count = section
    newest, low, high = NO_TIMESTAMP, 0, before - 1
    while low <= high:
        middle = (low + high) // 2
        found = native.first_at_or_after(body, base_offset, base_timestamp, middle, count, start)
        if found is None or found[1] >= before:
            high = middle - 1
        else:
            newest, low = found[1], found[1] + 1
    return newest


def _read_batch(candidate: CandidateBatch) -> Buffer:
    assert candidate.read is not None
    data = candidate.read(candidate.size)
    if len(data) < candidate.size or decode_header(data).base_offset != candidate.base_offset:
        raise Corrupt("the batch of a look-up by time is gone")
    return data


class TimeSearch(NamedTuple):
    """The result of a search by time in one tier. `found` is (offset, timestamp, leader epoch) or None. No record below
    `end` is late enough."""

    found: tuple[int, int, int] | None
    end: int


async def search_log(log: DiskLog, timestamp: int, start: int, lookups: TimeLookups) -> TimeSearch:
    """Searches a local log for the first record that is not earlier than `timestamp` (ms), from offset `start` on.

    It ends early if the log drops records from there on while a thread opens a batch: they are in the bucket then.
    """
    start = max(start, log.local_start_offset)
    while (candidate := log.segments.find_batch_by_time(timestamp, start, lookups.headers)) is not None:
        epoch = log.epochs.epoch_at(max(candidate.base_offset, start))
        found = await lookups.find_in_batch(candidate, timestamp, start)
        if found is not None and found[0] >= log.start_offset:
            return TimeSearch((*found, epoch), found[0])
        start = max(candidate.last_offset + 1 if found is None else start, log.start_offset)
        if start < log.local_start_offset:
            return TimeSearch(None, start)
    return TimeSearch(None, log.end_offset)


async def find_max_timestamp(log: DiskLog, end: int, before: int, lookups: TimeLookups) -> int:
    """Returns a bound on the timestamps of a local log's records below offset `end`, which are all earlier than
    `before` (ms).

    Returns `NO_TIMESTAMP` if there are none.
    """
    start = log.local_start_offset
    newest, unsure = log.segments.bound_timestamps(start, end, before, lookups.headers)
    for candidate in unsure:
        newest = max(newest, await lookups.find_newest_in_batch(candidate, before, start))
    return newest

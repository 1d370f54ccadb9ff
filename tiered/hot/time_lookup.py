"""Look-ups by time: the first record that is not earlier than a timestamp, with few batches opened.

The header of a batch names the latest timestamp of its records. The broker does not open compressed batches when they
are produced, so the header may be false. A false header costs a batch that is opened for nothing. One request may open
`WASTED_BATCHES_MAX` such batches. After that a look-up ends at the next batch whose header matches, and returns its
first offset, as Kafka's time index would. The result is still right: no record before that offset is as late as the
timestamp.
"""

from __future__ import annotations

from functools import partial

from tiered.errors import Corrupt
from tiered.hot.disk_log import DiskLog
from tiered.hot.segment_index import CandidateBatch
from tiered.records.batch import decode_header, first_at_or_after
from tiered.thread_pool import ThreadPool

WASTED_BATCHES_MAX = 4
INLINE_BYTES = 1 << 20
INLINE_COMPRESSED_BYTES = 1 << 10
"""Size limits of a batch that is opened on the event loop, in a millisecond or two. A thread opens a larger one."""

_workers = ThreadPool("time-lookup", 1)


class TimeLookups:
    """The look-ups by time of one request, and how many batches they may still open for nothing."""

    def __init__(self) -> None:
        self._wasted_left = WASTED_BATCHES_MAX

    async def find_in_batch(self, candidate: CandidateBatch, timestamp: int, start: int) -> tuple[int, int] | None:
        """Returns (offset, timestamp) of the batch's first record from offset `start` on that is not earlier than
        `timestamp`.

        Returns None if the batch has no such record. Returns the first offset of a batch that is not opened or cannot
        be opened.
        """
        unopened = max(candidate.base_offset, start), candidate.max_timestamp
        if candidate.data is None or not self._wasted_left:
            return unopened
        work = partial(first_at_or_after, candidate.data, 0, timestamp, start)
        small = INLINE_COMPRESSED_BYTES if decode_header(candidate.data).codec else INLINE_BYTES
        try:
            found = work() if len(candidate.data) <= small else await _workers.run(work)
        except Corrupt:  # the compressed bytes cannot be opened: the client that reads them has to handle that
            return unopened
        if found is None:
            self._wasted_left -= 1
        return found


async def offset_for_timestamp(log: DiskLog, timestamp: int, lookups: TimeLookups) -> tuple[int, int, int] | None:
    """Returns (offset, timestamp, leader epoch) of the first record of a local log that is not earlier than `timestamp`
    (ms).

    Returns None if there is none.
    """
    start = log.start_offset
    while (candidate := log.find_batch_by_time(timestamp, start)) is not None:
        found = await lookups.find_in_batch(candidate, timestamp, start)
        if found is not None:
            return (*found, log.epochs.epoch_at(found[0]))
        start = candidate.last_offset + 1
    return None

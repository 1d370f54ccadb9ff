"""Look-ups by time: the first record that is not earlier than a timestamp, with few batches opened.

The header of a batch claims the latest timestamp of its records. Nobody opens a compressed batch when it is produced,
so the claim may be false, and a false claim costs a batch that is opened in vain. One request may open `VAIN_MAX` of
them. Then a look-up ends at the next claim, with the first offset of its batch, as Kafka's time index would answer. The
answer stays right: no record before that offset is as late as the timestamp.
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
"""A batch up to these sizes is opened on the loop in a millisecond or two, a larger one by a thread."""

_workers = ThreadPool("time-lookup", 1)


class TimeLookups:
    """The look-ups by time of one request, and how many batches they may still open in vain."""

    def __init__(self) -> None:
        self._wasted_left = WASTED_BATCHES_MAX

    async def find_in_batch(self, candidate: CandidateBatch, timestamp: int, start: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the batch's first record from offset `start` on that is not earlier than `timestamp`;
        None when the claim is false. Its first offset where it is not opened, or cannot be."""
        unopened = max(candidate.base_offset, start), candidate.max_timestamp
        if candidate.data is None or not self._wasted_left:
            return unopened
        work = partial(first_at_or_after, candidate.data, 0, timestamp, start)
        small = INLINE_COMPRESSED_BYTES if decode_header(candidate.data).codec else INLINE_BYTES
        try:
            found = work() if len(candidate.data) <= small else await _workers.run(work)
        except Corrupt:  # compressed bytes that nobody can open: who reads them has to judge
            return unopened
        if found is None:
            self._wasted_left -= 1
        return found


async def offset_for_timestamp(log: DiskLog, timestamp: int, lookups: TimeLookups) -> tuple[int, int, int] | None:
    """(offset, timestamp, leader epoch) of the first record of a local log that is not earlier than `timestamp` (ms);
    None when there is none."""
    start = log.start_offset
    while (claim := log.find_batch_by_time(timestamp, start)) is not None:
        found = await lookups.find_in_batch(claim, timestamp, start)
        if found is not None:
            return (*found, log.epochs.epoch_at(found[0]))
        start = claim.last_offset + 1
    return None

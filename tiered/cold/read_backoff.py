"""When a cold read that failed may be tried again, so that no reader makes a broker hammer the bucket.

Pure. A bucket that does not answer holds up the whole partition; what is damaged holds up its own offset only.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from tiered.errors import Corrupt, Unavailable
from tiered.ids import PartitionId

PAUSE_NS = (250_000_000, 10_000_000_000)
"""Until the next try: after the first failure, and at most."""
FAILURES_MAX = 10_000
"""Failures that are remembered; beyond so many the oldest is forgotten."""
ALL_OFFSETS = -1
"""Stands for all offsets of a partition."""
TIME_LOOKUPS = -2
"""Stands for its look-ups by time, which may meet damage that no offset is known of."""

Failure = Unavailable | Corrupt


@dataclass(slots=True)
class _FailedRead:
    """Nobody tries before `until_ns`."""

    failure: Failure
    pause_ns: int
    until_ns: int


class ReadBackoff:
    """The failures of one reader, by partition and offset. False while there are none."""

    def __init__(self) -> None:
        self._failed_reads: OrderedDict[tuple[PartitionId, int], _FailedRead] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failed_reads)

    def raise_if_backing_off(self, partition_id: PartitionId, offset: int, now_ns: int) -> None:
        """Raises the last failure again while it is too early for another try. One caller tries, the others wait for
        what comes of it."""
        for key in ((partition_id, ALL_OFFSETS), (partition_id, offset)):
            held = self._failed_reads.get(key)
            if held is not None:
                if now_ns < held.until_ns:
                    raise held.failure.with_traceback(None)
                held.until_ns = now_ns + held.pause_ns

    def record_failure(self, partition_id: PartitionId, offset: int, failure: Failure, now_ns: int) -> float:
        """Notes a failure; returns after how many seconds the next try may be made."""
        key = (partition_id, offset if isinstance(failure, Corrupt) else ALL_OFFSETS)
        shortest, longest = PAUSE_NS
        before = self._failed_reads.pop(key, None)
        pause_ns = shortest if before is None else min(2 * before.pause_ns, longest)
        self._failed_reads[key] = _FailedRead(failure, pause_ns, now_ns + pause_ns)
        if len(self._failed_reads) > FAILURES_MAX:
            self._failed_reads.popitem(last=False)
        return pause_ns / 1e9

    def record_success(self, partition_id: PartitionId, offset: int) -> None:
        """A read of this offset came to its end: the next failure is the first again."""
        self._failed_reads.pop((partition_id, ALL_OFFSETS), None)
        self._failed_reads.pop((partition_id, offset), None)

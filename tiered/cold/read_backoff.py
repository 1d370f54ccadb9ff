"""Decides when a failed cold read may be tried again, so that no reader makes a broker overload the bucket.

Pure. If the bucket does not reply, the whole partition waits. If data is damaged, only its own offset waits. Damaged
and missing objects are remembered for the health report, until one of them can be read or an hour has passed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from tiered.errors import Corrupt, TooLarge, Unavailable
from tiered.ids import PartitionId

PAUSE_NS = (250_000_000, 10_000_000_000)
"""Pause before the next try: after the first failure, and the longest."""
FAILURES_MAX = 10_000
"""Limit on remembered failures: beyond it the oldest is forgotten."""
DAMAGED_MAX = 1_000
"""Limit on remembered objects."""
DAMAGED_NS = 3_600_000_000_000
"""Time for which an object is remembered that nobody has read since."""
ALL_OFFSETS = -1
"""Key for all offsets of a partition."""
TIME_LOOKUPS = -2
"""Key for the look-ups by time of a partition, which may meet damage at an unknown offset."""


def txn_index_key(base_offset: int) -> int:
    """Returns the key for the transaction index of a segment: its damage stops read_committed reads only."""
    return TIME_LOOKUPS - 1 - base_offset


Failure = Unavailable | Corrupt


@dataclass(slots=True)
class _FailedRead:
    """A failed read. No new try before `until_ns`."""

    failure: Failure
    pause_ns: int
    until_ns: int


class DamagedObject(NamedTuple):
    """An object that is missing or damaged by the last read of it, and the age of that read."""

    partition_id: PartitionId
    why: str
    age_ms: int


class ReadBackoff:
    """The failures of one reader, by partition and offset. False in a condition if there are none."""

    def __init__(self) -> None:
        self._failed_reads: OrderedDict[tuple[PartitionId, int], _FailedRead] = OrderedDict()
        self._damaged: OrderedDict[tuple[PartitionId, str], tuple[str, int]] = OrderedDict()
        """The reason and the time of the last failed read, by object."""

    def __len__(self) -> int:
        return len(self._failed_reads) + len(self._damaged)

    def raise_if_backing_off(self, partition_id: PartitionId, offset: int, now_ns: int) -> None:
        """Raises the last failure again if it is too early for another try.

        After the pause one caller tries. The others wait for its outcome.
        """
        for key in ((partition_id, ALL_OFFSETS), (partition_id, offset)):
            failed_read = self._failed_reads.get(key)
            if failed_read is not None:
                if now_ns < failed_read.until_ns:
                    raise failed_read.failure.with_traceback(None)
                failed_read.until_ns = now_ns + failed_read.pause_ns

    def record_failure(self, partition_id: PartitionId, offset: int, failure: Failure, now_ns: int) -> float:
        """Records a failure and returns the seconds until the next try."""
        key = (partition_id, offset if isinstance(failure, Corrupt) else ALL_OFFSETS)
        shortest, longest = PAUSE_NS
        before = self._failed_reads.pop(key, None)
        pause_ns = shortest if before is None else min(2 * before.pause_ns, longest)
        self._failed_reads[key] = _FailedRead(failure, pause_ns, now_ns + pause_ns)
        if len(self._failed_reads) > FAILURES_MAX:
            self._failed_reads.popitem(last=False)
        if isinstance(failure, Corrupt) and not isinstance(failure, TooLarge):
            self._damaged[partition_id, failure.where] = str(failure), now_ns
            self._damaged.move_to_end((partition_id, failure.where))
            if len(self._damaged) > DAMAGED_MAX:
                self._damaged.popitem(last=False)
        return pause_ns / 1e9

    def record_success(self, partition_id: PartitionId, offset: int) -> None:
        """Records a successful read of this offset: the next failure starts with the shortest pause."""
        self._failed_reads.pop((partition_id, ALL_OFFSETS), None)
        before = self._failed_reads.pop((partition_id, offset), None)
        if before is not None and isinstance(before.failure, Corrupt):
            self.record_whole(partition_id, before.failure.where)

    def record_whole(self, partition_id: PartitionId, where: str) -> None:
        """Forgets the damage of an object that was read."""
        self._damaged.pop((partition_id, where), None)

    def list_damaged(self, now_ns: int) -> list[DamagedObject]:
        """Returns the objects whose last read of the last hour found damage, oldest first."""
        return [
            DamagedObject(partition_id, why, (now_ns - failed_ns) // 1_000_000)
            for (partition_id, _), (why, failed_ns) in self._damaged.items()
            if now_ns - failed_ns < DAMAGED_NS
        ]

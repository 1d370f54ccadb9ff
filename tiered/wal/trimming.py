"""Decision on the slots of a broker's own chain that are not needed any more. Pure.

A slot is needed while a segment in the bucket lacks records that it holds. A takeover finds the first free slot by
a list: it is not below the `decided` of the newest object there. A list may lack what was put just now. So the newest
object that each list shows always stays, and all slots from its `decided` on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from tiered.ids import PartitionId

MARKS_MAX = 16
"""Most marks of a partition, and the parts of its chain that are told apart: neighbours in one part are merged. That
keeps a slot longer than needed by such a part, and never shorter."""
LISTED_NS = 600_000_000_000
"""Age from which on each list of a store shows an object."""
STEP_NS = 60_000_000_000
"""Least time between two objects whose age is known."""


@dataclass(slots=True)
class ChainTrimming:
    """The first slot that each partition needs."""

    _marks: dict[PartitionId, deque[tuple[int, int]]] = field(default_factory=dict)
    """(slot, end offset) by partition: the slot is needed until all records below the offset are in segments."""
    _ages: deque[tuple[int, int]] = field(default_factory=deque)
    """(`decided`, time of its put) of some objects, in order: first of the first object, whose `decided` is 0."""

    def note_put(self, slot: int, decided: int, ends: Mapping[PartitionId, int], now_ns: int) -> None:
        """Notes that a slot holds records of partitions, each up to an end offset."""
        if not self._ages or (decided > self._ages[-1][0] and now_ns - self._ages[-1][1] >= STEP_NS):
            self._ages.append((decided, now_ns))
        for partition, end in ends.items():
            marks = self._marks.setdefault(partition, deque())
            if marks and (slot - marks[-1][0]) * MARKS_MAX <= slot - marks[0][0]:
                last, last_end = marks.pop()
                marks.append((min(last, slot), max(last_end, end)))
                continue
            marks.append((slot, end))
            if len(marks) > MARKS_MAX:
                (first, first_end), (second, second_end) = marks.popleft(), marks.popleft()
                marks.appendleft((min(first, second), max(first_end, second_end)))

    def note_segments(self, partition: PartitionId, cold_end: int) -> None:
        """Notes that all records below `cold_end` are in segments of the bucket."""
        marks = self._marks.get(partition)
        while marks and marks[0][1] <= cold_end:
            marks.popleft()
        if marks is not None and not marks:
            del self._marks[partition]

    def forget(self, partition: PartitionId) -> None:
        """Notes that a partition needs nothing of this chain: it was deleted, or a later leader has its records."""
        self._marks.pop(partition, None)

    def partitions(self) -> list[PartitionId]:
        """Returns the partitions that need something."""
        return list(self._marks)

    def first_needed(self, now_ns: int) -> int:
        """Returns the first slot that has to stay."""
        while len(self._ages) > 1 and now_ns - self._ages[1][1] >= LISTED_NS:
            self._ages.popleft()
        if not self._ages:
            return 0
        return min(chain((self._ages[0][0],), (slot for marks in self._marks.values() for slot, _ in marks)))

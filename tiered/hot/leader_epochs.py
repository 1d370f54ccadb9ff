"""The lineage of a log: which leader epoch wrote from which offset on, and where two histories diverge.

Pure. Epochs and offsets both increase from entry to entry. An epoch that wrote nothing has no entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from operator import itemgetter

from tiered.errors import check_invariant
from tiered.ids import NO_EPOCH

Lineage = tuple[tuple[int, int], ...]
"""(leader epoch, first offset written under it), both strictly increasing."""

_EPOCH = itemgetter(0)
_START = itemgetter(1)


class LeaderEpochs:
    """The lineage of one partition. `latest` is the newest epoch, or -1."""

    __slots__ = ("_entries", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = []
        self.latest = NO_EPOCH
        for epoch, start in entries:
            self._assign(epoch, start)
        self.check()

    @property
    def lineage(self) -> Lineage:
        return tuple(self._entries)

    def assign(self, epoch: int, start: int) -> bool:
        """Records that `epoch` writes from `start` on, and returns True if anything changed.

        Entries that contradict this (the same or a newer epoch, or a start at or above `start`) are removed.
        """
        changed = self._assign(epoch, start)
        if changed:
            self.check()
        return changed

    def _assign(self, epoch: int, start: int) -> bool:
        if epoch < 0 or (self._entries and self._entries[-1] == (epoch, start)):
            return False
        if epoch == self.latest and start >= self._entries[-1][1]:
            return False
        kept = [entry for entry in self._entries if entry[0] < epoch and entry[1] < start]
        self._entries = [*kept, (epoch, start)]
        self.latest = epoch
        return True

    def epoch_at(self, offset: int) -> int:
        """Returns the epoch that wrote or will write `offset`, or -1 below the first entry."""
        at = bisect_right(self._entries, offset, key=_START)
        return self._entries[at - 1][0] if at else NO_EPOCH

    def end_offset_for(self, epoch: int, end_offset: int) -> tuple[int, int]:
        """Returns (largest known epoch <= `epoch`, its end offset): a follower compares its own log end with it.

        `end_offset` is the log end, where the latest epoch ends. The result is (-1, -1) if `epoch` is newer than all
        entries, as in Kafka's OffsetForLeaderEpoch. If it is older than all, the result is `epoch` with the start of
        the first entry.
        """
        if epoch == self.latest and epoch != NO_EPOCH:
            return epoch, end_offset
        at = bisect_right(self._entries, epoch, key=_EPOCH)
        if at == len(self._entries):
            return NO_EPOCH, -1
        if at == 0:
            return epoch, self._entries[0][1]
        return self._entries[at - 1][0], self._entries[at][1]

    def truncate_from(self, end_offset: int) -> bool:
        """Removes entries that start at or above `end_offset`, after a truncation there. Returns True if anything
        changed."""
        return self._replace([entry for entry in self._entries if entry[1] < end_offset])

    def truncate_start(self, start_offset: int) -> bool:
        """Removes epochs that end at or below `start_offset`. The epoch that wrote `start_offset` then starts there.

        Returns True if anything changed.
        """
        at = bisect_right(self._entries, start_offset, key=_START)
        if at == 0:
            return False
        return self._replace([(self._entries[at - 1][0], start_offset), *self._entries[at:]])

    def lineage_within(self, start: int, end: int) -> Lineage:
        """Returns the part of the lineage that wrote `[start, end)`, with its first entry moved up to `start`."""
        at = max(bisect_right(self._entries, start, key=_START) - 1, 0)
        return tuple((epoch, max(begin, start)) for epoch, begin in self._entries[at:] if begin < end)

    def _replace(self, entries: list[tuple[int, int]]) -> bool:
        changed = entries != self._entries
        self._entries = entries
        self.latest = entries[-1][0] if entries else NO_EPOCH
        self.check()
        return changed

    def check(self) -> None:
        """Checks that both columns increase and that `latest` is the last epoch."""
        for a, b in pairwise(self._entries):
            check_invariant(a[0] < b[0] and a[1] < b[1], "lineage out of order", a, b)
        check_invariant(
            self.latest == (self._entries[-1][0] if self._entries else NO_EPOCH), "latest epoch", self.latest
        )

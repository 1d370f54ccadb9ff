"""The transactions of one partition whose outcome a reader cannot know yet.

Pure. Keeps the part of I14 that holds back readers: a read_committed reader sees nothing at or above the first record
of an open transaction. It sees nothing of an ended one either while its marker may lie above the high watermark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter

from tiered.errors import check_invariant

_MARKER_OFFSET = itemgetter(1)


class OngoingTxns:
    """The open transactions, and the ended ones whose marker is not known to be replicated."""

    __slots__ = ("_open", "_unreplicated", "first_unstable_offset")

    def __init__(self, producer_ids: Iterable[tuple[int, int]] = ()) -> None:
        """Takes (first offset, producer id) of each open transaction, in the order of offsets."""
        self._open: dict[int, int] = dict(producer_ids)
        self._unreplicated: list[tuple[int, int]] = []
        """(first offset, marker offset) of ended transactions whose marker may lie above the high watermark, in
        the order of markers."""
        self.first_unstable_offset: int | None = None
        """First offset whose outcome a read_committed reader cannot know yet. None if there is none."""
        self._find_first_unstable()

    @property
    def first_offset(self) -> int | None:
        """The first offset of the oldest transaction without a marker; None if there is none."""
        return next(iter(self._open), None)

    @property
    def oldest_producer_id(self) -> int | None:
        """The producer id of the oldest transaction without a marker; None if there is none."""
        return next(iter(self._open.values()), None)

    def has_begun_below(self, offset: int) -> bool:
        """True if a transaction without a marker began below `offset`."""
        return next(iter(self._open), offset) < offset

    def list_begun_below(self, offset: int) -> list[int]:
        """Returns the producer ids of the transactions without a marker that began below `offset`."""
        return [producer_id for first, producer_id in self._open.items() if first < offset]

    def begin(self, first_offset: int, producer_id: int) -> None:
        """Adds a transaction. Its first record is the last one of the log."""
        self._open[first_offset] = producer_id
        if self.first_unstable_offset is None:
            self.first_unstable_offset = first_offset

    def end(self, first_offset: int, marker_offset: int) -> int:
        """Ends a transaction by its marker, which is the last record of the log. Returns the last stable offset after
        it, which an entry of the transaction index has."""
        del self._open[first_offset]
        self._unreplicated.append((first_offset, marker_offset))
        return next(iter(self._open), marker_offset + 1)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Drops ended transactions whose marker is below the high watermark: every reader can know their outcome."""
        ended = self._unreplicated
        if ended and ended[0][1] < high_watermark:
            del ended[: bisect_left(ended, high_watermark, key=_MARKER_OFFSET)]
            self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        first_ended, first_open = min(self._unreplicated, default=None), self.first_offset
        firsts = [] if first_ended is None else [first_ended[0]]
        self.first_unstable_offset = min(firsts if first_open is None else [*firsts, first_open], default=None)

    def check(self) -> None:
        """Checks the order of the transactions, and the first unstable offset."""
        known = self.first_unstable_offset
        self._find_first_unstable()
        check_invariant(known == self.first_unstable_offset, "first unstable offset is another", known)
        check_invariant(list(self._open) == sorted(self._open), "open transactions out of order", self._open)

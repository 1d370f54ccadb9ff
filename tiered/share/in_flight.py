"""The in-flight records of a share partition: runs of neighbouring offsets that have everything in common.

The runs cover the offsets from the share partition's start offset to its end without a gap. A run is split where a
member acknowledges a part of it. Equal neighbours become one run again, so there are at most as many runs as offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from tiered.share.state import RecordState

NO_WRITE = 0
"""`write_id` of a run whose state is not being changed."""
_FIRST = attrgetter("first_offset")


@dataclass(slots=True)
class Run:
    """Neighbouring records with one state. `member_id` and `lock_until_ms` belong to acquired records.

    A run with a `write_id` gets `next_state` once that write is persisted. It stays acquired until then.
    """

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int
    member_id: str = ""
    lock_until_ms: int = 0
    write_id: int = NO_WRITE
    next_state: RecordState = RecordState.AVAILABLE

    @property
    def is_held(self) -> bool:
        """True if a member may acknowledge the records: they are acquired, and no write is on its way."""
        return self.state is RecordState.ACQUIRED and self.write_id == NO_WRITE

    def is_like(self, other: Run) -> bool:
        """True if all but the offsets is equal."""
        return replace(self, first_offset=other.first_offset, last_offset=other.last_offset) == other


class InFlight:
    """Runs in the order of their offsets, from `start_offset` to `end_offset` (exclusive)."""

    def __init__(self, start_offset: int) -> None:
        self.runs: list[Run] = []
        self.start_offset = start_offset
        self.end_offset = start_offset

    def append(self, run: Run) -> None:
        """Adds records at the end."""
        self.end_offset = run.last_offset + 1
        if self.runs and self.runs[-1].is_like(run):
            self.runs[-1].last_offset = run.last_offset
        else:
            self.runs.append(run)

    def extend(self, size: int, state: RecordState) -> Run:
        """Adds records that were never delivered at the end, as a run of its own. Nothing is added for a size of 0 or
        less."""
        run = Run(self.end_offset, self.end_offset + size - 1, state, 0)
        if size > 0:
            self.runs.append(run)
            self.end_offset += size
        return run

    def overlapping(self, first_offset: int, last_offset: int) -> Iterator[Run]:
        """Yields the runs with records in a range, whole. Nobody may split a run meanwhile."""
        for at in range(max(self._index(first_offset), 0), len(self.runs)):
            if self.runs[at].first_offset > last_offset:
                return
            yield self.runs[at]

    def cut_out(self, first_offset: int, last_offset: int) -> list[Run]:
        """Returns the runs of a range, split so that they begin and end with it."""
        self._split(first_offset)
        self._split(last_offset + 1)
        return list(self.overlapping(first_offset, last_offset)) if first_offset <= last_offset else []

    def unite(self, first_offset: int, last_offset: int) -> None:
        """Makes one run of equal neighbours, in a range and at both of its ends."""
        begin = max(self._index(first_offset) - 1, 0)
        end = self._index(last_offset) + 2
        united: list[Run] = []
        for run in self.runs[begin:end]:
            if united and united[-1].is_like(run):
                united[-1].last_offset = run.last_offset
            else:
                united.append(run)
        self.runs[begin:end] = united

    def drop_done(self) -> None:
        """Moves the start offset over the records at the start that no member gets any more."""
        done = 0
        while done < len(self.runs) and self.runs[done].state.is_terminal:
            done += 1
        if done:
            self.start_offset = self.runs[done - 1].last_offset + 1
            del self.runs[:done]

    def drop_below(self, offset: int) -> None:
        """Moves the start offset up: all records below are gone."""
        self._split(offset)
        del self.runs[: max(self._index(offset), 0) if offset < self.end_offset else len(self.runs)]
        self.start_offset = max(self.start_offset, offset)
        self.end_offset = max(self.end_offset, offset)

    def _split(self, offset: int) -> None:
        at = self._index(offset)
        if at >= 0:
            run = self.runs[at]
            if run.first_offset < offset <= run.last_offset:
                self.runs.insert(at + 1, replace(run, first_offset=offset))
                run.last_offset = offset - 1

    def _index(self, offset: int) -> int:
        """Returns the index of the last run that begins at or below an offset; -1 if there is none."""
        return bisect_right(self.runs, offset, key=_FIRST) - 1

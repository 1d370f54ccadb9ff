"""The state of a share partition as it is persisted: a start offset, and batches of records above it (I39).

States of one state epoch form a lattice: for each record the higher delivery count counts, then the later state. The
start offset only grows. So it does not matter in which order writes arrive, or if one arrives twice: a late write
never undoes an acknowledgement.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from tiered.value import value

UNINITIALIZED_OFFSET = -1
"""Start offset of a share partition that no member has read: the group's reset strategy gives it one."""
DELIVERY_COUNT_LAST = 32_767
"""Highest delivery count that a batch can have."""


class RecordState(IntEnum):
    """State of a record for a share group, with Kafka's numbers. ACQUIRED is never persisted."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        """True if the group gets the record no more."""
        return self >= RecordState.ACKNOWLEDGED


PERSISTED_STATES = frozenset({RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


class StateBatch(NamedTuple):
    """Records of one state and one delivery count, by their first and their last offset. `state` is a number of
    `RecordState`, unless a request brought it."""

    first_offset: int
    last_offset: int
    state: int
    delivery_count: int


@value
class ShareState:
    """The persisted state of a share partition. `batches` are sorted, disjoint and at or above `start_offset`.

    A record above the start offset without a batch was never released or acknowledged: it is available.
    """

    start_offset: int = UNINITIALIZED_OFFSET
    state_epoch: int = 0
    batches: tuple[StateBatch, ...] = ()


def join_batches(batches: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Returns sorted and disjoint batches with the winning state of each record at or above `start_offset`.

    The given batches may overlap and have any order. The higher delivery count wins, then the later state.
    """
    rows = sorted(each for each in batches if each.last_offset >= start_offset)
    open_batches: list[tuple[int, int, int]] = []
    found: list[StateBatch] = []
    at, position = start_offset, 0
    while position < len(rows) or open_batches:
        if not open_batches:
            at = max(at, rows[position].first_offset)
        while position < len(rows) and rows[position].first_offset <= at:
            _, last, state, count = rows[position]
            heapq.heappush(open_batches, (-count, -state, last))
            position += 1
        while open_batches and open_batches[0][2] < at:
            heapq.heappop(open_batches)
        if open_batches:
            minus_count, minus_state, last = open_batches[0]
            until = min(last, rows[position].first_offset - 1) if position < len(rows) else last
            append_batch(found, StateBatch(at, until, RecordState(-minus_state), -minus_count))
            at = until + 1
    return tuple(found)


def append_batch(batches: list[StateBatch], batch: StateBatch) -> None:
    """Appends a batch behind all others, as a part of the last one if that ends before it with the same state."""
    if batches:
        first, last, *rest = batches[-1]
        if last + 1 == batch.first_offset and (batch.state, batch.delivery_count) == tuple(rest):
            batches[-1] = batch._replace(first_offset=first)
            return
    batches.append(batch)

"""Decisions on the windows of a chain: when one ends, and which slots confirm which offsets. Pure.

Records count as stored once their slot and all slots before it are decided: who takes over reads a chain up to its
first free slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tiered.ids import PartitionId
from tiered.value import value

T = TypeVar("T")

UNDECIDED_MAX = 6
"""Most slots from the first one whose put is not decided: some puts run at a time. A store makes more conditional puts
at once, so that the metadata log never waits behind windows."""
UNDECIDED_BYTES_MAX = 64 << 20
"""Bytes of windows in memory from which on no further put begins."""


@value
class WindowSettings:
    """`window_ns` is the longest wait for other writers, `window_bytes` the size that ends a wait."""

    window_ns: int
    window_bytes: int


@dataclass(slots=True)
class WindowTimer:
    """The window that is open. `partitions` wrote in it, `waiting_bytes` wait for their put."""

    settings: WindowSettings
    opened_ns: int = -1
    waiting_bytes: int = 0
    partitions: set[PartitionId] = field(default_factory=set)
    _last_writers: int = 0
    """Partitions of the window before."""

    def note(self, partition: PartitionId, appended: int, now_ns: int) -> None:
        """Notes that `appended` bytes of a partition wait."""
        if self.opened_ns < 0:
            self.opened_ns = now_ns
        self.partitions.add(partition)
        self.waiting_bytes += appended

    def ends_ns(self, undecided: int, undecided_bytes: int, now_ns: int) -> int | None:
        """Returns the time at which the window ends, which may be over. None if nothing waits, or too many slots or
        bytes are undecided."""
        if self.opened_ns < 0 or undecided >= UNDECIDED_MAX or undecided_bytes >= UNDECIDED_BYTES_MAX:
            return None
        if self.waiting_bytes >= self.settings.window_bytes:
            return now_ns
        if not undecided and len(self.partitions) <= 1 and self._last_writers <= 1:
            return now_ns  # nobody else writes
        return self.opened_ns + self.settings.window_ns

    def end(self) -> frozenset[PartitionId]:
        """Ends the window. Returns the partitions that wrote in it."""
        found, self._last_writers = frozenset(self.partitions), len(self.partitions)
        self.partitions, self.waiting_bytes, self.opened_ns = set(), 0, -1
        return found


@dataclass(slots=True)
class DecidedSlots(Generic[T]):
    """Slots whose put is decided, and what each of them confirms."""

    next_slot: int = 0
    """The first slot that is not decided, or that waits for one before it."""
    _waiting: dict[int, Sequence[T]] = field(default_factory=dict)

    def decide(self, slot: int, confirmed: Sequence[T]) -> list[T]:
        """Notes that a slot has an object, which confirms this. Returns all that counts now, in the order of slots."""
        self._waiting[slot] = confirmed
        found: list[T] = []
        while self.next_slot in self._waiting:
            found += self._waiting.pop(self.next_slot)
            self.next_slot += 1
        return found


@dataclass(slots=True)
class StoredRange:
    """How far the records of one leader are stored without a gap. Extents may be confirmed out of order: one whose slot
    went to a fence gets a later slot."""

    end: int
    _ahead: dict[int, int] = field(default_factory=dict)
    """End by first offset, of extents behind a gap."""

    def confirm(self, base: int, end: int) -> bool:
        """Notes that the offsets [base, end) are stored. Returns True if `end` of this range moved."""
        self._ahead[base] = end
        before = self.end
        while (found := self._ahead.pop(self.end, None)) is not None:
            self.end = found
        return self.end > before

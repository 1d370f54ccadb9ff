"""Decides when a get is sent a second time: past the p95 of gets of its size, and for a small share of all gets.

Pure. A store replies late to some requests for reasons of one of its machines. A second request mostly finds another
machine. The share bounds what that costs, also while all replies are late.
"""

from __future__ import annotations

from collections import deque

SAMPLES_MAX = 200
"""Latest gets of a size that the p95 is taken from."""
SAMPLES_MIN = 50
"""With fewer gets of a size nothing is sent twice."""
LATE_SHARE = 0.05
"""Part of the gets that are late: those beyond the p95."""
HEDGE_SHARE = 0.05
"""Most second gets, as a part of all gets."""
SAVED_MAX = 4.0
"""Most second gets that earlier gets leave over for a bad moment."""
FAST_NS = 50_000_000
"""A store whose p95 is below this needs no second gets."""


class HedgePlan:
    """The durations of the latest gets, and the second gets that are left."""

    def __init__(self) -> None:
        self._durations: dict[int, deque[int]] = {}
        """By size class: the bit length of the size in MiB."""
        self._saved = 0.0

    def record(self, length: int, duration_ns: int) -> None:
        """Records a get of so many bytes that succeeded."""
        self._durations.setdefault(_size_class(length), deque(maxlen=SAMPLES_MAX)).append(duration_ns)
        self._saved = min(self._saved + HEDGE_SHARE, SAVED_MAX)

    def find_delay_ns(self, length: int) -> int | None:
        """Returns the time after which a get of so many bytes is late; None if it is not sent twice."""
        known = self._durations.get(_size_class(length), ())
        if self._saved < 1 or len(known) < SAMPLES_MIN:
            return None
        late_ns = sorted(known)[int(len(known) * (1 - LATE_SHARE))]
        return late_ns if late_ns >= FAST_NS else None

    def take(self) -> bool:
        """True if a second get may be sent now. It is counted."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True


def _size_class(length: int) -> int:
    return (length >> 20).bit_length()

"""The time that retention goes by: this broker's clock, unless it is known to be fast.

A clock that is ahead would let records go before their time. A start compares it with the controller's; while it stays
as far ahead, ages count from the controller's time, carried on by a clock that nobody sets.
"""

from __future__ import annotations

from tiered.ports import Clock

CLOCK_SKEW_MS = 60_000
"""A clock that differs by more is wrong: less may be the way of a message, and is nothing to retention."""


class RetentionClock:
    """`compared` once the difference is known."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._corrected_start_ms: int | None = None
        """What the controller's clock showed when our monotonic one began; None where this clock may be believed."""

    def set_skew(self, ahead_ms: int) -> None:
        """This broker's clock is so far ahead of the controller's."""
        fast = ahead_ms >= CLOCK_SKEW_MS
        self._corrected_start_ms = self._clock.wall_ms() - ahead_ms - self._mono_ms() if fast else None

    def now_ms(self) -> int:
        """By a clock that was set right meanwhile, by that one again."""
        wall_ms = self._clock.wall_ms()
        if self._corrected_start_ms is None:
            return wall_ms
        there_ms = self._corrected_start_ms + self._mono_ms()
        return there_ms if wall_ms - there_ms >= CLOCK_SKEW_MS else wall_ms

    def _mono_ms(self) -> int:
        return self._clock.mono_ns() // 1_000_000

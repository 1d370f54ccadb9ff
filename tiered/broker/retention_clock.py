"""The time by which retention computes ages: this broker's clock, unless that is known to be fast.

A fast clock would delete records too early. A start compares the clock with the controller's. While it is still as far
ahead, retention uses the controller's time, carried on by the monotonic clock.
"""

from __future__ import annotations

from tiered.ports import Clock

CLOCK_SKEW_MS = 60_000
"""A clock that differs by more is wrong. A smaller difference may be the delay of a message, and does no harm."""


class RetentionClock:
    """The clock of one broker. It goes by the wall clock until `set_skew`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._corrected_start_ms: int | None = None
        """The controller's time when this monotonic clock was 0; None if this wall clock is not fast."""

    def set_skew(self, ahead_ms: int) -> None:
        """Takes by how much this broker's clock is ahead of the controller's."""
        fast = ahead_ms >= CLOCK_SKEW_MS
        self._corrected_start_ms = self._clock.wall_ms() - ahead_ms - self._mono_ms() if fast else None

    def now_ms(self) -> int:
        """Returns the time for retention. A wall clock that was corrected meanwhile counts again."""
        wall_ms = self._clock.wall_ms()
        if self._corrected_start_ms is None:
            return wall_ms
        controller_ms = self._corrected_start_ms + self._mono_ms()
        return controller_ms if wall_ms - controller_ms >= CLOCK_SKEW_MS else wall_ms

    def _mono_ms(self) -> int:
        return self._clock.mono_ns() // 1_000_000

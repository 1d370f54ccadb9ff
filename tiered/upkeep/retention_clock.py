"""The time by which retention and expiry compute ages: this broker's clock, unless that is known to be fast.

A fast clock would delete records too early. Heartbeats compare the clock with the controller's. While it is as far
ahead, retention uses the controller's time, carried on by the monotonic clock. A broker that becomes controller keeps
what its last heartbeat found.

Coordinators expire offsets and transactional ids by the same time (M4). A clock that goes ahead later on expires none
of them for an hour, in which it can be set right.
"""

from __future__ import annotations

import logging

from tiered.peers import ClockComparison
from tiered.ports import Clock

log = logging.getLogger(__name__)

CLOCK_SKEW_MS = 60_000
"""A clock that differs by more is wrong. A smaller difference may be the delay of a message, and does no harm."""
JUMP_GRACE_MS = 3_600_000
"""Time after which a clock that went ahead at once is believed. A machine that was suspended has a clock like that."""


class RetentionClock:
    """The clock of one broker. It goes by the wall clock until `set_skew`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._corrected_start_ms: int | None = None
        """The controller's time when this monotonic clock was 0; None if this wall clock is not fast."""
        self._believed_start_ms = clock.wall_ms() - self._mono_ms()
        """The wall clock's time when the monotonic one was 0, by a wall clock that is believed."""
        self._jumped_mono_ms = -1
        """Monotonic time at which the wall clock was found ahead of that; -1 if it is not ahead."""

    def on_compared(self, clock: ClockComparison) -> None:
        """Takes a comparison with the controller's clock: this clock is ahead at least by its least difference."""
        self.set_skew(clock.ahead_ms - clock.error_ms)

    def set_skew(self, ahead_ms: int) -> None:
        """Takes by how much this broker's clock is ahead of the controller's."""
        fast = ahead_ms >= CLOCK_SKEW_MS
        self._corrected_start_ms = self._clock.wall_ms() - ahead_ms - self._mono_ms() if fast else None

    def now_ms(self) -> int:
        """Returns the time for retention. A wall clock that was corrected meanwhile counts again."""
        return self._correct(self._mono_ms(), self._clock.wall_ms())

    def find_expiry_ms(self, mono_ms: int, wall_ms: int) -> int:
        """Returns the time for expiry by coordinators, from the two clocks. It follows a jump ahead of the wall clock
        after an hour."""
        return min(self._correct(mono_ms, wall_ms), self._follow(mono_ms, wall_ms))

    def _correct(self, mono_ms: int, wall_ms: int) -> int:
        if self._corrected_start_ms is None:
            return wall_ms
        controller_ms = self._corrected_start_ms + mono_ms
        return controller_ms if wall_ms - controller_ms >= CLOCK_SKEW_MS else wall_ms

    def _follow(self, mono_ms: int, wall_ms: int) -> int:
        ahead_ms = wall_ms - mono_ms - self._believed_start_ms
        if ahead_ms >= CLOCK_SKEW_MS:
            if self._jumped_mono_ms < 0:
                self._jumped_mono_ms = mono_ms
                log.warning(
                    "clock went ahead at once seconds=%d: no offset and no transactional id expires by it for an hour,"
                    " set it right if it is wrong", ahead_ms // 1000,
                )  # fmt: skip
            if mono_ms - self._jumped_mono_ms < JUMP_GRACE_MS:
                return self._believed_start_ms + mono_ms
        self._believed_start_ms, self._jumped_mono_ms = wall_ms - mono_ms, -1
        return wall_ms

    def _mono_ms(self) -> int:
        return self._clock.mono_ns() // 1_000_000

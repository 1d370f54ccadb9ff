"""Warnings that may come in floods: one is logged, those that follow soon are counted; and states that last."""

from __future__ import annotations

from tiered.ports import Clock

SUPPRESS_SECONDS = 10.0
"""After a warning was logged, others of its kind are only counted for so long."""
INTERVAL_SECONDS_MAX = 600.0
"""Between two lines about a state that lasts, at most."""


class LogLimiter:
    """What was logged last, by kind of warning. Kinds are few: nothing forgets them."""

    __slots__ = ("_clock", "_suppressed")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._suppressed: dict[str, tuple[int, int]] = {}
        """Kind -> (until when it is not logged, how many were not)."""

    def admit(self, kind: str = "") -> int | None:
        """A warning of this kind comes: how many were left out since the last one, or None when this one is, too."""
        now = self._clock.mono_ns()
        until, unsaid = self._suppressed.get(kind, (now, 0))
        if now < until:
            self._suppressed[kind] = until, unsaid + 1
            return None
        self._suppressed[kind] = now + int(SUPPRESS_SECONDS * 1e9), 0
        return unsaid


class StateLogLimiter:
    """Lines about a state that lasts: one when it begins, then ever fewer."""

    __slots__ = ("_clock", "_due_ns", "_pause_ns", "_since_ns")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns = self._due_ns = self._pause_ns = 0

    def admit(self, *, is_start: bool) -> int | None:
        """Returns for how many seconds the state has lasted, where that is to be logged now, else None."""
        now = self._clock.mono_ns()
        if is_start:
            self._since_ns, self._pause_ns = now, int(SUPPRESS_SECONDS * 1e9)
        elif now < self._due_ns:
            return None
        else:
            self._pause_ns = min(2 * self._pause_ns, int(INTERVAL_SECONDS_MAX * 1e9))
        self._due_ns = now + self._pause_ns
        return (now - self._since_ns) // 10**9

"""Limits for repeated log lines: bursts of one kind of warning, and states that last."""

from __future__ import annotations

from tiered.ports import Clock

SUPPRESS_SECONDS = 10.0
"""After a warning was logged, others of its kind are only counted for this long."""
INTERVAL_SECONDS_MAX = 600.0
"""The longest interval between two log lines about a state that lasts."""


class LogLimiter:
    """Logs the first warning of a kind and counts those that follow soon. There are few kinds: none is ever
    forgotten."""

    __slots__ = ("_clock", "_suppressed")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._suppressed: dict[str, tuple[int, int]] = {}
        """Kind -> (end of its suppression, number of suppressed warnings)."""

    def admit(self, kind: str = "") -> int | None:
        """Admits a warning of this kind to the log. Returns how many were suppressed since the last logged one, or None
        if this one must be suppressed too."""
        now = self._clock.mono_ns()
        until, suppressed = self._suppressed.get(kind, (now, 0))
        if now < until:
            self._suppressed[kind] = until, suppressed + 1
            return None
        self._suppressed[kind] = now + int(SUPPRESS_SECONDS * 1e9), 0
        return suppressed


class StateLogLimiter:
    """Limits log lines about a state that lasts: one when it starts, then ever fewer."""

    __slots__ = ("_clock", "_due_ns", "_longest_ns", "_pause_ns", "_shortest_ns", "_since_ns")

    def __init__(self, clock: Clock, shortest: float = SUPPRESS_SECONDS, longest: float = INTERVAL_SECONDS_MAX) -> None:
        self._clock = clock
        self._shortest_ns, self._longest_ns = int(shortest * 1e9), int(longest * 1e9)
        self._since_ns = self._due_ns = self._pause_ns = 0

    def admit(self, *, is_start: bool) -> int | None:
        """Returns for how many seconds the state has lasted if that must be logged now, else None."""
        now = self._clock.mono_ns()
        if is_start:
            self._since_ns, self._pause_ns = now, self._shortest_ns
        elif now < self._due_ns:
            return None
        else:
            self._pause_ns = min(2 * self._pause_ns, self._longest_ns)
        self._due_ns = now + self._pause_ns
        return (now - self._since_ns) // 10**9

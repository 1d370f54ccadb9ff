"""Warnings that may come in floods: one is logged, those that follow soon are counted; and states that last."""

from __future__ import annotations

from tiered.ports import Clock

QUIET_SECONDS = 10.0
"""After a warning was logged, others of its kind are only counted for so long."""
SELDOM_SECONDS = 600.0
"""Between two lines about a state that lasts, at most."""


class Quiet:
    """What was logged last, by kind of warning. Kinds are few: nothing forgets them."""

    __slots__ = ("_clock", "_silent")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent: dict[str, tuple[int, int]] = {}
        """Kind -> (until when it is not logged, how many were not)."""

    def unsaid(self, kind: str = "") -> int | None:
        """A warning of this kind comes: how many were left out since the last one, or None when this one is, too."""
        now = self._clock.mono_ns()
        until, unsaid = self._silent.get(kind, (now, 0))
        if now < until:
            self._silent[kind] = until, unsaid + 1
            return None
        self._silent[kind] = now + int(QUIET_SECONDS * 1e9), 0
        return unsaid


class Waning:
    """Lines about a state that lasts: one when it begins, then ever fewer."""

    __slots__ = ("_clock", "_due_ns", "_pause_ns", "_since_ns")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns = self._due_ns = self._pause_ns = 0

    def lasts(self, *, begins: bool) -> int | None:
        """Returns for how many seconds the state has lasted, where that is to be logged now, else None."""
        now = self._clock.mono_ns()
        if begins:
            self._since_ns, self._pause_ns = now, int(QUIET_SECONDS * 1e9)
        elif now < self._due_ns:
            return None
        else:
            self._pause_ns = min(2 * self._pause_ns, int(SELDOM_SECONDS * 1e9))
        self._due_ns = now + self._pause_ns
        return (now - self._since_ns) // 10**9

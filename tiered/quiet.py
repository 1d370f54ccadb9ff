"""Warnings that may come in floods: one is logged, those that follow soon are counted."""

from __future__ import annotations

from tiered.ports import Clock

QUIET_SECONDS = 10.0
"""After a warning was logged, others of its kind are only counted for so long."""


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

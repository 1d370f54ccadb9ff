"""Notices that the process does not run: stopped, swapped out, starved of CPU, or busy in one long piece of work.

Its clients wait meanwhile, and a broker that is paused for less than a session stays leader. Nobody else can tell.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from tiered.metrics import Metrics
from tiered.ports import Clock
from tiered.time_text import format_time

TICK_SECONDS = 0.5
PAUSE_NS = 1_000_000_000
"""A shorter delay is no pause."""
WINDOW_NS = 60_000_000_000
PROBLEM_NS = 10_000_000_000
"""Sum of pauses within the window from which on they are a problem."""


class Pauses:
    """The pauses of the last minute."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._pauses: deque[tuple[int, int]] = deque(maxlen=WINDOW_NS // PAUSE_NS)
        """The end of each pause, and its length."""
        self._seconds = metrics.counter(
            "tiered_process_paused_seconds_total",
            "Time for which the process did not run, in pauses of a second or more.",
        )
        self._seconds.inc(0)

    async def watch(self) -> None:
        """Measures pauses until it is cancelled."""
        while True:
            before_ns = self._clock.mono_ns()
            await asyncio.sleep(TICK_SECONDS)
            now_ns = self._clock.mono_ns()
            late_ns = now_ns - before_ns - int(TICK_SECONDS * 1e9)
            if late_ns >= PAUSE_NS:
                self._pauses.append((now_ns, late_ns))
                self._seconds.inc(late_ns / 1e9)

    def describe(self) -> Iterator[str]:
        """Yields a problem if the process did not run for much of the last minute."""
        since_ns = self._clock.mono_ns() - WINDOW_NS
        lengths = [late_ns for ended_ns, late_ns in self._pauses if ended_ns > since_ns]
        if sum(lengths) >= PROBLEM_NS:
            since_ms = self._clock.wall_ms() - (self._clock.mono_ns() - self._pauses[-1][0]) // 1_000_000
            pauses = (
                "1 pause" if len(lengths) == 1 else f"{len(lengths)} pauses, the longest of {max(lengths) / 1e9:.1f} s,"
            )
            yield (
                f"this process did not run for {sum(lengths) / 1e9:.0f} s in {pauses} of the last minute, and runs"
                f" since {format_time(since_ms)}: it was stopped, swapped out or without CPU, and clients waited for it"
            )

"""Time that a test moves: an event loop whose timers follow, and the clock of brokers on it."""

from __future__ import annotations

import asyncio
import time


class MovableLoop(asyncio.SelectorEventLoop):
    """A loop that is ahead of the machine. A move makes timers due at once, in the order of their times."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ns = 0

    def time(self) -> float:
        """Returns seconds, as all timers of the loop count them."""
        return super().time() + self.ahead_ns / 1e9

    def move(self, seconds: float) -> None:
        """Moves the time. To be called on the loop: it looks for timers that are due in its next turn."""
        self.ahead_ns += round(seconds * 1e9)


class MovableClock:
    """The Clock port by the time of a loop. CPU time is that of the machine."""

    cpu_ns = staticmethod(time.thread_time_ns)

    def __init__(self, loop: MovableLoop) -> None:
        self._loop = loop

    def mono_ns(self) -> int:
        return time.monotonic_ns() + self._loop.ahead_ns

    def wall_ms(self) -> int:
        return (time.time_ns() + self._loop.ahead_ns) // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

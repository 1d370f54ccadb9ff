"""Simulated Clock and Rng ports."""

from __future__ import annotations

import asyncio
import random

from tests.sim.harness.loop import NS, SimLoop

EPOCH_MS = 1_700_000_000_000
"""Begin of simulated wall clocks: a present-day time, so that timestamps have their usual size."""


class SimClock:
    """The loop's time. Each broker has its own wall clock, which may be wrong and may jump, and its own rate: all its
    clocks run faster or slower than the loop's by `drift_ppm` millionths."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.wall_offset_ms = 0
        self.drift_ppm = 0

    def mono_ns(self) -> int:
        now_ns = self._loop.now_ns
        return now_ns + now_ns * self.drift_ppm // 1_000_000 if self.drift_ppm else now_ns

    def cpu_ns(self) -> int:
        return 0  # computing takes no time in a simulation

    def wall_ms(self) -> int:
        return EPOCH_MS + self.wall_offset_ms + self.mono_ns() // 1_000_000

    def jump(self, milliseconds: int) -> None:
        """Sets the wall clock forward or back; monotonic time does not notice."""
        self.wall_offset_ms += milliseconds

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wait_ns = round((seconds / (1 + self.drift_ppm / 1e6) if self.drift_ppm else seconds) * NS)
        future = self._loop.create_future()
        timer = self._loop.call_at_ns(self._loop.now_ns + wait_ns, _wake, None, (future,))
        try:
            await future
        finally:
            timer.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class SimRng:
    """Random streams that depend on the seed and their name only."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self._streams: dict[str, random.Random] = {}

    def stream(self, name: str) -> random.Random:
        if name not in self._streams:
            self._streams[name] = random.Random(f"{self.seed}/{name}")
        return self._streams[name]

"""Simulated Clock and Rng ports."""

from __future__ import annotations

import asyncio
import random

from tests.sim.harness.loop import SimLoop

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
        return self._loop.now_ns + self._loop.now_ns * self.drift_ppm // 1_000_000

    def cpu_ns(self) -> int:
        return 0  # computing takes no time in a simulation

    def wall_ms(self) -> int:
        return EPOCH_MS + self.wall_offset_ms + self.mono_ns() // 1_000_000

    def jump(self, milliseconds: int) -> None:
        """Sets the wall clock forward or back; monotonic time does not notice."""
        self.wall_offset_ms += milliseconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / (1 + self.drift_ppm / 1e6) if self.drift_ppm else seconds)


class SimRng:
    """Random streams that depend on the seed and their name only."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self._streams: dict[str, random.Random] = {}

    def stream(self, name: str) -> random.Random:
        if name not in self._streams:
            self._streams[name] = random.Random(f"{self.seed}/{name}")
        return self._streams[name]

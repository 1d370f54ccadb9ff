"""Simulated Clock and Rng ports."""

from __future__ import annotations

import asyncio
import random

from tests.sim.harness.loop import SimLoop

EPOCH_MS = 1_700_000_000_000
"""Where simulated wall clocks begin: a time of today's size, so that timestamps look like timestamps."""


class SimClock:
    """The loop's time. Each node has its own wall clock, which may be wrong and may jump; and its own pace: all its
    clocks run faster by `drift_ppm` millionths than the world's, or slower."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.wall_offset_ms = 0
        self.drift_ppm = 0

    def mono_ns(self) -> int:
        return self._loop.now_ns + self._loop.now_ns * self.drift_ppm // 1_000_000

    def wall_ms(self) -> int:
        return EPOCH_MS + self.wall_offset_ms + self.mono_ns() // 1_000_000

    def jump(self, milliseconds: int) -> None:
        """Sets the wall clock forward or back; monotonic time does not notice."""
        self.wall_offset_ms += milliseconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / (1 + self.drift_ppm / 1e6) if self.drift_ppm else seconds)


class SimRng:
    """Streams that depend on the seed and their name alone."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self._streams: dict[str, random.Random] = {}

    def stream(self, name: str) -> random.Random:
        if name not in self._streams:
            self._streams[name] = random.Random(f"{self.seed}/{name}")
        return self._streams[name]

"""The clock and the random numbers of this machine."""

from __future__ import annotations

import asyncio
import random
import time


class SystemClock:
    """The clock of this machine."""

    mono_ns = staticmethod(time.monotonic_ns)  # called twice in each request
    cpu_ns = staticmethod(time.thread_time_ns)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemRng:
    """Random numbers of the kernel for every stream: a fork or a cloned machine cannot repeat them."""

    def __init__(self) -> None:
        self._system = random.SystemRandom()

    def stream(self, name: str) -> random.Random:
        return self._system

"""An event loop and a clock that stand still while a request is served, so that no timer adds work to it."""

from __future__ import annotations

import asyncio
import select
from typing import Any

from tests.counts.meter import Meter

WAIT_SECONDS = 120.0
"""Longest wait for bytes that are on their way through the kernel. It only ends a run that hangs."""


class HeldLoop(asyncio.SelectorEventLoop):
    """Real sockets and real time until `hold`; after it the time stands. Turns are run one by one."""

    def __init__(self) -> None:
        super().__init__()
        self._held_at: float | None = None

    def hold(self) -> None:
        self._held_at = self.time()

    def release(self) -> None:
        self._held_at = None

    def time(self) -> float:
        return super().time() if self._held_at is None else self._held_at

    def run_turn(self, meter: Meter) -> None:
        """Runs a turn; `meter` counts its work. It waits for an event or a timer if nothing is ready."""
        internals: Any = self
        asyncio._set_running_loop(self)
        try:
            meter.begin()
            internals._run_once()
            meter.end()
        finally:
            asyncio._set_running_loop(None)

    def run_turns(self, meter: Meter) -> None:
        """Runs turns until nothing is ready."""
        internals: Any = self
        while internals._ready or select.select([self._poller()], [], [], 0)[0]:
            self.run_turn(meter)

    def wait(self, *descriptors: int) -> None:
        """Waits until a socket of this loop or one of the descriptors is readable."""
        found, _, _ = select.select([self._poller(), *descriptors], [], [], WAIT_SECONDS)
        assert found, "neither the broker nor its client gets any bytes"

    def _poller(self) -> int:
        internals: Any = self
        descriptor: int = internals._selector.fileno()
        return descriptor


class HeldClock:
    """The clock of a broker on a `HeldLoop`. Its time stands when that of the loop does."""

    def __init__(self, loop: HeldLoop) -> None:
        self._loop = loop

    def mono_ns(self) -> int:
        return int(self._loop.time() * 1e9)

    def cpu_ns(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._loop.time() * 1e3)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

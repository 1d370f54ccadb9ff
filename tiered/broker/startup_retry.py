"""Retries of a start while the object store is unreachable.

There is no overall timeout: a broker that exits is only restarted into the same wait. A refusal by the store (access
denied, no such bucket) is no outage: it ends the start with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from tiered.errors import Refused, Unavailable
from tiered.log_limiter import StateLogLimiter
from tiered.metadata.layout import FORMAT_KEY
from tiered.object_store.metered import MeteredStore
from tiered.ports import Clock, Rng

T = TypeVar("T")

log = logging.getLogger(__name__)

PAUSE_SECONDS = (1.0, 15.0)
"""Shortest and longest pause between two attempts at an unreachable bucket. Jitter takes up to half of it."""
PROBE_SECONDS = 1.0
"""Pause between two looks for an outage while the start waits for a write."""
LOG_SECONDS = (60.0, 3600.0)
"""Shortest and longest pause between two log lines about the same wait."""


class StartupRetry:
    """The retries of one start. `waiting_since_ns` is the start of the current wait, -1 without one."""

    def __init__(self, store: MeteredStore, clock: Clock, rng: Rng) -> None:
        self.waiting_since_ns = -1
        self._store = store
        self._clock = clock
        self._rng = rng.stream("patience")
        self._wait_log = StateLogLimiter(clock, *LOG_SECONDS)

    async def retry_until_store_is_back(self, step: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `step`, which is repeated while the store is unreachable.

        Raises `Unavailable` if the store refuses.
        """
        pause, longest = PAUSE_SECONDS
        while True:
            try:
                found = await step()
            except Unavailable as error:
                if error.refused or error.final:
                    raise
                self._on_store_down(str(error))
            else:
                self._on_store_back()
                return found
            await self._clock.sleep(pause * (0.5 + self._rng.random() / 2))
            pause = min(2 * pause, longest)

    async def retry_refused(self, request: Callable[[], Awaitable[None]]) -> None:
        """Repeats a request that the controller refused while the bucket is unreachable.

        Raises `Refused` if the bucket replies, and `Unavailable` if the bucket refuses.
        """
        while True:
            try:
                await request()
            except Refused:
                if not await self._is_store_down():
                    raise
                await self.retry_until_store_is_back(self._probe_store)
            else:
                return

    async def wait_for_store_write(self, step: Coroutine[Any, Any, T], seconds: float, why: Callable[[], str]) -> T:
        """Returns the result of `step`, which repeats its writes until the store takes them.

        Raises `Unavailable` with the reason `why` after `seconds` in which the store was reachable.
        """
        task, reachable_ns = asyncio.create_task(step, name="start"), self._clock.mono_ns()
        try:
            while not (await asyncio.wait((task,), timeout=min(PROBE_SECONDS, seconds)))[0]:
                outage, now_ns = self._store.outage, self._clock.mono_ns()
                if outage is not None and not outage.refused:
                    reachable_ns = now_ns
                    self._on_store_down(outage.why)
                elif now_ns - reachable_ns >= seconds * 1e9:
                    text = f"no metadata could be written since {seconds:g} s: {why()}"
                    raise Unavailable(text, refused=True)
            self._on_store_back()
            return task.result()
        finally:
            task.cancel()

    async def _probe_store(self) -> None:
        await self._store.get(FORMAT_KEY, 0, 1)

    async def _is_store_down(self) -> bool:
        try:
            await self._probe_store()
        except Unavailable:
            return True
        return False

    def _on_store_down(self, why: str) -> None:
        is_start = self.waiting_since_ns < 0
        seconds = self._wait_log.admit(is_start=is_start)
        if is_start:
            self.waiting_since_ns = self._clock.mono_ns()
            log.warning("start waits for the bucket why=%s", why)
        elif seconds is not None:
            log.warning("start still waits for the bucket seconds=%d why=%s", seconds, why)

    def _on_store_back(self) -> None:
        if self.waiting_since_ns >= 0:
            log.info("bucket is reachable again seconds=%d", (self._clock.mono_ns() - self.waiting_since_ns) // 10**9)
            self.waiting_since_ns = -1

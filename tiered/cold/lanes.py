"""A bounded set of threads for blocking calls to the outside, each under a deadline.

A call that outlives its deadline goes on in its thread and keeps its place: what it does may still take effect, and
the number of such calls stays bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Lane:
    """At most `workers` calls at once; the others wait in order, on their own deadline. Belongs to one event loop."""

    def __init__(self, name: str, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=f"tiered-{name}")
        self._places = asyncio.Semaphore(workers)

    async def run(self, seconds: float, call: Callable[[], T]) -> T:
        """The call's result or error; `TimeoutError` after `seconds`, the wait for a thread included."""
        loop = asyncio.get_running_loop()

        def leave(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the place
                loop.call_soon_threadsafe(self._places.release)

        async with asyncio.timeout(seconds):
            await self._places.acquire()
            future = self._pool.submit(call)
            future.add_done_callback(leave)
            return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Lets running calls end by themselves; waiting ones are dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

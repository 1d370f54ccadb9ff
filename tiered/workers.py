"""Threads for work that would hold up the event loop.

The threads are daemons: what one of them still does never keeps a process alive that has come to its end. A piece of
work is bounded by whoever hands it in; nothing can stop it once it has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from tiered.errors import Unavailable

T = TypeVar("T")

WAITING_MAX = 1_000


class _Job(NamedTuple):
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    work: Callable[[], Any]


class Workers:
    """At most `threads` pieces of work at once; the others wait in order, at most `waiting` of them."""

    def __init__(self, name: str, threads: int, waiting: int = WAITING_MAX) -> None:
        self._name = name
        self._most = threads
        self._waiting = waiting
        self._begun = 0
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()

    async def run(self, work: Callable[[], T]) -> T:
        """What the work gives or raises. `Unavailable` when too much waits already. A caller that is cancelled leaves
        work that has not begun undone."""
        if self._jobs.qsize() >= self._waiting:
            raise Unavailable(f"{self._waiting} pieces of work wait for the threads of {self._name}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(loop, future, work))
        if self._begun < self._most:
            self._begun += 1
            threading.Thread(target=self._serve, name=f"tiered-{self._name}", daemon=True).start()
        return await future

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            if job.future.cancelled():
                continue
            try:
                result, error = job.work(), None
            except BaseException as raised:  # noqa: BLE001 - whatever it is, the caller has to hear of it
                result, error = None, raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                job.loop.call_soon_threadsafe(_settle, job.future, result, error)
            del job, result, error  # a thread that waits for more holds nothing


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)

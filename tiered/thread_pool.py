"""Threads for calls that would hold up the event loop: a bounded number of them, each call under its deadline.

A call that outlives its deadline goes on in its thread and keeps its place: what it does may still take effect, and the
number of such calls stays bounded. The threads are daemons: what one of them still does keeps no process alive that has
come to its end.
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
    call: Callable[[], Any]


class Workers:
    """At most `threads` calls at once; the others wait in order, at most `waiting` of them."""

    def __init__(self, name: str, threads: int, waiting: int = WAITING_MAX) -> None:
        self._name = name
        self._most = threads
        self._waiting = waiting
        self._begun = 0
        self._closed = False
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    async def run(self, call: Callable[[], T], seconds: float | None = None) -> T:
        """The call's result or error. `TimeoutError` after `seconds`, the wait for a thread included. `Unavailable`
        when too many calls wait already. A call that has not begun when its caller is cancelled is not made."""
        if self._closed or self._jobs.qsize() >= self._waiting:
            why = "are closed" if self._closed else f"have {self._waiting} calls waiting for them"
            raise Unavailable(f"the threads of {self._name} {why}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(loop, future, call))
        if self._begun < self._most:
            self._begun += 1
            threading.Thread(target=self._serve, name=f"tiered-{self._name}", daemon=True).start()
        async with asyncio.timeout(seconds):
            return await future

    def close(self) -> None:
        """Lets running calls end by themselves; waiting ones are cancelled."""
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    _tell(job.loop, job.future.cancel)
        for _ in range(self._begun):
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.future.cancelled():
                continue
            try:
                result, error = job.call(), None
            except BaseException as raised:  # noqa: BLE001 - whatever it is, the caller has to hear of it
                result, error = None, raised
            _tell(job.loop, _settle, job.future, result, error)
            del job, result, error  # a thread that waits for more holds nothing


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(call, *arguments)


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)

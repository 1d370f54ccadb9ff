"""A bounded number of threads for calls that would block the event loop, each call with a deadline.

A call that exceeds its deadline continues in its thread and keeps its place: it may still take effect, and the number
of such calls stays bounded. Long work in pieces ends itself then, by `end_if_abandoned`. The threads are daemons, so
that they do not keep a process alive that has ended its work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tiered.errors import Unavailable
from tiered.spending import SPENDER, Spender

T = TypeVar("T")

WAITING_MAX = 1_000


@dataclass(slots=True)
class _Job:
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    call: Callable[[], Any]
    spender: Spender | None


_thread = threading.local()
"""The job that the current thread runs."""


def end_if_abandoned() -> None:
    """Raises `Unavailable` in a thread of a pool if nobody waits for the call any more: its deadline has passed, or its
    caller was cancelled. Long work calls this between its pieces."""
    job: _Job | None = getattr(_thread, "job", None)
    if job is not None and job.future.done():
        raise Unavailable("nobody waits for this work any more")


class ThreadPool:
    """Runs at most `threads` calls at once. The others wait in order, at most `waiting_max` of them.

    With a `niceness` above 0, the threads get little of a core that others want. It is for calls without the
    interpreter's lock: a thread that waits for a core keeps the lock from all others.
    """

    def __init__(self, name: str, threads: int, waiting_max: int = WAITING_MAX, niceness: int = 0) -> None:
        self._name = name
        self._niceness = niceness
        self._threads_max = threads
        self._waiting_max = waiting_max
        self._threads_started = 0
        self._closed = False
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    async def run(self, call: Callable[[], T], seconds: float | None = None) -> T:
        """Returns or raises what the call does. Raises `TimeoutError` after `seconds`, which include the wait for a
        thread, and `Unavailable` if too many calls wait already. A call that has not begun when its caller is cancelled
        is not made. The spender of the context pays for the CPU time."""
        if self._closed or self._jobs.qsize() >= self._waiting_max:
            why = "are closed" if self._closed else f"have {self._waiting_max} calls waiting already: try again"
            raise Unavailable(f"the threads of {self._name} {why}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = _Job(loop, future, call, SPENDER.get())
        del call
        self._jobs.put(job)
        if self._threads_started < self._threads_max:
            self._threads_started += 1
            threading.Thread(target=self._run_jobs, name=f"tiered-{self._name}", daemon=True).start()
        try:
            async with asyncio.timeout(seconds):
                return await future
        finally:
            job.call = _do_nothing  # it may wait for long, and hold much memory
            del job, future  # else the traceback of an error keeps the error, and all that its frames hold

    def close(self) -> None:
        """Lets running calls end by themselves and cancels waiting ones."""
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    _call_soon(job.loop, job.future.cancel)
        for _ in range(self._threads_started):
            self._jobs.put(None)

    def _run_jobs(self) -> None:
        if self._niceness and sys.platform == "linux":  # elsewhere all threads of a process have one
            with contextlib.suppress(OSError):  # the process is nicer already, or may not say so
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        while (job := self._jobs.get()) is not None:
            if job.future.cancelled():
                del job  # an idle thread keeps nothing in memory
                continue
            _thread.job = job
            begun_ns = time.thread_time_ns()
            try:
                result, error = job.call(), None
            except BaseException as raised:  # noqa: BLE001 - the caller gets it, whatever it is
                result, error = None, raised
            spent_ns = time.thread_time_ns() - begun_ns
            _thread.job = None
            _call_soon(job.loop, _end_job, job.future, result, error, job.spender, spent_ns)
            del job, result, error


def _do_nothing() -> None:
    pass


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
        loop.call_soon_threadsafe(call, *arguments)


def _end_job(
    future: asyncio.Future[Any], result: object, error: BaseException | None, spender: Spender | None, spent_ns: int
) -> None:
    if spender is not None:
        spender.spend(spent_ns)
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)

"""`asyncio.timeout` for the simulated loop: the same behaviour in half the time, because a run makes thousands a
second."""

from __future__ import annotations

import asyncio
from asyncio import current_task, get_running_loop
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any


class SimTimeout:
    """A timeout as `asyncio.Timeout`, for an `async with` of one task."""

    __slots__ = ("_cancelling", "_expired", "_has_ended", "_task", "_timer", "_when")

    def __init__(self, when: float | None) -> None:
        self._when = when
        self._timer: Any = None
        self._task: Any = None
        self._cancelling = 0
        self._expired = self._has_ended = False

    def when(self) -> float | None:
        return self._when

    def expired(self) -> bool:
        return self._expired

    def reschedule(self, when: float | None) -> None:
        assert self._task is not None and not self._expired and not self._has_ended, "the timeout is not in use"
        if self._timer is not None:
            self._timer.cancel()
        self._when = when
        self._set_timer()

    async def __aenter__(self) -> SimTimeout:
        task = self._task = current_task()
        assert task is not None, "a timeout outside of a task"
        self._cancelling = task.cancelling()
        if self._when is not None:
            self._set_timer()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._has_ended = True
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _set_timer(self) -> None:
        when, loop = self._when, get_running_loop()
        if when is None:
            self._timer = None
        elif when <= loop.time():
            self._timer = loop.call_soon(self._expire)
        else:
            self._timer = loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._task.cancel()
        self._expired, self._timer = True, None


def _timeout(delay: float | None) -> SimTimeout:
    return SimTimeout(None if delay is None else get_running_loop().time() + delay)


@contextmanager
def quick_timeouts() -> Iterator[None]:
    """Replaces the timeouts of asyncio within the context."""
    module: Any = asyncio
    before = module.timeout, module.timeout_at
    module.timeout, module.timeout_at = _timeout, SimTimeout
    try:
        yield
    finally:
        module.timeout, module.timeout_at = before

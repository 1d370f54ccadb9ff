"""The time that work takes of the event loop: its steps, without the waits between them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from tiered.spending import SPENDER, Spender

T = TypeVar("T")


def spend(work: Awaitable[T], mono_ns: Callable[[], int]) -> Awaitable[T]:
    """Returns a part of a request, for a task of its own: the spender of the context pays for its time too."""
    spender = SPENDER.get()
    return work if spender is None else TimedSteps(work, spender, mono_ns)


class TimedSteps:
    """Awaits work, and adds the time of its steps to that of a spender. The waits between them do not count."""

    __slots__ = ("_mono_ns", "_spender", "_steps")

    def __init__(self, work: Awaitable[Any], spender: Spender, mono_ns: Callable[[], int]) -> None:
        self._steps: Any = work.__await__()
        self._spender = spender
        self._mono_ns = mono_ns

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self
        found: Generator[Any, Any, Any] = steps
        return found

    def __iter__(self) -> TimedSteps:
        return self

    def __next__(self) -> Any:
        return self._time(self._steps.send, None)

    def send(self, value: Any) -> Any:
        """Runs the next step."""
        return self._time(self._steps.send, value)

    def throw(self, *error: Any) -> Any:
        """Runs the next step, which begins with an error."""
        try:
            return self._time(self._steps.throw, *error)
        finally:
            del error  # else its traceback keeps it, and all that its frames hold

    def close(self) -> None:
        """Ends the work."""
        self._steps.close()

    def _time(self, step: Callable[..., Any], *values: Any) -> Any:
        begun_ns = self._mono_ns()
        try:
            return step(*values)
        finally:
            self._spender.spend(self._mono_ns() - begun_ns)
            del values

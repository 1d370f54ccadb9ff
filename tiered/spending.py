"""The owner of the time that work takes: a client, by its quotas, or the changes of metadata.

A task names its spender once. Threads that work for the task add their CPU time. So do the tasks that it starts for a
part of its work, if they time their steps.

A client also pays for the bytes that its requests write to internal topics: one request may write the members of a
whole group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Spender(Protocol):
    """The owner of the time that is spent."""

    def spend(self, spent_ns: int) -> None:
        """Counts time that work took, of the event loop or of a thread."""


SPENDER: ContextVar[Spender | None] = ContextVar("spender", default=None)
"""The spender of the work in this context; None if nobody counts it."""


@contextmanager
def spent_by(spender: Spender) -> Iterator[None]:
    """Counts the work of threads in this context, and in tasks that begin in it."""
    token = SPENDER.set(spender)
    try:
        yield
    finally:
        SPENDER.reset(token)


ChargeWritten = Callable[[int], object]
"""Takes the bytes of records of an internal topic that a request writes."""
WRITTEN: ContextVar[ChargeWritten | None] = ContextVar("written", default=None)
"""The charge of such bytes in this context; None if nobody counts them."""


@contextmanager
def written_by(charge: ChargeWritten | None) -> Iterator[None]:
    """Charges what is written to internal topics in this context, and in tasks that begin in it."""
    token = WRITTEN.set(charge)
    try:
        yield
    finally:
        WRITTEN.reset(token)

"""The phases of one request, for requests that an operator has traced. Nobody traces them otherwise.

A traced request is the one of the context that it runs in, and of tasks that begin in it. A wait is timed where it is:
for a turn of the event loop, for followers, for an fsync, for the bucket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

T = TypeVar("T")

PHASES_MAX = 32
"""Most phases that a trace keeps: a request may wait for each of a thousand partitions."""

APPEND, READ, HANDLE, QUEUE, FSYNC = "append", "read", "handle", "queue", "fsync"
REPLICATE, BUCKET, WAIT, REPLY = "replicate", "bucket", "wait", "reply"


class Phase(NamedTuple):
    """A span of a request. Spans may overlap: a request waits for several things at once."""

    name: str
    start_ns: int
    end_ns: int


class RequestTrace:
    """One request: whose it is, and its phases so far. `end_ns` is -1 until its reply is there. `idle_ns` is the time
    that the client asked for, to wait for records or for the members of a group. A trace that is kept has a `trace_id`
    of 32 hexadecimal digits."""

    __slots__ = (
        "api", "began_ms", "began_ns", "client_id", "end_ns", "idle_ns", "left_out", "mono_ns", "peer", "phases",
        "principal", "size", "trace_id", "version",
    )  # fmt: skip

    def __init__(
        self, mono_ns: Callable[[], int], began_ms: int, api: str, version: int, size: int, client_id: str,
        principal: str, peer: str,
    ) -> None:  # fmt: skip
        self.mono_ns = mono_ns
        self.began_ns, self.began_ms, self.end_ns = mono_ns(), began_ms, -1
        self.api, self.version, self.size = api, version, size
        self.client_id, self.principal, self.peer = client_id, principal, peer
        self.idle_ns = 0
        self.trace_id = ""
        self.phases: list[Phase] = []
        self.left_out = 0

    @property
    def total_ns(self) -> int:
        """Time from the whole request to its reply."""
        return self.end_ns - self.began_ns

    @property
    def slow_ns(self) -> int:
        """The time that the client did not ask for: the slowest request has most of it."""
        return self.total_ns - self.idle_ns

    def add(self, name: str, start_ns: int) -> None:
        """Adds a phase that ends now."""
        if len(self.phases) < PHASES_MAX:
            self.phases.append(Phase(name, start_ns, self.mono_ns()))
        else:
            self.left_out += 1


TRACE: ContextVar[RequestTrace | None] = ContextVar("trace", default=None)
"""The traced request of this context; None if it is not traced."""


def timed(name: str, work: Awaitable[T]) -> Awaitable[T]:
    """Returns work that a request waits for. It is a phase of the request if that is traced."""
    trace = TRACE.get()
    return work if trace is None else _time(trace, name, work)


async def _time(trace: RequestTrace, name: str, work: Awaitable[T]) -> T:
    start_ns = trace.mono_ns()
    try:
        return await work
    finally:
        trace.add(name, start_ns)

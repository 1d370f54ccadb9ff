"""All that a handler can use: the broker, the limits, the memory budget, the worker threads and the counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import ParamSpec, TypeVar

from tiered.broker.broker import Broker
from tiered.errors import Refused
from tiered.fair_slots import FairSlots
from tiered.networks import network_of
from tiered.quotas.shares import EVENT_STREAMS, Holdings
from tiered.security.principal import Caller
from tiered.thread_pool import ThreadPool
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.limits import Exhausted, HttpLimits, MemoryBudget, max_streams
from tiered_api.http.exchange.remote_brokers import RemoteBrokers
from tiered_api.kafka.server.slots.latencies import BUCKETS

P = ParamSpec("P")
T = TypeVar("T")

WORKERS = 2
"""Threads for work that holds the interpreter's lock, and as many for work that does not."""
JOBS_OF_HOLDER = 1
"""Most jobs of one holder at a time that hold the interpreter's lock: two would take as long, and leave no thread to
others."""
NICENESS = 10
"""Niceness of the latter. At 0, bombs on two cores kept the event loop from its core for milliseconds in each turn."""
CLOSING_SECONDS = 1.0
"""Longest time of a job in a thread after the server begins to close."""
INLINE_BYTES = 1 << 16
"""Work on fewer bytes runs on the event loop: a thread would cost more than it saves."""


class HttpContext:
    """The environment of one HTTP listener's handlers."""

    def __init__(self, broker: Broker, limits: HttpLimits) -> None:
        self.broker = broker
        self.limits = limits
        self.budget = MemoryBudget(limits.memory_bytes)
        broker.pots.watch(self.budget.holdings)
        self.remote_brokers = RemoteBrokers(broker)
        self.clock = broker.world.clock
        self.closing = False
        self.shared_port: int | None = None
        """The port that the processes of this machine share."""
        self.streams: dict[str, set[object]] = {}
        """Connections that are event streams, by the address of their client."""
        self._stream_holders: dict[object, str] = {}
        self._stream_holdings = broker.pots.watch(
            Holdings(
                EVENT_STREAMS,
                lambda: broker.settings.tiered_http_connections_max,
                lambda: len(self._stream_holders),
            )
        )
        self._services: dict[type, object] = {}
        self._deadlines: dict[asyncio.Timeout, float] = {}
        """Deadlines of waits, and the seconds that each has left once the server closes."""
        self._workers = ThreadPool("http", WORKERS)
        self._unlocked_workers = ThreadPool("http-nice", WORKERS, niceness=NICENESS)
        waiting_max = max(limits.jobs - WORKERS, 0)
        self._turns = FairSlots(WORKERS, waiting_max, self._has_room)
        self._unlocked_turns = FairSlots(WORKERS, waiting_max)
        metrics = broker.metrics
        self.requests = metrics.counter(
            "tiered_http_requests_total", "Requests that got a response.", ("operation", "status")
        )
        self.seconds = metrics.histogram(
            "tiered_http_request_seconds", "Time to the response of a request, by operation; streams last.",
            BUCKETS, ("operation",),
        )  # fmt: skip
        self.connections = metrics.gauge("tiered_http_connections", "Open HTTP connections.")
        self.refused_connections = metrics.counter(
            "tiered_http_connections_refused_total", "Connections above a limit: only health and metrics are served."
        )
        self.records_written = metrics.counter(
            "tiered_http_records_written_total", "Records that HTTP produce appended."
        )
        self.records_read = metrics.counter("tiered_http_records_read_total", "Records given as JSON or events.")
        self.raw_bytes_read = metrics.counter("tiered_http_raw_read_bytes_total", "Bytes of record batches given raw.")

    def _has_room(self, holder: str) -> bool:
        """True if a holder may have one more job that holds the interpreter's lock. Work of the broker itself may."""
        return not holder or self._turns.by_owner.get(holder, 0) < JOBS_OF_HOLDER

    def add_service(self, service: object) -> None:
        """Makes an object of a class above this one reachable for handlers. Called before the first request."""
        self._services[type(service)] = service

    def service(self, kind: type[T]) -> T:
        """Returns the service of exactly this class."""
        service = self._services[kind]
        assert isinstance(service, kind)
        return service

    def lazy_service(self, kind: Callable[[HttpContext], T]) -> T:
        """Returns the service of a class that is made for its first use: most brokers never need it."""
        assert isinstance(kind, type)
        if kind not in self._services:
            self.add_service(kind(self))
        return self.service(kind)

    @asynccontextmanager
    async def timeout(self, seconds: float, closing_seconds: float = 0) -> AsyncIterator[None]:
        """Limits the time of a long poll or a stream, as `asyncio.timeout` does: raises TimeoutError after `seconds`,
        or `closing_seconds` after the server begins to close."""
        async with asyncio.timeout(min(seconds, closing_seconds) if self.closing else seconds) as deadline:
            self._deadlines[deadline] = closing_seconds
            try:
                yield
            finally:
                del self._deadlines[deadline]

    @contextmanager
    def admit_stream(self, caller: Caller, connection: object) -> Iterator[None]:
        """Counts an event stream. Raises `HttpError` 429 if its address has too many, `PotRefused` if its holder
        has."""
        peer, most = caller.host, max_streams(self.broker.settings)
        if len(self.streams.get(network_of(peer), ())) >= most:
            why = f"your address has {most} event streams already"
            raise HttpError(429, why, (("Retry-After", "10"),))
        self._stream_holdings.check(caller.holder)
        self.streams.setdefault(network_of(peer), set()).add(connection)
        self._stream_holders[connection] = caller.holder
        self._stream_holdings.add(caller.holder, 1)
        try:
            yield
        finally:
            self.end_stream(peer, connection)

    def end_stream(self, peer: str, connection: object) -> None:
        """Uncounts the stream of a connection that ended, if it was one. The stream itself notices a lost client only
        at its next event."""
        holder = self._stream_holders.pop(connection, None)
        if holder is not None:
            self._stream_holdings.add(holder, -1)
        counted = network_of(peer)
        streams = self.streams.get(counted)
        if streams is not None:
            streams.discard(connection)
            if not streams:
                del self.streams[counted]

    async def run_job(self, size: int, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns `function(...)`, computed in a thread if `size` bytes are much work. Raises `Exhausted` if too many
        jobs wait for a thread, or if the job takes too long. It may go on then, and its result is dropped."""
        if size <= INLINE_BYTES:
            return function(*args, **kwargs)
        return await self._run("", self._workers, self._turns, lambda: function(*args, **kwargs))

    async def run_job_of(
        self, holder: str, size: int, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Does what `run_job` does for a holder: holders take turns at the threads, and have one at a time."""
        if size <= INLINE_BYTES:
            return function(*args, **kwargs)
        return await self._run(holder, self._workers, self._turns, lambda: function(*args, **kwargs))

    async def run_unlocked_job(self, holder: str, function: Callable[[], T]) -> T:
        """Returns `function()`, as `run_job` does for much work, computed in a thread that yields its core to others.

        Only for a function that does not hold the interpreter's lock: all others would wait for it and its core.
        """
        return await self._run(holder, self._unlocked_workers, self._unlocked_turns, function)

    async def _run(self, holder: str, workers: ThreadPool, turns: FairSlots, function: Callable[[], T]) -> T:
        request_seconds = self.limits.job_seconds
        async with AsyncExitStack() as turn:
            try:
                async with self.timeout(request_seconds, CLOSING_SECONDS):
                    await _take_turn(turn, turns, holder)
                    return await workers.run(function, request_seconds)
            except TimeoutError:
                raise Exhausted(f"not done within {request_seconds:g} s") from None

    def drain(self) -> None:
        """Shortens all waits, because the server closes: reads return what they have."""
        self.closing = True
        now = asyncio.get_running_loop().time()
        for deadline, seconds in self._deadlines.items():
            if not deadline.expired():  # else its own time ends at this moment
                when = deadline.when()
                deadline.reschedule(now + seconds if when is None else min(when, now + seconds))

    async def close(self) -> None:
        """Ends the connections to other brokers, and the worker threads."""
        await self.remote_brokers.close()
        self._workers.close()
        self._unlocked_workers.close()


async def _take_turn(stack: AsyncExitStack, turns: FairSlots, holder: str) -> None:
    """Waits for a slot, which the stack gives back. Raises `Exhausted` if too much work waits."""
    try:
        await stack.enter_async_context(turns.take(holder))
    except Refused:
        raise Exhausted(f"{turns.waiting} jobs wait for a thread") from None

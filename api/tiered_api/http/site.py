"""What every handler can reach: the node, the limits, the memory budget, the worker threads and the counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from tiered.node import Node
from tiered_api.http.elsewhere import Elsewhere
from tiered_api.http.limits import Budget, Limits

if TYPE_CHECKING:
    from tiered_api.http.consumers.instances import Instances

P = ParamSpec("P")
T = TypeVar("T")

INLINE_BYTES = 1 << 16
"""Work on fewer bytes is done on the loop: a thread would cost more than it frees."""


class Site:
    """One HTTP listener's surroundings."""

    def __init__(self, node: Node, limits: Limits) -> None:
        self.node = node
        self.limits = limits
        self.budget = Budget(limits.memory_bytes)
        self.elsewhere = Elsewhere(node)
        self.clock = node.world.clock
        self.closing = False
        self.instances: Instances
        """Set before the first request."""
        self._patient: set[asyncio.Timeout] = set()
        self._workers = ThreadPoolExecutor(2, "http")
        metrics = node.metrics
        self.requests = metrics.counter("tiered_http_requests_total", "Requests answered.", ("operation", "status"))
        self.connections = metrics.gauge("tiered_http_connections", "Open HTTP connections.")
        self.refused_connections = metrics.counter(
            "tiered_http_connections_refused_total", "Connections closed at once because there were too many."
        )
        self.written = metrics.counter("tiered_http_records_written_total", "Records that HTTP produce appended.")
        self.read = metrics.counter("tiered_http_records_read_total", "Records given as JSON or events.")
        self.read_bytes = metrics.counter("tiered_http_raw_read_bytes_total", "Bytes of record batches given raw.")

    @asynccontextmanager
    async def patience(self, seconds: float) -> AsyncIterator[None]:
        """`asyncio.timeout` for long polls and streams: TimeoutError after `seconds`, or when the server closes."""
        async with asyncio.timeout(0 if self.closing else seconds) as deadline:
            self._patient.add(deadline)
            try:
                yield
            finally:
                self._patient.discard(deadline)

    async def work(self, size: int, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """`function(...)`, off the loop when it has much to do (`size` bytes)."""
        if size <= INLINE_BYTES:
            return function(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, lambda: function(*args, **kwargs))

    def hurry(self) -> None:
        """Ends all patience: what waits for more answers with what there is."""
        self.closing = True
        now = asyncio.get_running_loop().time()
        for deadline in self._patient:
            if not deadline.expired():  # else its own time is up in this moment
                deadline.reschedule(now)

    async def close(self) -> None:
        """Ends the connections to other brokers, and the worker threads."""
        await self.elsewhere.close()
        self._workers.shutdown(wait=False, cancel_futures=True)

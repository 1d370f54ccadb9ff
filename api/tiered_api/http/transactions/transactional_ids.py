"""The transactional ids of this broker's HTTP server. Each serves one request at a time, and is used again.

So the number of ids in `__transaction_state` is bounded. A broker that starts again has the same ids: the first
transaction of an id aborts what the process before left open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.limits import Exhausted
from tiered_api.http.transactions.producer import TransactionalProducer

IDS_MAX = 64
"""Transactions of one broker's HTTP server at a time. More requests wait for their turn."""
WAITING_MAX = 512


class TransactionalIds:
    """The producers that no request uses now, the one used last first."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._free: list[TransactionalProducer] = []
        self._made = 0
        self._permits = asyncio.Semaphore(IDS_MAX)
        self._waiting = 0

    @asynccontextmanager
    async def admit(self, seconds: float) -> AsyncIterator[None]:
        """Admits one transaction. Raises `Exhausted` if too many run, and none ends in time."""
        if self._waiting >= WAITING_MAX:
            raise Exhausted(f"{self._waiting} transactions wait for their turn")
        self._waiting += 1
        try:
            async with asyncio.timeout(seconds):
                await self._permits.acquire()
        except TimeoutError:
            raise Exhausted(f"no transaction ended within {seconds:g} s") from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._permits.release()

    @asynccontextmanager
    async def take(self, seconds: float) -> AsyncIterator[TransactionalProducer]:
        """Yields a producer that nobody else uses. Raises `Exhausted` if there is none in time."""
        async with self.admit(seconds):
            if not self._free:
                node = self._context.broker.settings.node_id
                self._free.append(TransactionalProducer(self._context, f"tiered-http-{node}-{self._made}"))
                self._made += 1
            producer = self._free.pop()
            try:
                yield producer
            finally:
                self._free.append(producer)

"""The transactional ids of this broker's HTTP server. Each serves one request at a time, and is used again.

So the number of ids in `__transaction_state` is bounded. A broker that starts again has the same ids: the first
transaction of an id aborts what the process before left open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tiered.errors import Refused
from tiered.fair_slots import FairSlots
from tiered.quotas.shares import HTTP_TRANSACTIONS, Holdings
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.limits import Exhausted
from tiered_api.http.transactions.producer import TransactionalProducer

IDS_MAX = 64
"""Transactions of one broker's HTTP server at a time. More requests wait for their turn, in turns of holders."""
WAITING_MAX = 512


class TransactionalIds:
    """The producers that no request uses now, the one used last first."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._free: list[TransactionalProducer] = []
        self._made = 0
        self.slots = FairSlots(IDS_MAX, WAITING_MAX, lambda holder: self._holdings.has_room(holder))
        self._holdings = context.broker.pots.watch(
            Holdings(HTTP_TRANSACTIONS, lambda: IDS_MAX, lambda: self.slots.taken, lambda: (self.slots.by_owner,))
        )

    @asynccontextmanager
    async def admit(self, seconds: float, holder: str) -> AsyncIterator[None]:
        """Admits one transaction. Raises `Exhausted` if too many wait or run, and none ends in time; `PotRefused` if
        the holder is above its share for that time."""
        async with AsyncExitStack() as turn:
            try:
                async with asyncio.timeout(seconds):
                    await turn.enter_async_context(self.slots.take(holder))
            except TimeoutError:
                if not self._holdings.has_room(holder):
                    raise self._holdings.refuse(holder) from None
                raise Exhausted(f"no transaction ended within {seconds:g} s") from None
            except Refused:
                raise Exhausted(f"{self.slots.waiting} transactions wait for their turn") from None
            yield

    @asynccontextmanager
    async def take(self, seconds: float, holder: str) -> AsyncIterator[TransactionalProducer]:
        """Yields a producer that nobody else uses. Raises what `admit` does if there is none in time."""
        async with self.admit(seconds, holder):
            if not self._free:
                node = self._context.broker.settings.node_id
                self._free.append(TransactionalProducer(self._context, f"tiered-http-{node}-{self._made}"))
                self._made += 1
            producer = self._free.pop()
            try:
                yield producer
            finally:
                self._free.append(producer)

"""Ids for idempotent producers: drawn one by one from blocks that the metadata log gives to this broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tiered.controller.requests import AllocateProducerIds
from tiered.errors import Code, Refused

BLOCK_SECONDS = 5.0
"""How long a producer waits for an id, those before it included; then it asks again."""


class ProducerIds:
    """`submit` asks the controller. What is left of a block when the broker ends is never used."""

    def __init__(self, submit: Callable[[AllocateProducerIds], Awaitable[Any]], node_id: int) -> None:
        self._submit = submit
        self._node_id = node_id
        self._next = 0
        self._end = 0
        self._allocation_lock = asyncio.Lock()

    async def next_id(self) -> int:
        """An id that no producer has had. `Refused` when the controller gives no block."""
        try:
            async with asyncio.timeout(BLOCK_SECONDS), self._allocation_lock:
                if self._next == self._end:
                    block = await self._submit(AllocateProducerIds(self._node_id))
                    self._next, self._end = block.first, block.first + block.count
                self._next += 1
                return self._next - 1
        except TimeoutError:
            raise Refused(Code.REQUEST_TIMED_OUT, f"no block of producer ids within {BLOCK_SECONDS:g} s") from None

"""Ids for idempotent producers, taken one by one from blocks that the controller allocates to this broker."""

from __future__ import annotations

import asyncio

from tiered.controller.channel import RequestChannel
from tiered.controller.requests import AllocateProducerIds
from tiered.errors import Code, Refused

BLOCK_SECONDS = 5.0
"""Longest time that a producer waits for an id, other producers before it included; then its client retries."""


class ProducerIds:
    """The current block of one broker. The rest of a block is never used once the broker ends."""

    def __init__(self, channel: RequestChannel, node_id: int) -> None:
        self._channel = channel
        self._node_id = node_id
        self._next = 0
        self._end = 0
        self._allocation_lock = asyncio.Lock()

    async def next_id(self) -> int:
        """Returns an id that no producer has had. Raises `Refused` if the controller allocates no block."""
        try:
            async with asyncio.timeout(BLOCK_SECONDS), self._allocation_lock:
                if self._next == self._end:
                    block = await self._channel.submit(AllocateProducerIds(self._node_id))
                    self._next, self._end = block.first, block.first + block.count
                self._next += 1
                return self._next - 1
        except TimeoutError:
            raise Refused(Code.REQUEST_TIMED_OUT, f"no block of producer ids within {BLOCK_SECONDS:g} s") from None

"""Gets of objects of a chain that partitions share: each of them reads the same windows at about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from tiered.errors import Refused, Unavailable
from tiered.wal.history import Span

KEPT_BYTES = 64 << 20
"""Bytes in memory for partitions that are behind others."""
_COST_BYTES = 1 << 10
"""Bytes that a get takes besides those of its span."""


class SharedGets:
    """The gets that were asked for last, and small objects that were read as a whole. `get` returns the bytes of a
    span, fewer if the object is shorter."""

    def __init__(self, get: Callable[[str, Span], Awaitable[bytes]]) -> None:
        self._get = get
        self._gets: dict[tuple[str, Span], asyncio.Task[bytes]] = {}
        self._whole: dict[str, bytes] = {}
        self.kept_bytes = 0
        self._readers = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keeps gets until nobody reads any more."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                for (key, span), task in list(self._gets.items()):
                    self.forget(key, span)
                    task.cancel()
                self._whole.clear()
                self.kept_bytes = 0

    def offer(self, key: str, data: bytes) -> None:
        """Keeps an object that was read as a whole, if there are readers, and room: half of all."""
        if self._readers and key not in self._whole and self.kept_bytes + len(data) <= KEPT_BYTES // 2:
            self._whole[key] = data
            self.kept_bytes += len(data) + _COST_BYTES

    async def read(self, key: str, span: Span) -> bytes:
        """Returns or raises what `get` does."""
        whole = self._whole.get(key)
        if whole is not None:
            return whole[span.position : span.position + span.length]
        task = self._gets.get((key, span))
        if task is None:
            task = asyncio.create_task(self._run(key, span), name="wal get")
            task.add_done_callback(_retrieve)
            self._gets[key, span] = task
            self.kept_bytes += span.length + _COST_BYTES
            while self.kept_bytes > KEPT_BYTES and len(self._gets) > 1:
                self.forget(*next(iter(self._gets)))
        await asyncio.wait((task,))  # a reader that is cancelled leaves it to the others
        return task.result()

    def forget(self, key: str, span: Span) -> None:
        """Gets these bytes anew when they are asked for again."""
        if self._gets.pop((key, span), None) is not None:
            self.kept_bytes -= span.length + _COST_BYTES
        if (whole := self._whole.pop(key, None)) is not None:
            self.kept_bytes -= len(whole) + _COST_BYTES

    async def _run(self, key: str, span: Span) -> bytes:
        try:
            return await self._get(key, span)
        except (Unavailable, Refused):
            self.forget(key, span)
            raise


def _retrieve(task: asyncio.Task[bytes]) -> None:
    """Takes the error of a get whose readers are gone."""
    if not task.cancelled():
        task.exception()

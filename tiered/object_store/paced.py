"""A wrapper of any ObjectStore that lets each request wait for its turn, and counts it: for work in the background."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tiered.metrics import Metrics
from tiered.ports import Buffer, FileSlice, GetResult, ListedObject, NotFound, ObjectStore, PutResult


class PacedStore:
    """The store `inner`. Each request begins once `admit` returns."""

    def __init__(self, inner: ObjectStore, admit: Callable[[], Awaitable[None]], metrics: Metrics) -> None:
        self.url = inner.url
        self._inner = inner
        self._admit = admit
        self._requests = metrics.counter(
            "tiered_cold_clean_requests_total", "Requests of cleans to the bucket, without those for manifests.",
            ("verb",),
        )  # fmt: skip

    async def _take_turn(self, verb: str) -> None:
        await self._admit()
        self._requests.inc(1, verb)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        await self._take_turn("get")
        return await self._inner.get(key, start, length)

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        await self._take_turn("put")
        return await self._inner.put(key, data, if_absent=if_absent, if_match=if_match)

    async def upload(self, key: str, parts: Sequence[Buffer | FileSlice]) -> PutResult:
        await self._take_turn("upload")
        return await self._inner.upload(key, parts)

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ListedObject]:
        await self._take_turn("list")
        return await self._inner.list(prefix, after, limit)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._take_turn("delete")
        await self._inner.delete(keys)

    async def end_old_uploads(self, prefix: str) -> int:
        await self._take_turn("list")
        return await self._inner.end_old_uploads(prefix)

    async def close(self) -> None:
        await self._inner.close()

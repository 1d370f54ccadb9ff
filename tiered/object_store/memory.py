"""The ObjectStore port in memory: the model for tests of the other stores, and a store for one process."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from tiered.object_store.upload_body import UploadBody
from tiered.ports import Buffer, Clock, ConditionFailed, FileSlice, GetResult, ListedObject, NotFound, Ok, PutResult


class StoredObject(NamedTuple):
    """One object."""

    data: bytes
    version: str
    modified_ms: int


class MemoryStore:
    """A store in memory. Linearizable, because no call yields to the event loop."""

    url = "memory://"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[str, StoredObject] = {}
        self._keys: list[str] = []
        self._writes = 0

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        stored = self._objects.get(key)
        if stored is None:
            return NotFound()
        end = len(stored.data) if length is None else start + length
        return GetResult(stored.data[start:end], len(stored.data), stored.version)

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        stored = self._objects.get(key)
        if if_absent and stored is not None:
            return ConditionFailed()
        if if_match is not None and (stored is None or stored.version != if_match):
            return ConditionFailed()
        if stored is None:
            bisect.insort(self._keys, key)
        self._writes += 1
        self._objects[key] = StoredObject(bytes(data), f"m{self._writes}", self._clock.wall_ms())
        return Ok(self._objects[key].version)

    async def upload(self, key: str, parts: Sequence[Buffer | FileSlice]) -> PutResult:
        return await self.put(key, UploadBody(parts).join())

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ListedObject]:
        at = bisect.bisect_left(self._keys, prefix) if after < prefix else bisect.bisect_right(self._keys, after)
        found: list[ListedObject] = []
        for key in self._keys[at : at + limit]:
            if not key.startswith(prefix):
                break
            stored = self._objects[key]
            found.append(ListedObject(key, len(stored.data), stored.modified_ms, stored.version))
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect.bisect_left(self._keys, key)]

    async def end_old_uploads(self, prefix: str) -> int:
        return 0

    async def close(self) -> None:
        """Does nothing: the objects live as long as the store."""

"""The keys that encrypt the objects of a bucket, by the headers of all objects."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.object_store.encrypted import EncryptedStore
from tiered.object_store.url import open_store
from tiered.system.clock import SystemClock, SystemRng

HEADERS_AT_ONCE = 16
PAGE_KEYS = 1_000
DAMAGED = "?"
"""Stands for the key of objects with a damaged header."""


class KeyUse(NamedTuple):
    """The objects under one key, and their bytes in the bucket."""

    key_id: str
    object_count: int
    stored_bytes: int


async def count_keys_in_use(url: str) -> list[KeyUse]:
    """Returns the keys of all objects, sorted by id. Needs no key; makes one small request for each object.

    Objects that are deleted meanwhile are left out.
    """
    store = open_store(url, SystemClock(), SystemRng(), create=False)
    counted: dict[str, KeyUse] = {}
    try:
        last = ""
        while page := await store.list("", last, PAGE_KEYS):
            for at in range(0, len(page), HEADERS_AT_ONCE):
                some = page[at : at + HEADERS_AT_ONCE]
                found = await asyncio.gather(*(_find_key_id(store, each.key) for each in some))
                for each, key_id in zip(some, found, strict=True):
                    if key_id is not None:
                        before = counted.get(key_id, KeyUse(key_id, 0, 0))
                        counted[key_id] = KeyUse(key_id, before.object_count + 1, before.stored_bytes + each.size)
            last = page[-1].key
    finally:
        await store.close()
    return [counted[key_id] for key_id in sorted(counted)]


async def _find_key_id(store: EncryptedStore, key: str) -> str | None:
    """Returns the id of an object's key, None if the object is gone."""
    try:
        return await store.find_key_id(key)
    except Corrupt:
        return DAMAGED

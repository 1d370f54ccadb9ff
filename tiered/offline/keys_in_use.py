"""The keys that encrypt the objects of a bucket, by the headers of all objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from tiered.errors import Corrupt, Unavailable
from tiered.object_store.encrypted import EncryptedStore
from tiered.object_store.probe import FOLDER
from tiered.object_store.url import open_store
from tiered.system.clock import SystemClock, SystemRng

HEADERS_AT_ONCE = 16
PAGE_KEYS = 1_000
FAULTS_MAX = 10
UNKNOWN = "?"
"""Stands for the key of objects with a damaged header, or one that only a newer program reads."""


class KeyUse(NamedTuple):
    """The objects under one key, and their bytes in the bucket."""

    key_id: str
    object_count: int
    stored_bytes: int


class KeysInUse(NamedTuple):
    """The keys of all objects, sorted by id, and the first reasons for objects under `UNKNOWN`."""

    keys: tuple[KeyUse, ...]
    faults: tuple[str, ...]


async def count_keys_in_use(url: str, on_looked: Callable[[int], None] = lambda _: None) -> KeysInUse:
    """Returns the keys of all objects. Needs no key; makes one small request for each object. `on_looked` takes how
    many objects were looked at so far.

    Objects that are deleted meanwhile are left out, and those of the check at a broker's start. Raises `Unavailable` if
    the store fails.
    """
    store = open_store(url, SystemClock(), SystemRng(), create=False)
    counted: dict[str, KeyUse] = {}
    faults: list[str] = []
    looked = 0
    try:
        last = ""
        while page := await store.list("", last, PAGE_KEYS):
            last = page[-1].key
            wanted = [each for each in page if not each.key.startswith(f"{FOLDER}/")]
            for at in range(0, len(wanted), HEADERS_AT_ONCE):
                some = wanted[at : at + HEADERS_AT_ONCE]
                found = await asyncio.gather(*(_find_key_id(store, each.key, faults) for each in some))
                for each, key_id in zip(some, found, strict=True):
                    if key_id is not None:
                        before = counted.get(key_id, KeyUse(key_id, 0, 0))
                        counted[key_id] = KeyUse(key_id, before.object_count + 1, before.stored_bytes + each.size)
                looked += len(some)
                on_looked(looked)
    finally:
        await store.close()
    return KeysInUse(tuple(counted[key_id] for key_id in sorted(counted)), tuple(faults))


async def _find_key_id(store: EncryptedStore, key: str, faults: list[str]) -> str | None:
    """Returns the id of an object's key, None if the object is gone. Adds the reason for `UNKNOWN` to `faults`."""
    try:
        return await store.find_key_id(key)
    except Corrupt as error:
        fault = str(error)
    except Unavailable as error:
        if not error.refused:
            raise
        fault = str(error)
    if len(faults) < FAULTS_MAX:
        faults.append(fault)
    return UNKNOWN

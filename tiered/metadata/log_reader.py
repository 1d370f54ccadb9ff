"""The cluster's memory as the bucket tells it, without any broker: what the tools and Spark start from.

A reader never trusts the log below the boundary (rule M3): it takes entries first and reads the boundary after, and
when the boundary has passed what it took, or an entry is missing, it starts over from the newest snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.metadata import layout
from tiered.metadata.image import Image
from tiered.metadata.layout import Boundary, Entry, Format
from tiered.ports import GetResult, NotFound, ObjectStore

T = TypeVar("T")

log = logging.getLogger(__name__)

READS_MAX = 3
_ATTEMPTS = 8
_WINDOW_MAX = 32


class LoadedMetadata(NamedTuple):
    """The committed image, and the boundary with its version in the store ("" when there is none yet)."""

    image: Image
    boundary: Boundary
    version: str
    tail_bytes: int


async def load_image(store: ObjectStore) -> Image:
    """The cluster as of the last committed slot. `Refused` when the store holds no cluster or a newer format."""
    if await read_format(store) is None:
        raise Refused(Code.INVALID_CONFIG, f"there is no cluster in {store.url}: no object {layout.FORMAT_KEY}")
    return (await load_metadata(store)).image


async def read_format(store: ObjectStore) -> Format | None:
    """`meta/FORMAT`, or None in an empty store. `Refused` for a version that this program does not know."""
    got = await get_verified(store, layout.FORMAT_KEY, layout.decode_format)
    if got is None:
        return None
    found = got[0]
    if found.version > layout.FORMAT_VERSION:
        raise Refused(
            Code.UNSUPPORTED_VERSION,
            f"{store.url} holds format {found.version}; this program reads up to {layout.FORMAT_VERSION}: upgrade it",
        )
    if found.version < layout.FORMAT_VERSION:
        why = f"{store.url} holds format {found.version}, this program reads {layout.FORMAT_VERSION}"
        raise Refused(Code.UNSUPPORTED_VERSION, f"{why}: use the program that wrote it")
    return found


async def verify_cluster(store: ObjectStore, cluster_id: str) -> None:
    """`Refused` when the store holds another cluster now, `Corrupt` when it holds none. One request. `Unavailable`."""
    found = await read_format(store)
    if found is None:
        raise Corrupt("what the store holds is not said any more", where=layout.FORMAT_KEY)
    if found.cluster_id != cluster_id:
        raise layout.wrong_cluster_error(layout.FORMAT_KEY, found.cluster_id, cluster_id)


async def load_metadata(store: ObjectStore, cluster_id: str = "") -> LoadedMetadata:
    """Replays the log. `Unavailable` when the boundary keeps overtaking the reader, or the store fails; `Corrupt` names
    the object that is garbled or missing; `Refused` when an entry is not of `cluster_id`."""
    last = ""
    for _ in range(_ATTEMPTS):
        boundary, _ = await read_boundary(store)
        image = await _read_snapshot(store, boundary)
        if image is None:
            if boundary.nonce == last:  # nobody collected it meanwhile
                raise Corrupt("metadata snapshot is missing", where=boundary.snapshots[-1].key)
            last = boundary.nonce
            continue
        entries, size = await read_entries(store, image.slot + 1)
        newer, version = await read_boundary(store)
        if newer.collected > image.slot:
            continue
        for each in entries:
            each.verify_cluster(cluster_id)
        return LoadedMetadata(layout.apply_entries(image, entries), newer, version, size)
    raise Unavailable(f"the metadata log in {store.url} was collected {_ATTEMPTS} times while it was read")


async def get_verified(store: ObjectStore, key: str, decode: Callable[[bytes], T]) -> tuple[T, GetResult] | None:
    """An object, decoded; None when it is not there. A get that fails, or whose bytes do not prove themselves, is made
    again: the way to the bucket may be at fault. Then `Unavailable` or `Corrupt`."""
    for attempt in range(READS_MAX):
        try:
            got = await store.get(key)
            return None if isinstance(got, NotFound) else (decode(got.data), got)
        except (Unavailable, Corrupt):
            if attempt == READS_MAX - 1:
                raise
    return None


async def read_boundary(store: ObjectStore) -> tuple[Boundary, str]:
    """The boundary and its version; the first one of all, and "", when none was written yet."""
    got = await get_verified(store, layout.BOUNDARY_KEY, layout.decode_boundary)
    return (got[0], got[1].version) if got is not None else (Boundary(), "")


async def read_entry(store: ObjectStore, slot: int) -> tuple[Entry, int] | None:
    """The entry of a slot and its size, or None at the end of the log (or below the boundary: the caller asks)."""
    got = await get_verified(store, layout.slot_key(slot), lambda data: layout.decode_entry(data, slot))
    return (got[0], got[1].size) if got is not None else None


async def read_entries(store: ObjectStore, slot: int) -> tuple[list[Entry], int]:
    """The entries from `slot` to the end of the log and their bytes; more at a time as it turns out to be long."""
    entries: list[Entry] = []
    size, window = 0, 1
    while True:
        found = await asyncio.gather(*(read_entry(store, slot + i) for i in range(window)))
        for each in found:
            if each is None:
                return entries, size
            entries.append(each[0])
            size += each[1]
        slot += window
        window = min(window * 4, _WINDOW_MAX)


async def _read_snapshot(store: ObjectStore, boundary: Boundary) -> Image | None:
    """The newest snapshot that is there and proves itself: the log still has every entry behind the older one, and all
    of them while nothing is collected. None when neither is there; `Corrupt` when none proves itself."""
    fault: Corrupt | None = None
    for slot, key in reversed(boundary.snapshots):
        try:
            image = await _read_one_snapshot(store, slot, key)
        except Corrupt as error:
            fault = fault or error
            log.error("metadata snapshot is not used key=%s why=%s", key, error)
            continue
        if image is not None:
            return image
    if boundary.collected < 0:
        return Image()
    if fault is not None:
        raise fault
    return None


async def _read_one_snapshot(store: ObjectStore, slot: int, key: str) -> Image | None:
    got = await get_verified(store, key, lambda data: layout.decode_snapshot(data, key))
    if got is None:
        return None
    if got[0].slot != slot:
        raise Corrupt(f"snapshot says slot {got[0].slot}, the boundary {slot}", where=key)
    return got[0]

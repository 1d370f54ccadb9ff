"""Replay of the metadata log from the bucket alone, without any broker (I31): used by brokers, tools and Spark.

A reader reads the entries first and the boundary after them, because slots below the boundary prove nothing (M3). If
the boundary has passed those entries, or an entry is missing, it starts over from the newest snapshot.
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
    """The committed image, the boundary with its version in the store ("" for none), and the bytes of read entries."""

    image: Image
    boundary: Boundary
    version: str
    tail_bytes: int


async def load_image(store: ObjectStore) -> Image:
    """Returns the image of the last committed slot. Raises `Refused` if the store has no cluster or a newer format."""
    if await read_format(store) is None:
        raise Refused(Code.INVALID_CONFIG, f"there is no cluster in {store.url}: no object {layout.FORMAT_KEY}")
    return (await load_metadata(store)).image


async def read_format(store: ObjectStore) -> Format | None:
    """Returns `meta/FORMAT`, or None in an empty store. Raises `Refused` for an unknown version."""
    got = await get_verified(store, layout.FORMAT_KEY, layout.decode_format)
    if got is None:
        return None
    stored = got[0]
    if stored.version > layout.FORMAT_VERSION:
        raise Refused(
            Code.UNSUPPORTED_VERSION,
            f"{store.url} holds format {stored.version}; this program reads up to {layout.FORMAT_VERSION}: upgrade it",
        )
    if stored.version < layout.FORMAT_VERSION:
        why = f"{store.url} holds format {stored.version}, this program reads {layout.FORMAT_VERSION}"
        raise Refused(Code.UNSUPPORTED_VERSION, f"{why}: use the program that wrote it")
    return stored


async def verify_cluster(store: ObjectStore, cluster_id: str) -> None:
    """Raises `Refused` if the store now holds another cluster, and `Corrupt` if it holds none.

    Makes one request. Raises `Unavailable` if the store does not reply.
    """
    stored = await read_format(store)
    if stored is None:
        raise Corrupt("the object that names the cluster is missing: put it back", where=layout.FORMAT_KEY)
    if stored.cluster_id != cluster_id:
        raise layout.wrong_cluster_error(layout.FORMAT_KEY, stored.cluster_id, cluster_id)


async def load_metadata(store: ObjectStore, cluster_id: str = "") -> LoadedMetadata:
    """Replays the log.

    Raises `Unavailable` if the boundary keeps overtaking the reader, or if the store fails. Raises `Corrupt` with the
    object that is garbled or missing. Raises `Refused` if an entry does not belong to `cluster_id`.
    """
    last_nonce = ""
    for _ in range(_ATTEMPTS):
        boundary, _ = await read_boundary(store)
        image = await _read_snapshot(store, boundary)
        if image is None:
            if boundary.nonce == last_nonce:  # the boundary is unchanged, so the snapshot was not collected meanwhile
                raise Corrupt("metadata snapshot is missing", where=boundary.snapshots[-1].key)
            last_nonce = boundary.nonce
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
    """Returns an object, decoded; None if it does not exist.

    Repeats a get that fails or returns damaged bytes, up to `READS_MAX` times: the connection to the bucket may be at
    fault. Then raises `Unavailable` or `Corrupt`.
    """
    for attempt in range(READS_MAX):
        try:
            got = await store.get(key)
            return None if isinstance(got, NotFound) else (decode(got.data), got)
        except (Unavailable, Corrupt):
            if attempt == READS_MAX - 1:
                raise
    return None


async def read_boundary(store: ObjectStore) -> tuple[Boundary, str]:
    """Returns the boundary and its version; an empty boundary and "" if none was written yet."""
    got = await get_verified(store, layout.BOUNDARY_KEY, layout.decode_boundary)
    return (got[0], got[1].version) if got is not None else (Boundary(), "")


async def read_entry(store: ObjectStore, slot: int) -> tuple[Entry, int] | None:
    """Returns the entry of a slot and its size, or None at the end of the log.

    None also stands for a slot below the boundary: the caller reads the boundary.
    """
    got = await get_verified(store, layout.slot_key(slot), lambda data: layout.decode_entry(data, slot))
    return (got[0], got[1].size) if got is not None else None


async def read_entries(store: ObjectStore, slot: int) -> tuple[list[Entry], int]:
    """Returns the entries from `slot` to the end of the log, and their bytes.

    Reads more at a time if the log is long.
    """
    entries: list[Entry] = []
    size, window = 0, 1
    while True:
        window_entries = await asyncio.gather(*(read_entry(store, slot + i) for i in range(window)))
        for each in window_entries:
            if each is None:
                return entries, size
            entries.append(each[0])
            size += each[1]
        slot += window
        window = min(window * 4, _WINDOW_MAX)


async def _read_snapshot(store: ObjectStore, boundary: Boundary) -> Image | None:
    """Returns the newest snapshot that exists and is intact; None if neither exists. Raises `Corrupt` if none is
    intact.

    The log still has every entry after the older snapshot, and all entries while nothing is collected.
    """
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

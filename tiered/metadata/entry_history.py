"""The entries of the metadata log for people: the newest from memory, older ones from the bucket.

A slot at or below the boundary may be gone: it is left out. Every list is bounded, and a page costs one list of the
bucket, which has the times, and one request for each entry that is not in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from tiered.metadata import layout
from tiered.metadata.changes import ControllerElected
from tiered.metadata.layout import Entry
from tiered.metadata.log_reader import read_entry
from tiered.metadata.recent_entries import RecentEntries
from tiered.ports import ObjectStore
from tiered.system.turns import each_of

READS_AT_ONCE = 16
LISTED_MAX = 1_000
PAGE_BYTES = 1 << 20
"""Bytes of entries after which a page ends."""
ELECTED = b'"controller_elected"'


class LoggedEntry(NamedTuple):
    """An entry, the size of its object, and when the bucket got it (ms); 0 and -1 if the list of the bucket lacks
    it."""

    entry: Entry
    size: int
    written_ms: int


async def read_page(
    store: ObjectStore, recent: RecentEntries, end_slot: int, most: int
) -> tuple[list[LoggedEntry], int | None]:
    """Returns at most `most` entries of slots up to `end_slot`, newest first, and the slot before them; None where the
    log begins. Raises `Unavailable` and `Corrupt`."""
    entries, size, to = list[Entry](), 0, end_slot
    while to >= 0 and len(entries) < most and size < PAGE_BYTES:
        first = max(0, to - min(READS_AT_ONCE, most - len(entries)) + 1)
        part = await _read_slots(store, recent, first, to)
        entries += (entry for entry, _ in reversed(part))
        size += sum(bytes_ for _, bytes_ in part)
        is_whole = len(part) == to - first + 1  # else those before are gone too
        to = first - 1 if is_whole else -1
    found = await _add_times(store, entries[-1].slot, entries) if entries else []
    return found, to if to >= 0 else None


async def find_elections(
    store: ObjectStore, recent: RecentEntries, end_slot: int, least: int
) -> tuple[list[LoggedEntry], int]:
    """Returns the entries in which controllers were elected, newest first, and the first slot that was looked at: the
    oldest in memory, or `least` slots before the end if memory has fewer. Raises `Unavailable` and `Corrupt`."""
    known = range(recent.first_slot, end_slot + 1)
    first = max(0, min(recent.first_slot, end_slot - least + 1))
    older = await _read_slots(store, recent, first, recent.first_slot - 1) if first < recent.first_slot else []
    bodies = ((slot, recent.find(slot)) for slot in known)
    newer = [
        layout.decode_entry(body, slot) async for slot, body in each_of(bodies) if body is not None and ELECTED in body
    ]
    elected = [each for each in (*(entry for entry, _ in older), *newer) if has_election(each)]
    return (await _add_times(store, elected[0].slot, elected) if elected else [])[::-1], first


def has_election(entry: Entry) -> bool:
    """True if a controller was elected in the entry."""
    return any(isinstance(change, ControllerElected) for change in entry.changes)


async def _read_slots(store: ObjectStore, recent: RecentEntries, first: int, last: int) -> list[tuple[Entry, int]]:
    """Returns the entries of these slots with their bytes, oldest first, without those that are gone."""
    slots = asyncio.Semaphore(READS_AT_ONCE)
    bodies = {slot: body for slot in range(first, last + 1) if (body := recent.find(slot)) is not None}

    async def read(slot: int) -> tuple[Entry, int] | None:
        async with slots:
            return await read_entry(store, slot)

    missing = [slot for slot in range(first, last + 1) if slot not in bodies]
    found = [each for each in await asyncio.gather(*map(read, missing)) if each is not None]
    found += [(layout.decode_entry(body, slot), len(body)) async for slot, body in each_of(bodies.items())]
    return sorted(found, key=lambda each: each[0].slot)


async def _add_times(store: ObjectStore, first: int, entries: Sequence[Entry]) -> list[LoggedEntry]:
    after = layout.slot_key(first - 1) if first else ""
    listed = {each.key: each for each in await store.list(layout.LOG_PREFIX, after, LISTED_MAX)}
    objects = [(each, listed.get(layout.slot_key(each.slot))) for each in entries]
    return [
        LoggedEntry(each, found.size, found.modified_ms) if found else LoggedEntry(each, 0, -1)
        for each, found in objects
    ]

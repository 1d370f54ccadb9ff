"""The takeover of partitions whose records are in another broker's chain: fence first, read after.

The fence goes into the first free slot of the chain. The owner, if it still runs, finds it there: no record behind it
is acknowledged. Everything before it counts, whether it was acknowledged or not.

An owner that lives may fill each slot before the fence gets there. So a fence ahead of it stops it first: the slots in
between are few, and each of them gets a window of the owner or a fence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

from tiered.errors import Corrupt, Unavailable
from tiered.ids import PartitionId
from tiered.object_store.conditional_put import PutOutcome, Stored, put_until_known
from tiered.ports import Clock, GetResult, NotFound, ObjectStore, Rng
from tiered.records.native import crc32c
from tiered.system.turns import each_of
from tiered.wal.history import Place, Span, ValidExtents, find_hole
from tiered.wal.layout import (
    HEADER_BYTES,
    ChainId,
    Fence,
    Window,
    decode,
    encode_fence,
    header_end,
    parse_key,
    slot_key,
)
from tiered.wal.shared_gets import SharedGets

log = logging.getLogger(__name__)

GETS_AT_ONCE = 16
TASKS_AT_ONCE = 256
"""Slots of a chain that have a task at once: a chain may have very many."""
_BACKOFF_SECONDS = (0.02, 1.0)
_ATTEMPTS = 6
CHASED_MAX = 2
"""Slots that the owner may take before the fence before it is stopped."""
_AHEAD = 8
"""Slots that the first fence ahead leaves free: more than the owner puts at a time. Each further one leaves twice as
many."""
LIVE_PAGES_MAX = 1_000
"""Pages in which the chain of an owner that lives is listed. The fence goes ahead of what such a list lacks."""
KEPT_ROWS = 50_000
"""Extents, epochs and objects whose headers are kept: 20 MB. Partitions come from one broker in several steps, and each
step reads the whole chain."""


class FencedChain:
    """The extents that count before slot `end` of a chain, of the partitions that are taken over."""

    def __init__(self, valid: ValidExtents, end: int) -> None:
        self._valid = valid
        self.end = end

    def extents_of(self, partition: PartitionId) -> list[Place]:
        """Returns the extents of a partition, in the order of slots."""
        return self._valid.of[partition]


class ChainTakeover:
    """Fences chains, and reads them. `cluster_id` is that of the bucket, known once the broker has read it."""

    def __init__(self, store: ObjectStore, clock: Clock, rng: Rng, cluster_id: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._random = rng.stream("wal-takeover")
        self._cluster_id = cluster_id
        self._slots = asyncio.Semaphore(GETS_AT_ONCE)
        self._kept: dict[tuple[ChainId, int], Window | Fence] = {}
        """Headers that were read, in that order: an object is never replaced."""
        self._kept_rows = 0
        self._gets = SharedGets(self._get_span)

    async def fence(self, chain: ChainId, epochs: Mapping[PartitionId, int]) -> FencedChain:
        """Puts a fence with the new leader epoch of each partition, and returns what is before it.

        The objects that count are those right before the fence, without a gap. The owner deletes its first objects:
        their records are in segments. A put that lands late may bring one back, and behind it is a gap. Raises
        `Unavailable` if the bucket does not reply: a fence may be there then, and a later call puts another one. Raises
        `Corrupt` if an object before the fence is damaged.
        """
        listed = await self._list(chain, is_live=True)
        newest = await self._find_header(chain, listed[-1]) if listed else None
        if listed and newest is None:
            raise Unavailable(f"the newest object of the chain was deleted: {slot_key(chain, listed[-1])}")
        slot = find_hole(listed, newest.decided if newest is not None else 0)
        nonce = f"{self._random.getrandbits(64):016x}"
        slot = await self._take_slot(chain, slot, nonce, epochs)
        first = min([*listed[:1], slot])
        objects = await self._read_headers(chain, range(first, slot))
        while first and len(objects) == slot - first and (hidden := await self._read_header(chain, first - 1)):
            objects.insert(0, hidden)  # the list did not show it
            first -= 1
        log.info(
            "chain is fenced chain=%s slot=%d objects=%d partitions=%d", chain.prefix, slot, len(objects), len(epochs)
        )
        return await self._find_extents(chain, objects, epochs, slot)

    async def read_own(self, chain: ChainId, slots: range, partitions: Iterable[PartitionId]) -> FencedChain:
        """Returns what is in these slots of the own chain, whose windows are decided. It takes no fence: the writer of
        the chain puts nothing more for a leadership that is over. Raises `Unavailable` and `Corrupt`."""
        return await self._find_extents(chain, await self._read_headers(chain, slots), partitions, slots.stop)

    async def _find_extents(
        self, chain: ChainId, objects: Iterable[Window | Fence], partitions: Iterable[PartitionId], end: int
    ) -> FencedChain:
        valid = ValidExtents(chain, partitions)
        async for each in each_of(objects):
            valid.add(each)
        return FencedChain(valid, end)

    async def _read_headers(self, chain: ChainId, slots: range) -> list[Window | Fence]:
        """Returns the objects right before the end of the slots, without a gap."""
        found: list[Window | Fence | None] = []
        for some in _in_parts(slots):
            found += await asyncio.gather(*(self._find_header(chain, each) for each in some))
        begin = max((number for number, each in enumerate(found, 1) if each is None), default=0)
        return [each for each in found[begin:] if each is not None]

    async def _take_slot(self, chain: ChainId, slot: int, nonce: str, epochs: Mapping[PartitionId, int]) -> int:
        """Puts a fence into the first free slot from `slot` on, and returns it. All slots below `slot` have or had an
        object."""
        for _ in range(CHASED_MAX):
            if await self._put_fence(chain, slot, nonce, slot, epochs):
                return slot
            slot += 1  # the owner, or another broker, has put an object meanwhile
        stop = slot + _AHEAD
        while not await self._put_fence(chain, stop, nonce, slot, epochs):
            stop += stop - slot
        between = range(slot, stop)
        taken: list[bool] = []
        for some in _in_parts(between):
            taken += await asyncio.gather(*(self._put_fence(chain, each, nonce, slot, epochs) for each in some))
        log.info("owner of a chain is stopped chain=%s slot=%d free=%d", chain.prefix, stop, sum(taken))
        return next((each for each, is_taken in zip(between, taken, strict=True) if is_taken), stop)

    async def list_windows(self, chain: ChainId) -> list[str]:
        """Returns the keys of all windows of a chain."""
        slots = await self._list(chain)
        return [slot_key(chain, each) for each in slots if isinstance(await self._find_header(chain, each), Window)]

    def reading(self) -> AbstractContextManager[None]:
        """Keeps what is read of chains in memory, up to a bound, until it is left."""
        return self._gets.reading()

    async def read(self, places: Iterable[Place]) -> AsyncIterator[tuple[Place, bytes]]:
        """Yields the batches of extents in order, and reads some extents ahead. Raises `Unavailable` and `Corrupt`."""
        waiting: list[tuple[Place, asyncio.Task[bytes]]] = []
        with self._gets.reading():
            try:
                for place in places:
                    waiting.append((place, asyncio.create_task(self._read_extent(place), name="wal extent")))
                    if len(waiting) == GETS_AT_ONCE:
                        first, task = waiting.pop(0)
                        yield first, await task
                while waiting:
                    first, task = waiting.pop(0)
                    yield first, await task
            finally:
                for _, task in waiting:
                    task.cancel()

    async def _list(self, chain: ChainId, *, is_live: bool = False) -> list[int]:
        """Returns all slots that have an object, in order. The newest ones may be missing of a chain whose owner lives:
        a list of all would not end while the owner adds some during each request. So a page that is shorter than one
        before is the end, and so is the last of `LIVE_PAGES_MAX`."""
        slots: list[int] = []
        after, longest, pages = "", 0, 0
        while page := await self._store.list(chain.prefix, after):
            slots += [found[1] for each in page if (found := parse_key(each.key)) is not None]
            after = page[-1].key
            pages += 1
            if is_live and (len(page) < longest or pages == LIVE_PAGES_MAX):
                break
            longest = max(longest, len(page))
        return slots

    async def _put_fence(
        self, chain: ChainId, slot: int, nonce: str, decided: int, epochs: Mapping[PartitionId, int]
    ) -> bool:
        """Returns True if the fence is in the slot, False if another object is."""
        body = encode_fence(chain, slot, nonce, self._cluster_id(), decided, epochs)

        async def read() -> Stored[Window | Fence] | None:
            found = await self._find_header(chain, slot)
            return None if found is None else Stored(found, found.nonce, "")

        settled = await put_until_known(
            self._store, slot_key(chain, slot), body, nonce, before=None, read=read, pause=self._back_off
        )
        return settled.outcome is PutOutcome.LANDED

    async def _find_header(self, chain: ChainId, slot: int) -> Window | Fence | None:
        """Returns what a slot holds, or held when it was read; None if it has no object."""
        return self._kept.get((chain, slot)) or await self._read_header(chain, slot)

    async def _read_header(self, chain: ChainId, slot: int) -> Window | Fence | None:
        """Returns what a slot holds; None if it has no object."""
        key = slot_key(chain, slot)
        got = await self._get(key, 0, HEADER_BYTES)
        if isinstance(got, GetResult) and (end := header_end(got.data, key)) > len(got.data) < got.size:
            got = await self._get(key, 0, end)
        if isinstance(got, NotFound):
            return None
        found = decode(got.data, chain, slot, self._cluster_id(), got.size)
        if len(got.data) == got.size:
            self._gets.offer(key, got.data)
        self._keep(chain, found)
        return found

    def _keep(self, chain: ChainId, found: Window | Fence) -> None:
        """Keeps a header, in place of the ones that were read first."""
        if self._kept.setdefault((chain, found.slot), found) is found:
            self._kept_rows += _rows(found)
        while self._kept_rows > KEPT_ROWS:
            self._kept_rows -= _rows(self._kept.pop(next(iter(self._kept))))

    async def _read_extent(self, place: Place) -> bytes:
        extent, key = place.extent, slot_key(place.chain, place.slot)
        start = extent.position - place.span.position
        data = (await self._gets.read(key, place.span))[start : start + extent.length]
        if len(data) != extent.length or crc32c(data) != extent.crc:
            self._gets.forget(key, place.span)
            raise Corrupt(f"batches of {extent.partition} are missing or damaged", where=key, position=extent.position)
        return data

    async def _get_span(self, key: str, span: Span) -> bytes:
        got = await self._get(key, span.position, span.length)
        return b"" if isinstance(got, NotFound) else got.data

    async def _get(self, key: str, start: int, length: int) -> GetResult | NotFound:
        """Gets a range, with more attempts than the store makes: a takeover needs all objects of a chain."""
        attempt = 0
        while True:
            try:
                async with self._slots:
                    return await self._store.get(key, start, length)
            except Unavailable as error:
                await self._back_off(attempt, str(error))
                attempt += 1

    async def _back_off(self, attempt: int, why: str) -> None:
        if attempt >= _ATTEMPTS:
            raise Unavailable(f"the chain is not read: {why}")
        least, most = _BACKOFF_SECONDS
        await self._clock.sleep(min(most, least * 2**attempt) * (0.5 + self._random.random()))


def _in_parts(slots: range) -> Iterator[range]:
    """Yields the slots in parts that may have a task for each slot."""
    for first in range(slots.start, slots.stop, TASKS_AT_ONCE):
        yield range(first, min(first + TASKS_AT_ONCE, slots.stop))


def _rows(found: Window | Fence) -> int:
    return 1 + len(found.extents if isinstance(found, Window) else found.epochs)

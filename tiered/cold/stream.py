"""One reader's walk through the cold segments of a partition, oldest to newest, with gets under way ahead of it.

How far ahead adapts: whenever the reader had to wait for a chunk, the number of gets in flight doubles, up to the byte
budget; a reader that never waits never asks for more. The read-ahead crosses segment borders. Every batch is proved
before it is handed out; bytes that do not prove themselves are read once more from the bucket, then Corrupt. Only a
batch that lies across two chunks is copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple

from tiered.cold.cache import ChunkCache, Fetch, Lease
from tiered.cold.chunks import next_chunk
from tiered.cold.manifest import SegmentEntry
from tiered.errors import Corrupt
from tiered.hot.leader_epochs import Epochs
from tiered.records.model import HEADER_BYTES, LENGTH_FROM, Walked
from tiered.records.native import walk

DEPTH_MAX = 32
"""Gets ahead of one reader at most, whatever their size."""


class Piece(NamedTuple):
    """Whole batches, proved. `batches[i].at` counts from `batches[0].at`, which is where `data` begins."""

    data: memoryview
    batches: list[Walked]
    entry: SegmentEntry

    @property
    def base_offset(self) -> int:
        """First offset of the first batch: at or below the one asked for."""
        return self.batches[0].base_offset

    @property
    def next_offset(self) -> int:
        """One past the last offset of the last batch."""
        return self.batches[-1].last_offset + 1


class _Ahead(NamedTuple):
    """A chunk under way: whose it is, the lease on it, and the byte of the object from which on it is of use."""

    entry: SegmentEntry
    lease: Lease
    at: int


class Stream:
    """Reads on from the batch that holds `offset`. `position` is a byte in the first entry at or before that batch.

    `depth` is the number of chunks ahead to begin with (0: none until `expect_sequence`), `window_bytes` bounds what is
    ahead. After an error only `close` is left; close it in any case.
    """

    def __init__(
        self,
        cache: ChunkCache,
        fetch: Fetch,
        entries: AsyncIterator[SegmentEntry],
        offset: int,
        *,
        position: int = 0,
        depth: int = 0,
        window_bytes: int,
    ) -> None:
        self.offset = offset
        self.entry: SegmentEntry | None = None
        self._cache = cache
        self._fetch = fetch
        self._entries = entries
        self._again_entries: deque[SegmentEntry] = deque()
        self._depth = depth
        self._window_bytes = window_bytes
        # The chunk in hand: its bytes not yet handed out, and the byte of the object where they begin.
        self._view = memoryview(b"")
        self._at = position
        self._lease: Lease | None = None
        # The chunks ahead, and where the plan goes on.
        self._ahead: deque[_Ahead] = deque()
        self._ahead_bytes = 0
        self._plan_entry: SegmentEntry | None = None
        self._plan_at = position
        self._step = 0
        self._pulled = 0
        self._suspect = -1
        self._last_offset = -1

    def expect_sequence(self) -> None:
        """The reader came back for what follows: from now on read ahead."""
        self._depth = max(self._depth, 2)

    def close(self) -> None:
        """Gives all chunks back and cancels gets that nobody else waits for."""
        self._release()
        for ahead in self._ahead:
            ahead.lease.release()
        self._ahead.clear()
        self._ahead_bytes = 0

    async def piece(self, limit: int | None = None) -> Piece | None:
        """The next whole batches, at most `limit` bytes unless the first alone is larger; None at the end.

        Unavailable, Corrupt (with the object's key and the position).
        """
        while self._view or await self._advance():
            found = await self._proved(limit)
            wanted = None if found is None else self._from_offset(found)
            if wanted is not None:
                self.offset = wanted.next_offset
                return wanted
        return None

    def _from_offset(self, found: Piece) -> Piece | None:
        """Without the batches below the offset asked for, which stand before it in the first chunk."""
        if found.batches[0].last_offset >= self.offset:
            return found
        first = next((i for i, batch in enumerate(found.batches) if batch.last_offset >= self.offset), None)
        if first is None:
            return None
        skipped = found.batches[first].at - found.batches[0].at
        return Piece(found.data[skipped:], found.batches[first:], found.entry)

    async def _proved(self, limit: int | None) -> Piece | None:
        """Takes whole batches off the view; None when they did not prove themselves and are read once more."""
        entry, view = self.entry, self._view
        assert entry is not None
        found = walk(view, 0, len(view) if limit is None else min(limit, len(view)))
        if not found.batches and found.why == "short" and limit is not None and limit < len(view):
            found = walk(view, max_batches=1)
        if found.batches:
            piece = self._ordered(entry, view, found.batches, self._at)
            if piece is not None:
                self._take(len(piece.data))
            return piece
        if found.why == "short":
            return await self._joined(entry)
        self._once_more(entry, self._at, found.why)
        return None

    def _ordered(self, entry: SegmentEntry, view: memoryview, batches: list[Walked], at: int) -> Piece | None:
        """The batches up to the first that cannot stand there: no CRC covers a batch's base offset and leader epoch."""
        last, good = max(self._last_offset, entry.base_offset - 1), 0
        known = last >= entry.base_offset or at == 0
        epochs = Epochs(entry.lineage)
        for batch in batches:
            if not (last < batch.base_offset <= batch.last_offset < entry.next_offset):
                break
            if entry.is_dense and batch.base_offset > (last + 1 if known else self.offset):
                break
            if batch.leader_epoch != epochs.epoch_at(batch.base_offset):
                break
            last, known, good = batch.last_offset, True, good + 1
        if not good:
            self._once_more(entry, at, f"batch of offset {batches[0].base_offset} is out of place")
            return None
        end = batches[good - 1].at + batches[good - 1].size
        self._suspect, self._last_offset = -1, last
        return Piece(view[:end], batches[:good], entry)

    async def _joined(self, entry: SegmentEntry) -> Piece | None:
        """The batch that begins in this chunk and ends in a later one, copied together."""
        at, joined = self._at, bytearray(self._view)
        self._take(len(joined))
        while (missing := _size(joined) - len(joined)) > 0:
            if at + len(joined) + missing > entry.log_bytes:
                self._once_more(entry, at, "batch reaches beyond the end of the log")
                return None
            if not self._view and not (await self._advance() and self.entry is entry):
                self._once_more(entry, at, "log ends inside a batch")
                return None
            part = self._view[:missing]
            joined += part
            self._take(len(part))
        found = walk(joined)
        if not found.batches:
            self._once_more(entry, at, found.why)
            return None
        return self._ordered(entry, memoryview(joined).toreadonly(), found.batches, at)

    def _take(self, length: int) -> None:
        self._view = self._view[length:]
        self._at += length

    def _once_more(self, entry: SegmentEntry, at: int, why: str) -> None:
        """Begins anew at byte `at` with bytes fresh from the bucket. Corrupt when these were fresh already."""
        if self._suspect == at:
            raise Corrupt(why, where=entry.key, position=at)
        self._suspect = at
        later: dict[str, SegmentEntry] = {ahead.entry.key: ahead.entry for ahead in self._ahead}
        if self._plan_entry is not None:
            later[self._plan_entry.key] = self._plan_entry
        later.pop(entry.key, None)
        self.close()
        self._again_entries.extendleft(reversed(later.values()))
        self._plan_entry, self._plan_at, self._step = entry, at, 0

    # -- read-ahead ---------------------------------------------------------------------------------------------------

    async def _advance(self) -> bool:
        """The next chunk becomes the view; False at the end of the last segment."""
        self._release()
        if not self._ahead:
            await self._fill(1)
        if not self._ahead:
            return False
        ahead = self._ahead.popleft()
        self._ahead_bytes -= ahead.lease.chunk.length
        self.entry, self._lease, self._at = ahead.entry, ahead.lease, ahead.at
        if self._pulled and not ahead.lease.is_ready:
            self._depth = min(2 * self._depth, DEPTH_MAX)
        self._pulled += 1
        await self._fill(self._depth)
        self._view = memoryview(await ahead.lease.data())[ahead.at - ahead.lease.chunk.start :]
        return True

    async def _fill(self, depth: int) -> None:
        """Begins gets until `depth` are ahead, or the bytes allowed are."""
        while len(self._ahead) < depth:
            entry = self._plan_entry
            if entry is None or self._plan_at >= entry.log_bytes:
                entry = self._plan_entry = await self._next_entry(entry)
                if entry is None:
                    return
            chunk = next_chunk(entry.key, self._plan_at, entry.log_bytes, self._step)
            if self._ahead and not self._may_read_ahead(chunk.length):
                return
            if self._suspect >= 0:
                self._cache.drop(chunk)
            self._ahead.append(_Ahead(entry, self._cache.lease(chunk, self._fetch), self._plan_at))
            self._ahead_bytes += chunk.length
            self._plan_at = chunk.end
            self._step += 1

    async def _next_entry(self, last: SegmentEntry | None) -> SegmentEntry | None:
        if last is not None:
            self._plan_at = 0
        if self._again_entries:
            return self._again_entries.popleft()
        return await anext(self._entries, None)

    def _may_read_ahead(self, length: int) -> bool:
        return self._ahead_bytes + length <= self._window_bytes and self._cache.has_room(length)

    def _release(self) -> None:
        self._view = memoryview(b"")
        if self._lease is not None:
            self._lease.release()
            self._lease = None


def _size(begun: bytearray) -> int:
    """Bytes of the batch that begins here, as far as its header is there to say so."""
    if len(begun) < HEADER_BYTES:
        return HEADER_BYTES
    return LENGTH_FROM + int.from_bytes(begun[8:12], "big")

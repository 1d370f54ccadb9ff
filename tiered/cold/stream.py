"""One reader's pass through the cold segments of a partition, oldest to newest, with read-ahead.

The read-ahead adapts: each time the reader had to wait for a chunk, the number of gets in flight doubles, up to the
byte limit. For a reader that never waits it does not grow. The read-ahead crosses segment borders. Every batch is
checked before it is returned. Invalid bytes are read from the bucket once more, and then raise `Corrupt`. Only a batch
that lies across two chunks is copied.

A chunk is checked in pieces. Other work of the event loop runs between two of them, so a large read delays nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple

from tiered.cold.cache import ChunkCache, Fetch, Lease
from tiered.cold.chunks import FEW_GETS_STEP, largest_step, next_chunk, step_in_share
from tiered.cold.manifest import SegmentEntry
from tiered.errors import Corrupt
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.records.model import HEADER_BYTES, LENGTH_FROM, WalkedBatch, WalkResult
from tiered.records.native import walk

DEPTH_MAX = 32
"""Limit on the gets in flight for one reader, whatever their size."""
PIECE_BYTES = 256 << 10
"""Bytes that are checked in one turn of the event loop; a batch that is larger is checked as a whole."""
PIECE_BATCHES = 256
"""Batches that are checked in one turn of the event loop."""


class ColdBatches(NamedTuple):
    """Whole batches that were checked. `batches[i].position` counts from `batches[0].position`, which is where `data`
    begins."""

    data: memoryview
    batches: list[WalkedBatch]
    entry: SegmentEntry

    @property
    def base_offset(self) -> int:
        """Returns the first offset of the first batch: at or below the requested one."""
        return self.batches[0].base_offset

    @property
    def next_offset(self) -> int:
        """Returns the offset after the last batch."""
        return self.batches[-1].last_offset + 1


class _PendingChunk(NamedTuple):
    """A chunk in flight: its segment, the lease on it, and the byte of the object from which it is needed."""

    entry: SegmentEntry
    lease: Lease
    position: int


class ColdStream:
    """Reads on from the batch that holds `offset`. `position` is a byte in the first entry at or before that batch.

    `depth` is the number of chunks to read ahead at first (0: none until `enable_read_ahead`), `step` the size of the
    first one (`chunks.py`). `window_bytes` bounds
    the read-ahead. After an error only `close` may be called. Every stream must be closed.
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
        step: int = 0,
        window_bytes: int,
    ) -> None:
        self.offset = offset
        self.entry: SegmentEntry | None = None
        self._cache = cache
        self._fetch = fetch
        self._entries = entries
        self._reread_entries: deque[SegmentEntry] = deque()
        self._depth = depth
        self._window_bytes = window_bytes
        self._last_step = largest_step(window_bytes)
        # The current chunk: its bytes that are not returned yet, and their position in the object.
        self._view = memoryview(b"")
        self._position = position
        self._lease: Lease | None = None
        # The chunks in flight, and where the next get starts.
        self._pending: deque[_PendingChunk] = deque()
        self._pending_bytes = 0
        self._plan_entry: SegmentEntry | None = None
        self._plan_at = position
        self._step = step
        self._chunks_read = 0
        self._reread_position = -1
        self._last_offset = -1
        self._is_open = True
        cache.readers += 1

    def enable_read_ahead(self) -> None:
        """Starts read-ahead, because the reader came back for what follows."""
        self._depth = max(self._depth, 2)

    def close(self) -> None:
        """Releases all chunks and cancels gets that no other reader waits for."""
        self._drop_chunks()
        if self._is_open:
            self._is_open = False
            self._cache.readers -= 1

    def _drop_chunks(self) -> None:
        self._release()
        for pending in self._pending:
            pending.lease.release()
        self._pending.clear()
        self._pending_bytes = 0

    async def next_batches(self, limit: int | None = None) -> ColdBatches | None:
        """Returns the next whole batches, or None at the end. They have at most `limit` bytes, unless the first alone
        is larger.

        Raises `Unavailable`, and `Corrupt` with the object's key and the position.
        """
        while self._view or await self._next_chunk():
            found = await self._take_batches(limit)
            wanted = None if found is None else self._skip_below_offset(found)
            if wanted is not None:
                self.offset = wanted.next_offset
                return wanted
        return None

    def _skip_below_offset(self, found: ColdBatches) -> ColdBatches | None:
        """Removes the batches below the requested offset, which come before it in the first chunk."""
        if found.batches[0].last_offset >= self.offset:
            return found
        first = next((i for i, batch in enumerate(found.batches) if batch.last_offset >= self.offset), None)
        if first is None:
            return None
        skipped = found.batches[first].position - found.batches[0].position
        return ColdBatches(found.data[skipped:], found.batches[first:], found.entry)

    async def _take_batches(self, limit: int | None) -> ColdBatches | None:
        """Takes whole batches off the view. Returns None if they are invalid and are read once more."""
        entry, view = self.entry, self._view
        assert entry is not None
        found = _walk_piece(view, 0, len(view) if limit is None else min(limit, len(view)))
        if not found.batches and found.why == "short":
            found = walk(view, max_batches=1)
        if found.batches:
            piece = self._check_order(entry, view, found.batches, self._position)
            if piece is not None:
                piece = await self._extend(piece, view, len(view) if limit is None else min(limit, len(view)))
                self._consume(len(piece.data))
            return piece
        if found.why == "short":
            return await self._join_batch(entry)
        self._reread_from(entry, self._position, found.why)
        return None

    async def _extend(self, first: ColdBatches, view: memoryview, stop: int) -> ColdBatches:
        """Returns the piece at the begin of the view with the whole batches after it that end at or before `stop`. Ends
        before the first invalid one."""
        batches, end, entry = first.batches, len(first.data), first.entry
        while end < stop:
            await asyncio.sleep(0)  # the chunk is in memory, and nothing else waits between two pieces of it
            found = _walk_piece(view, end, stop).batches or walk(view, end, stop, max_batches=1).batches
            good_count = self._count_in_order(entry, found, is_start_known=True)
            if not good_count:
                break
            batches += found[:good_count]
            end = batches[-1].position + batches[-1].size
        return first if end == len(first.data) else ColdBatches(view[:end], batches, entry)

    def _check_order(
        self, entry: SegmentEntry, view: memoryview, batches: list[WalkedBatch], at: int
    ) -> ColdBatches | None:
        """Returns the batches up to the first one out of order: no CRC covers a batch's base offset and leader
        epoch."""
        last = max(self._last_offset, entry.base_offset - 1)
        good_count = self._count_in_order(entry, batches, is_start_known=last >= entry.base_offset or at == 0)
        if not good_count:
            self._reread_from(entry, at, f"batch of offset {batches[0].base_offset} is out of place")
            return None
        end = batches[good_count - 1].position + batches[good_count - 1].size
        self._reread_position = -1
        return ColdBatches(view[:end], batches[:good_count], entry)

    def _count_in_order(self, entry: SegmentEntry, batches: list[WalkedBatch], *, is_start_known: bool) -> int:
        """Returns the number of batches before the first one out of order, and notes the offset of the last of them."""
        last, good_count = max(self._last_offset, entry.base_offset - 1), 0
        epochs = LeaderEpochs(entry.lineage)
        for batch in batches:
            if not (last < batch.base_offset <= batch.last_offset < entry.next_offset):
                break
            if entry.is_dense and batch.base_offset > (last + 1 if is_start_known else self.offset):
                break
            if batch.leader_epoch != epochs.epoch_at(batch.base_offset):
                break
            last, is_start_known, good_count = batch.last_offset, True, good_count + 1
        if good_count:
            self._last_offset = last
        return good_count

    async def _join_batch(self, entry: SegmentEntry) -> ColdBatches | None:
        """Copies together the batch that begins in this chunk and ends in a later one."""
        at, joined = self._position, bytearray(self._view)
        self._consume(len(joined))
        while (missing := _batch_size(joined) - len(joined)) > 0:
            if at + len(joined) + missing > entry.log_bytes:
                self._reread_from(entry, at, "batch reaches beyond the end of the log")
                return None
            if not self._view and not (await self._next_chunk() and self.entry is entry):
                self._reread_from(entry, at, "log ends inside a batch")
                return None
            part = self._view[:missing]
            joined += part
            self._consume(len(part))
        found = walk(joined)
        if not found.batches:
            self._reread_from(entry, at, found.why)
            return None
        return self._check_order(entry, memoryview(joined).toreadonly(), found.batches, at)

    def _consume(self, length: int) -> None:
        self._view = self._view[length:]
        self._position += length

    def _reread_from(self, entry: SegmentEntry, at: int, why: str) -> None:
        """Starts again at byte `at` with new bytes from the bucket. Raises `Corrupt` if the bytes were new already."""
        if self._reread_position == at:
            raise Corrupt(why, where=entry.key, position=at)
        self._reread_position = at
        if self._lease is not None:
            self._cache.invalidate(self._lease.chunk)
        later: dict[str, SegmentEntry] = {ahead.entry.key: ahead.entry for ahead in self._pending}
        if self._plan_entry is not None:
            later[self._plan_entry.key] = self._plan_entry
        later.pop(entry.key, None)
        self._drop_chunks()
        self._reread_entries.extendleft(reversed(later.values()))
        self._plan_entry, self._plan_at, self._step = entry, at, 0

    # -- read-ahead ---------------------------------------------------------------------------------------------------

    async def _next_chunk(self) -> bool:
        """Makes the next chunk the view. Returns False at the end of the last segment."""
        self._release()
        if not self._pending:
            await self._start_gets(1)
        if not self._pending:
            return False
        pending = self._pending.popleft()
        self._pending_bytes -= pending.lease.chunk.length
        self.entry, self._lease, self._position = pending.entry, pending.lease, pending.position
        if self._chunks_read and not pending.lease.is_ready:
            self._depth = min(2 * self._depth, DEPTH_MAX)
        self._chunks_read += 1
        await self._start_gets(self._depth)
        self._view = memoryview(await pending.lease.data())[pending.position - pending.lease.chunk.start :]
        return True

    async def _start_gets(self, depth: int) -> None:
        """Starts gets until `depth` are in flight, or the byte limit is reached."""
        while len(self._pending) < depth:
            entry = self._plan_entry
            if entry is None or self._plan_at >= entry.log_bytes:
                entry = self._plan_entry = await self._next_entry(entry)
                if entry is None:
                    return
            chunk = next_chunk(entry.key, self._plan_at, entry.log_bytes, self._step_now())
            is_one_enough = self._step == FEW_GETS_STEP and self._lease is not None
            if (self._pending or is_one_enough) and not self._may_read_ahead(chunk.length):
                return
            if self._reread_position >= 0:
                self._cache.invalidate(chunk)
            self._pending.append(_PendingChunk(entry, self._cache.lease(chunk, self._fetch), self._plan_at))
            self._pending_bytes += chunk.length
            self._plan_at = chunk.end
            if self._step != FEW_GETS_STEP:
                self._step = min(self._step + 1, self._last_step)

    def _step_now(self) -> int:
        """Returns the step, or the last one that this reader's share of the cache has room for."""
        return self._step if self._step == FEW_GETS_STEP else min(self._step, step_in_share(self._cache.share_bytes))

    async def _next_entry(self, last: SegmentEntry | None) -> SegmentEntry | None:
        if last is not None:
            self._plan_at = 0
        if self._reread_entries:
            return self._reread_entries.popleft()
        return await anext(self._entries, None)

    def _may_read_ahead(self, length: int) -> bool:
        current = self._lease.chunk.length if self._lease is not None else 0
        in_share = current + self._pending_bytes + length <= self._cache.share_bytes
        return in_share and self._pending_bytes + length <= self._window_bytes and self._cache.has_room(length)

    def _release(self) -> None:
        self._view = memoryview(b"")
        if self._lease is not None:
            self._lease.release()
            self._lease = None


def _walk_piece(view: memoryview, start: int, stop: int) -> WalkResult:
    """Returns the whole batches of the piece that begins at `start` and ends at or before `stop`."""
    return walk(view, start, min(stop, start + PIECE_BYTES), max_batches=PIECE_BATCHES)


def _batch_size(partial: bytearray) -> int:
    """Returns the size of the batch that begins here, or the size of its header while that is incomplete."""
    if len(partial) < HEADER_BYTES:
        return HEADER_BYTES
    return LENGTH_FROM + int.from_bytes(partial[8:12], "big")

"""Reads of cold data: one fetch at an offset, a whole range, a look-up by time, the sections of a segment.

Needs only a store, so it serves the broker, the command line and Spark. A fetch that continues where an earlier one
ended gets the stream of that one, with its chunks in flight. Therefore the fetches of a consumer are as fast as one
long read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import NamedTuple

from tiered.cold.cache import ChunkCache
from tiered.cold.chunks import FEW_GETS_STEP, MIB, Chunk
from tiered.cold.disk_cache import DiskCache
from tiered.cold.fetch_throttle import FetchThrottle
from tiered.cold.hedged_gets import HedgedGets
from tiered.cold.layout import SectionKind, SectionRef, SegmentSections, parse_key
from tiered.cold.manifest import Manifest, SegmentEntry
from tiered.cold.manifest_store import ManifestStore, ObjectMissing
from tiered.cold.read_backoff import TIME_LOOKUPS, DamagedObject, ReadBackoff, txn_index_key
from tiered.cold.stream import ColdBatches, ColdStream
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.fair_slots import FairSlots
from tiered.hot.checkpoints import parse_lineage
from tiered.hot.index import OFFSET_ENTRY, RELATIVE_MAX, lookup_offset, lookup_timestamp
from tiered.hot.segment_index import CandidateBatch
from tiered.hot.time_lookup import NO_TIMESTAMP, TimeLookups
from tiered.ids import PartitionId
from tiered.log_limiter import LogLimiter
from tiered.metrics import Metrics
from tiered.ports import Clock, NotFound, ObjectStore
from tiered.producers.aborted_txns import MAX_OFFSET, decode_aborted_txns, find_in_entries, list_for_readers
from tiered.records.batch import decode_header
from tiered.records.model import HEADER_BYTES, WalkedBatch
from tiered.records.native import crc32c

log = logging.getLogger(__name__)

WINDOW_BYTES = 192 * MIB
"""Read-ahead of one reader: twelve gets at a time fill a link of 800 MB/s if each connection gives 85."""
STREAMS_MAX = 64
STREAM_IDLE_S = 10.0
DEPTH_OF_ITERATE = 4
READ_BYTES = 2 * MIB
"""Most bytes of one read: they are copied in one turn of the event loop. The next read has the rest in memory."""
EMPTY_PIECES_MAX = 100
"""Limit on the pieces without records that one read passes. A clean can leave an object with one empty batch."""

LOOKUP_BYTES = 64 * MIB
"""Limit on the bytes that a look-up by time reads for nothing: it then returns the position that it has reached."""
SCAN_BYTES = 8 * MIB
"""Limit on the bytes of a segment that a look-up reads from its start on, although its greatest timestamp is unset."""
LOOKUPS_MAX = 8
"""Limit on the look-ups by time at once: each holds a chunk in memory."""
LOOKUPS_WAITING_MAX = 2_000
GET_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _ColdPiece(NamedTuple):
    """Whole batches of one segment as bytes, and the offset after them."""

    data: bytes
    entry: SegmentEntry
    next_offset: int


class ColdReader:
    """Reads cold segments of any partition of one bucket. Belongs to one event loop. Call `close` at the end.

    `cache` bounds all chunks in memory, `window_bytes` the read-ahead of one reader. `fetch_throttle` is the pace of
    `read` and `read_committed`. `disk_cache` has chunks that need no get.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifests: ManifestStore,
        cache: ChunkCache,
        metrics: Metrics,
        clock: Clock,
        *,
        window_bytes: int = WINDOW_BYTES,
        fetch_throttle: FetchThrottle | None = None,
        disk_cache: DiskCache | None = None,
    ) -> None:
        self._fetch_throttle = fetch_throttle
        self._disk_cache = disk_cache
        self._hedged_gets = HedgedGets(store, clock, metrics)
        self._manifests = manifests
        self._window_bytes = window_bytes
        self._cache = cache
        self._lookup_slots = FairSlots(LOOKUPS_MAX, LOOKUPS_WAITING_MAX)
        self._clock = clock
        self._streams: OrderedDict[tuple[PartitionId, int], tuple[ColdStream, float]] = OrderedDict()
        self._opened = 0
        """Streams that were opened so far: the number of one is its name."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._bytes = metrics.counter("tiered_cold_read_bytes_total", "Bytes of cold data handed to readers")
        self._gets = metrics.counter("tiered_cold_gets_total", "Ranged gets of cold objects by outcome", ("outcome",))
        self._failures = metrics.counter(
            "tiered_cold_read_failures_total", "Cold reads that failed, those without a try left out.", ("why",)
        )
        for why in ("unavailable", "corrupt"):
            self._failures.inc(0, why)  # a rate over time needs the sample before the first failure
        self._backoff = ReadBackoff()
        metrics.gauge(
            "tiered_cold_damaged_objects", "Objects that the last cold read of the last hour found missing or damaged."
        ).set_function(lambda: float(len(self.list_damaged())))
        self._log_limiter = LogLimiter(clock)
        self._seconds = metrics.histogram("tiered_cold_get_seconds", "Duration of ranged gets", GET_SECONDS)

    async def read(self, partition_id: PartitionId, manifest: Manifest | None, offset: int, max_bytes: int) -> bytes:
        """Returns whole batches from the one that holds `offset`: at least one, and more if they are in memory.

        If these have no records, because a clean left only empty batches, the next ones with records take their place:
        clients take a reply without records for a message that is too large, or request it for ever. Only at the cold
        end, or after `EMPTY_PIECES_MAX` of them, the result has no records. It is empty if no batch at all is between
        `offset` and the cold end: a segment of a log that Kafka has cleaned may end in a gap.

        The result has at most `max_bytes`, and at most `READ_BYTES`, unless the first batch alone is larger. `manifest`
        may be older than the one in the bucket (None: not known). It is loaded again if it does not name the offset, or
        if a clean has replaced the object since and the object is gone. Raises `Refused` with OFFSET_OUT_OF_RANGE,
        `Unavailable` and `Corrupt`.

        A failed read is not tried again during its pause: until then the failure is raised again.
        """
        with self._with_backoff(partition_id, offset, manifest):
            found = await self._read(partition_id, manifest, offset, max_bytes)
        if found is not None and self._backoff:
            self._backoff.record_whole(partition_id, found.entry.key)
        return b"" if found is None else found.data

    async def read_committed(
        self, partition_id: PartitionId, manifest: Manifest | None, offset: int, max_bytes: int
    ) -> tuple[bytes, tuple[tuple[int, int], ...]]:
        """Like `read`, with the aborted transactions of these batches: (producer id, first offset), sorted by offset.

        The index of their segment names them all: nothing is uploaded before every transaction in it is decided. A
        segment without aborted transactions costs no request.
        """
        with self._with_backoff(partition_id, offset, manifest):
            found = await self._read(partition_id, manifest, offset, max_bytes)
        if found is None:
            return b"", ()
        with self._with_backoff(partition_id, txn_index_key(found.entry.base_offset), manifest):
            try:
                return found.data, await self._find_aborted(found, offset)
            except ObjectMissing as error:  # the bytes were in memory: they and the index have to be of one object
                newer = await self.find_newer_manifest(partition_id, offset, error)
            found = await self._read(partition_id, newer, offset, max_bytes)
            return (b"", ()) if found is None else (found.data, await self._find_aborted(found, offset))

    async def _find_aborted(self, piece: _ColdPiece, offset: int) -> tuple[tuple[int, int], ...]:
        """Returns the aborted transactions with records from `offset` to the end of the piece."""
        ref = next((ref for ref in piece.entry.sections if ref.kind == SectionKind.TXN_INDEX), None)
        if ref is None:
            return ()
        index = (await self._read_refs(piece.entry, [ref]))[ref.kind]
        entries = decode_aborted_txns(index, begin=piece.entry.base_offset, end=MAX_OFFSET, where=piece.entry.key)
        return list_for_readers(find_in_entries(entries, offset, piece.next_offset).aborted)

    async def _read(
        self, partition_id: PartitionId, manifest: Manifest | None, offset: int, max_bytes: int
    ) -> _ColdPiece | None:
        try:
            return await self._read_once(partition_id, manifest, offset, max_bytes)
        except ObjectMissing as error:
            newer = await self.find_newer_manifest(partition_id, offset, error)
        return await self._read_once(partition_id, newer, offset, max_bytes)

    async def _read_once(
        self, partition_id: PartitionId, manifest: Manifest | None, offset: int, max_bytes: int
    ) -> _ColdPiece | None:
        """Returns the next piece, or None if no batch is between `offset` and the cold end."""
        max_bytes = min(max_bytes, READ_BYTES)
        taken, piece, at = self._take_stream(partition_id, offset), None, offset
        stream = taken or await self._open_stream(partition_id, manifest, offset, is_throttled=True)
        for _ in range(1 + EMPTY_PIECES_MAX):
            following = await self._next_batches(stream, max_bytes)
            if following is None and stream is taken:  # its manifest is older: records after its end may be cold by now
                if piece is not None:
                    manifest = manifest or await self._manifests.load(partition_id)
                    if manifest is None or manifest.find_node(at) is None:
                        break
                stream = await self._open_stream(partition_id, manifest, at, is_throttled=True)
                following = await self._next_batches(stream, max_bytes)
            if following is None:
                break
            piece, at = following, following.next_offset
            if any(batch.count for batch in piece.batches):
                break
        if piece is None:
            return None
        if following is not None:
            self._keep_stream(partition_id, stream)
        self._bytes.inc(len(piece.data))
        return _ColdPiece(bytes(piece.data), piece.entry, piece.next_offset)

    async def _next_batches(self, stream: ColdStream, max_bytes: int) -> ColdBatches | None:
        """Returns the next piece, or None at the end of the stream. Closes the stream at its end and after an error."""
        try:
            piece = await stream.next_batches(max_bytes)
        except BaseException:
            stream.close()
            raise
        if piece is None:
            stream.close()
        return piece

    async def iterate(
        self,
        partition_id: PartitionId,
        start: int,
        end: int | None = None,
        *,
        manifest: Manifest | None = None,
        keeps_manifest: bool = False,
        with_few_gets: bool = False,
    ) -> AsyncGenerator[ColdBatches]:
        """Yields whole batches from the one that holds `start` to the one that holds `end - 1`, with read-ahead across
        segments.

        None as `end` means the cold end of the manifest. Each piece is about as large as a chunk. If a clean has
        replaced an object and it is gone, the rest comes from its successor. With `keeps_manifest` all pieces are of
        the objects that `manifest` names, and one that is gone raises `ObjectMissing`. `with_few_gets` costs a later
        first byte.

        Raises `Refused` with OFFSET_OUT_OF_RANGE if `start` is below the log start or beyond the cold end,
        `Unavailable` and `Corrupt`.
        """
        manifest = manifest or await self._manifests.load(partition_id)
        stop = manifest.cold_end_offset if manifest is not None else 0
        stop = stop if end is None else min(end, stop)
        if start == stop and manifest is not None and start >= manifest.log_start_offset:
            return
        at, is_retried = start, keeps_manifest
        while True:
            try:
                pieces = self._iterate_once(partition_id, at, stop, manifest, FEW_GETS_STEP if with_few_gets else 0)
                async with aclosing(pieces):
                    async for piece in pieces:
                        at, is_retried = piece.next_offset, keeps_manifest
                        yield piece
                return
            except ObjectMissing as error:
                if is_retried:
                    raise
                manifest, is_retried = await self.find_newer_manifest(partition_id, at, error), True

    async def _iterate_once(
        self, partition_id: PartitionId, start: int, stop: int, manifest: Manifest | None, step: int
    ) -> AsyncGenerator[ColdBatches]:
        stream = await self._open_stream(partition_id, manifest, start, end=stop, depth=DEPTH_OF_ITERATE, step=step)
        try:
            while (piece := await stream.next_batches()) is not None and piece.base_offset < stop:
                piece = _cut_before(piece, stop)
                self._bytes.inc(len(piece.data))
                yield piece
                if piece.next_offset >= stop:
                    return
        finally:
            stream.close()

    async def offset_for_timestamp(
        self,
        partition_id: PartitionId,
        timestamp: int,
        *,
        start: int = 0,
        manifest: Manifest | None = None,
        lookups: TimeLookups | None = None,
    ) -> tuple[int, int, int] | None:
        """Returns (offset, timestamp, leader epoch) of the first cold record at or after `timestamp` (ms), from offset
        `start` on, or None.

        The result is exact unless too many batch headers are false (`hot/time_lookup.py`). Raises `Unavailable` and
        `Corrupt`. After a failure it pauses as `read` does.
        """
        lookups = lookups or TimeLookups()
        async with self._lookup_slots.take(lookups.owner, lookups.part):
            with self._with_backoff(partition_id, TIME_LOOKUPS, manifest):
                try:
                    return await self._find_by_time(partition_id, timestamp, start, manifest, lookups)
                except ObjectMissing as error:
                    newer = await self._load_newer_manifest(partition_id, error)
                return await self._find_by_time(partition_id, timestamp, start, newer, lookups)

    async def _find_by_time(
        self, partition_id: PartitionId, timestamp: int, start: int, manifest: Manifest | None, lookups: TimeLookups
    ) -> tuple[int, int, int] | None:
        manifest = manifest or await self._manifests.load(partition_id)
        if manifest is None:
            return None
        start, bytes_left = max(start, manifest.log_start_offset), LOOKUP_BYTES
        async for entry in self._manifests.list_segments_by_time(manifest, timestamp, start):
            sections = await self.read_sections(entry)
            begin = max(start, entry.base_offset + lookup_timestamp(sections.time_index, timestamp) + 1)
            if entry.is_time_unset and entry.log_bytes > SCAN_BYTES:
                begin = max(begin, await self._find_begin(entry, sections.offset_index, timestamp))
            if begin >= entry.next_offset:
                continue
            stream = await self._open_stream(partition_id, manifest, begin, end=entry.next_offset)
            try:
                found, bytes_left = await _find_in_stream(stream, timestamp, start, lookups, bytes_left)
            finally:
                stream.close()
            if found is not None:
                return found
        return None

    async def _find_begin(self, entry: SegmentEntry, offset_index: bytes, timestamp: int) -> int:
        """Returns the last offset of the last indexed batch whose first record is earlier than `timestamp`, by
        bisection. Records of a segment whose greatest timestamp is unset are in order of time."""
        begin, low, high = entry.base_offset, 0, len(offset_index) // OFFSET_ENTRY.size
        while low < high:
            middle = (low + high) // 2
            relative, position = OFFSET_ENTRY.unpack_from(offset_index, middle * OFFSET_ENTRY.size)
            head = decode_header(await self._get_from_bucket(Chunk(entry.key, position, HEADER_BYTES)))
            if head.last_offset != entry.base_offset + relative:
                raise Corrupt("no batch is where the offset index has it", where=entry.key, position=position)
            if head.base_timestamp < timestamp:
                begin, low = head.last_offset, middle + 1
            else:
                high = middle
        return begin

    async def find_max_timestamp(
        self, partition_id: PartitionId, manifest: Manifest, end: int, before: int, lookups: TimeLookups
    ) -> int:
        """Returns a bound on the timestamps of cold records below offset `end`, which are all earlier than `before`
        (ms); -1 if there are none.

        A segment is bounded by its figures if they are below `before`. Otherwise its batches are read, up to
        `LOOKUP_BYTES`. Raises `Unavailable` and `Corrupt`.
        """
        async with self._lookup_slots.take(lookups.owner, lookups.part):
            with self._with_backoff(partition_id, TIME_LOOKUPS, manifest):
                try:
                    return await self._find_max_timestamp(manifest, end, before, lookups)
                except ObjectMissing as error:
                    newer = await self._load_newer_manifest(partition_id, error)
                return -1 if newer is None else await self._find_max_timestamp(newer, end, before, lookups)

    async def _find_max_timestamp(self, manifest: Manifest, end: int, before: int, lookups: TimeLookups) -> int:
        newest, bytes_left = NO_TIMESTAMP, LOOKUP_BYTES
        last = await self._find_unset_end(manifest, end)
        async for node in self._manifests.list_nodes_by_time(manifest, end, before):
            if node.max_timestamp < before:
                newest = max(newest, node.max_timestamp)
                continue
            start = max(manifest.log_start_offset, node.base_offset)
            in_segment, bytes_left = await self._bound_in_segment(
                manifest, start, min(end, node.next_offset), before, lookups, bytes_left
            )
            newest = max(newest, in_segment)
        if last is not None and last.max_timestamp < before:
            start = max(manifest.log_start_offset, last.base_offset)
            if last.log_bytes > bytes_left:
                start = max(start, await self._find_tail(last))
            in_segment, _ = await self._bound_in_segment(
                manifest, start, min(end, last.next_offset), before, lookups, bytes_left
            )
            newest = max(newest, in_segment)
        return newest

    async def _find_unset_end(self, manifest: Manifest, end: int) -> SegmentEntry | None:
        """Returns the last segment below `end` that has timestamps, if its greatest one is unset. Those before it are
        earlier."""
        async for last in self._manifests.list_newest_first(manifest, end):
            if not last.is_timeless:
                return last if last.is_time_unset else None
        return None

    async def _find_tail(self, entry: SegmentEntry) -> int:
        """Returns the offset of the last batch that the index of a segment has."""
        last, _ = lookup_offset((await self.read_sections(entry)).offset_index, RELATIVE_MAX)
        return entry.base_offset + max(last, 0)

    async def _bound_in_segment(
        self, manifest: Manifest, start: int, end: int, before: int, lookups: TimeLookups, bytes_left: int
    ) -> tuple[int, int]:
        """Returns a bound on the timestamps of the records in `[start, end)` of one segment that are earlier than
        `before`, and the rest of `bytes_left`. The latest batch whose greatest timestamp is unset is opened."""
        newest, newest_unset = NO_TIMESTAMP, NO_TIMESTAMP
        unset: CandidateBatch | None = None
        stream = await self._open_stream(manifest.partition_id, manifest, start, end=end)
        try:
            while bytes_left > 0 and (piece := await stream.next_batches(MIB)) is not None:
                bytes_left -= len(piece.data)
                for number, batch in enumerate(piece.batches):
                    if batch.last_offset < start or batch.base_offset >= end or not batch.count:
                        continue
                    named = _named_timestamp(batch)
                    if named >= before:
                        named = await lookups.find_newest_in_batch(_candidate_of(piece, number), before, start)
                    elif batch.is_time_unset and named >= newest_unset:
                        unset, newest_unset = _candidate_of(piece, number), named
                    newest = max(newest, named)
                await asyncio.sleep(0)  # a chunk in the cache comes at once, and others are served between pieces
        finally:
            stream.close()
        if unset is not None:
            newest = max(newest, await lookups.find_newest_in_batch(unset, before, start))
        return newest, bytes_left

    async def read_sections(self, entry: SegmentEntry) -> SegmentSections:
        """Returns the sections after the log of a segment, checked against their CRCs. One get, then from the cache.

        The keys sections of older programs are not among them. Raises `Unavailable` and `Corrupt`.
        """
        parts = await self._read_refs(entry, [ref for ref in entry.sections if ref.kind < SectionKind.KEYS])
        return SegmentSections(
            offset_index=bytes(parts.get(SectionKind.OFFSET_INDEX, b"")),
            time_index=bytes(parts.get(SectionKind.TIME_INDEX, b"")),
            txn_index=bytes(parts.get(SectionKind.TXN_INDEX, b"")),
            producers=bytes(parts.get(SectionKind.PRODUCERS, b"")),
            lineage=parse_lineage(bytes(parts.get(SectionKind.LINEAGE, b"")), where=entry.key),
        )

    async def _read_refs(self, entry: SegmentEntry, refs: Sequence[SectionRef]) -> dict[int, memoryview]:
        """Returns adjacent sections by kind, checked against their CRCs, with one get."""
        begin = min((ref.position for ref in refs), default=entry.log_bytes)
        end = max((ref.position + ref.length for ref in refs), default=begin)
        chunk = Chunk(entry.key, begin, end - begin)
        for attempt in range(2):
            with self._cache.lease(chunk, self._get) as lease:
                data = memoryview(await lease.data())
            parts = {ref.kind: data[ref.position - begin :][: ref.length] for ref in refs}
            bad = next((ref for ref in refs if crc32c(parts[ref.kind]) != ref.crc), None)
            if bad is None:
                break
            self._cache.invalidate(chunk)
            if attempt:
                raise Corrupt(f"section {bad.kind} has a wrong CRC", where=entry.key, position=bad.position)
        return parts

    def list_damaged(self) -> list[DamagedObject]:
        """Returns the objects that are missing or damaged by the last read of them, of the last hour."""
        return self._backoff.list_damaged(self._clock.mono_ns())

    def close(self) -> None:
        """Closes all streams, and ends gets whose reply nobody needs."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for stream, _ in self._streams.values():
            stream.close()
        self._streams.clear()
        self._hedged_gets.close()

    @contextmanager
    def _with_backoff(self, partition_id: PartitionId, offset: int, manifest: Manifest | None) -> Iterator[None]:
        """Raises the last failure again if it is too early for another try. Otherwise records how this read ends."""
        backoff, clock = self._backoff, self._clock
        if backoff:
            backoff.raise_if_backing_off(partition_id, offset, clock.mono_ns())
        try:
            yield
        except (Unavailable, Corrupt) as error:
            pause = backoff.record_failure(partition_id, offset, error, clock.mono_ns())
            self._failures.inc(1, "corrupt" if isinstance(error, Corrupt) else "unavailable")
            suppressed = self._log_limiter.admit()
            if suppressed is not None:
                partition = partition_id if manifest is None else manifest.tp
                log.warning(
                    "cold read failed partition=%s again_in=%.2f suppressed=%d why=%s",
                    partition,
                    pause,
                    suppressed,
                    error,
                )
            raise
        if backoff:
            backoff.record_success(partition_id, offset)

    # -- streams ------------------------------------------------------------------------------------------------------

    async def _open_stream(
        self,
        partition_id: PartitionId,
        manifest: Manifest | None,
        offset: int,
        *,
        end: int | None = None,
        depth: int = 0,
        step: int = 0,
        is_throttled: bool = False,
    ) -> ColdStream:
        """Opens a stream from `offset`, on the given manifest, or on the bucket's if the given one does not name the
        offset. With `end` it ends with the segment that holds `end - 1`."""
        entry = await self._manifests.find_segment(manifest, offset) if manifest is not None else None
        if manifest is None or entry is None:
            manifest = await self._manifests.load(partition_id)
            entry = await self._manifests.find_segment(manifest, offset) if manifest is not None else None
        if manifest is None or entry is None:
            raise _out_of_range(partition_id, offset)
        position = 0
        if offset > entry.base_offset:
            _, position = lookup_offset((await self.read_sections(entry)).offset_index, offset - entry.base_offset)
        entries = self._manifests.list_segments(manifest, offset)
        if end is not None:
            entries = _list_below(entries, end)
        self._opened += 1
        get = partial(self._get, stream=str(self._opened)) if is_throttled else self._get
        return ColdStream(
            self._cache, get, entries, offset,
            position=position, depth=depth, step=step, window_bytes=self._window_bytes,
        )  # fmt: skip

    def _take_stream(self, partition_id: PartitionId, offset: int) -> ColdStream | None:
        """Takes the stream that an earlier read left at this offset."""
        entry = self._streams.pop((partition_id, offset), None)
        if entry is None:
            return None
        entry[0].enable_read_ahead()
        return entry[0]

    def _keep_stream(self, partition_id: PartitionId, stream: ColdStream) -> None:
        """Keeps a stream for the read that continues where this one ended. Idle streams are closed and release their
        chunks."""
        loop = asyncio.get_running_loop()
        replaced = self._streams.pop((partition_id, stream.offset), None)
        if replaced is not None:
            replaced[0].close()
        self._streams[partition_id, stream.offset] = stream, loop.time()
        if len(self._streams) > STREAMS_MAX:
            _, (oldest, _) = self._streams.popitem(last=False)
            oldest.close()
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(STREAM_IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_timer = None
        for place, (stream, since) in list(self._streams.items()):
            if loop.time() - since >= STREAM_IDLE_S:
                del self._streams[place]
                stream.close()
        if self._streams:
            self._idle_timer = loop.call_later(STREAM_IDLE_S, self._close_idle)

    async def find_newer_manifest(self, partition_id: PartitionId, offset: int, error: ObjectMissing) -> Manifest:
        """Returns the manifest that no longer names the missing segment or sub-manifest, for a read on from `offset`.

        Raises `Refused` with OFFSET_OUT_OF_RANGE if no manifest names the offset any more. Raises `ObjectMissing` if
        the manifest in the bucket still names the object: then it is lost.
        """
        manifest = await self._load_newer_manifest(partition_id, error)
        if manifest is None or manifest.find_node(offset) is None:
            raise _out_of_range(partition_id, offset) from None
        return manifest

    async def _load_newer_manifest(self, partition_id: PartitionId, error: ObjectMissing) -> Manifest | None:
        """Returns the manifest in the bucket, or None if there is none. Raises `error` if it names the missing
        object."""
        manifest = await self._manifests.load(partition_id)
        name = parse_key(error.where)
        if manifest is not None and name is not None:
            at = max(name.base_offset, manifest.log_start_offset)
            entry = await self._manifests.find_segment(manifest, at)
            if entry is not None and entry.key == error.where:
                raise error
        return manifest

    # -- gets ---------------------------------------------------------------------------------------------------------

    async def _get(self, chunk: Chunk, stream: str = "") -> bytes:
        """Returns exactly these bytes, from the disk or the bucket. A stream of fetches has its name, and the pace of
        fetches for what the bucket sends."""
        kept = await self._disk_cache.get(chunk) if self._disk_cache is not None else None
        if kept is not None:
            return kept
        if stream and self._fetch_throttle is not None:
            await self._fetch_throttle.admit(chunk.length, stream)
        return await self._get_from_bucket(chunk)

    async def _get_from_bucket(self, chunk: Chunk) -> bytes:
        """Gets exactly these bytes. After a short reply it tries once more, and then raises `Corrupt`."""
        received = 0
        began = self._clock.mono_ns()
        for _ in range(2):
            got = await self._hedged_gets.get(chunk.key, chunk.start, chunk.length)
            if isinstance(got, NotFound):
                self._gets.inc(1, "missing")
                raise ObjectMissing("object is missing", where=chunk.key)
            if len(got.data) == chunk.length:
                self._gets.inc(1, "ok")
                self._seconds.observe((self._clock.mono_ns() - began) / 1e9)
                if self._disk_cache is not None:
                    self._disk_cache.keep(chunk, got.data)
                return got.data
            self._gets.inc(1, "short")
            received = len(got.data)
        raise Corrupt(f"object ends early: {received} of {chunk.length} bytes", where=chunk.key, position=chunk.start)


def _out_of_range(partition_id: PartitionId, offset: int) -> Refused:
    return Refused(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} of {partition_id} is not in the bucket")


async def _list_below(entries: AsyncIterator[SegmentEntry], end: int) -> AsyncIterator[SegmentEntry]:
    """Yields the segments that begin below `end`: a stream reads ahead in all that it gets."""
    async for entry in entries:
        if entry.base_offset >= end:
            return
        yield entry


def _cut_before(piece: ColdBatches, stop: int) -> ColdBatches:
    """Returns the piece without the batches that begin at or after `stop`."""
    if piece.next_offset <= stop:
        return piece
    batches = [batch for batch in piece.batches if batch.base_offset < stop]
    end = batches[-1].position + batches[-1].size - batches[0].position
    return ColdBatches(piece.data[:end], batches, piece.entry)


async def _find_in_stream(
    stream: ColdStream, timestamp: int, start: int, lookups: TimeLookups, bytes_left: int
) -> tuple[tuple[int, int, int] | None, int]:
    """Returns the first record of a stream with a timestamp >= `timestamp` and an offset >= `start`, or None, and the
    rest of `bytes_left`.

    When the bytes or the headers of the request are used up, it returns the first offset of the batch that it has
    reached.
    """
    headers_left = lookups.headers.begin_step()
    unset: tuple[CandidateBatch, int] | None = None
    while (piece := await stream.next_batches(MIB)) is not None:
        for number, batch in enumerate(piece.batches):
            bytes_left -= batch.size
            headers_left -= 1
            may_open = bytes_left > 0 and headers_left > 0
            is_early = _named_timestamp(batch) < timestamp or not batch.count
            if batch.last_offset < start:
                continue
            if is_early and may_open:
                unset = (_candidate_of(piece, number), batch.leader_epoch) if batch.is_time_unset else unset
                continue
            lookups.headers.end_step(headers_left)
            candidate = _candidate_of(piece, number)
            if not may_open:
                candidate = candidate._replace(read=None)
            for each, epoch in (*([unset] if unset else []), (candidate, batch.leader_epoch)):
                found = await lookups.find_in_batch(each, timestamp, start)
                if found is not None:
                    return (*found, epoch), bytes_left
            unset, headers_left = None, lookups.headers.begin_step()
        await asyncio.sleep(0)  # a chunk in the cache comes at once, and others are served between two pieces
    lookups.headers.end_step(headers_left)
    found = await lookups.find_in_batch(unset[0], timestamp, start) if unset else None
    return (*found, unset[1]) if found and unset else None, bytes_left


def _candidate_of(piece: ColdBatches, number: int) -> CandidateBatch:
    """Returns a batch of a piece as look-ups by time open it."""
    batch = piece.batches[number]
    at = batch.position - piece.batches[0].position
    read = partial(_take_first, memoryview(piece.data)[at : at + batch.size])
    return CandidateBatch(batch.base_offset, batch.last_offset, _named_timestamp(batch), batch.size, read)


def _named_timestamp(batch: WalkedBatch) -> int:
    """Returns the greatest timestamp in a header. If it is unset, that of the first record takes its place."""
    return batch.base_timestamp if batch.is_time_unset else batch.max_timestamp


def _take_first(data: memoryview, size: int) -> memoryview:
    return data[:size]

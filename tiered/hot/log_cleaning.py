"""One clean of the closed segments of a log, on its disk: two passes over the batches, then the swap of each group.

Keeps I26. The rules are in `tiered/compaction`. The caller says where blocking work runs. It runs piece by piece, so
that the event loop goes on. The segments that are read stay in use until they are replaced. If the log is truncated or
one of them deleted meanwhile, the clean ends and leaves the rest as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple, Protocol, TypeVar

from tiered.compaction.batch_filter import CleanRules, LastRecord, clean_batches, forget_horizons, put_batches
from tiered.compaction.cleanable_range import RELATIVE_MAX, CleanableRange, CleanableSegment, group_segments
from tiered.compaction.transactions import CleanedTransactions
from tiered.config.settings import TopicConfig
from tiered.errors import Corrupt, Unavailable
from tiered.hot.index import IndexBuilder
from tiered.hot.interrupted_swaps import CLEANED
from tiered.hot.log_writer import LogWriter
from tiered.hot.segment_swap import SegmentSwap
from tiered.hot.segments import IndexChecksums, Segment
from tiered.ids import NO_EPOCH
from tiered.ports import Buffer, File
from tiered.producers.aborted_txns import AbortedTxn, encode_aborted_txns
from tiered.records.batch import decode_header
from tiered.records.key_offset_map import KeyOffsetMap
from tiered.records.model import CRC_FROM, DELETE_HORIZON, HEADER_BYTES, LENGTH_FROM
from tiered.records.native import crc32c, walk
from tiered.records.pure_compact import SLOT_BYTES

T = TypeVar("T")

_HEAD = struct.Struct(">qiiBIhi")
"""The first fields of a batch, up to its last offset delta. A walk makes an object of each batch, and takes twice as
long."""

LARGE_BYTES = 256 << 20
"""Size of a batch whose CRC is checked in pieces first: a length in a corrupt header must not take all memory."""
MAP_BYTES_MIN = 64 << 10
PIECES_AT_ONCE = 4
"""Most pieces of a segment for one call of a thread: each call also takes time of the event loop."""


class RunBlocking(Protocol):
    """Runs a call that reads, writes or computes for long, and returns its result."""

    def __call__(self, call: Callable[[], T]) -> Awaitable[T]: ...


@dataclass(frozen=True)
class CleanerResources:
    """The share of one clean in the resources of its broker. `admit` waits until so many more bytes of I/O may be
    done. `seed` keys the hash of keys."""

    run: RunBlocking
    admit: Callable[[int], Awaitable[None]]
    map_bytes: int
    read_bytes: int
    load_factor: float
    seed: bytes

    def size_map(self, dirty_bytes: int, dirty_offsets: int) -> int:
        """Returns the bytes of a map with room for the keys of so many bytes and offsets, up to `map_bytes`. Compressed
        bytes say little about keys. A map of `map_bytes` for each small clean would cost time: its pages are huge."""
        for_offsets = ceil(2 * SLOT_BYTES * dirty_offsets / self.load_factor)
        return min(self.map_bytes, max(MAP_BYTES_MIN, 2 * dirty_bytes, for_offsets))


class CleanResult(NamedTuple):
    """All below `clean_to` is clean now. `is_map_full`: the map had no room for more keys, and a next clean goes on.
    `unopened` is the first batch that stays as it is because it cannot be opened within the bounds, "" for none."""

    clean_to: int
    bytes_before: int
    bytes_after: int
    records_read: int
    records_kept: int
    is_map_full: bool
    unopened: str = ""


class LogChanged(Exception):
    """The log was truncated, dropped or closed while it was cleaned."""


class LogCleaning:
    """One clean of one log: the closed segments in `found`, which the caller has chosen just before.

    Tombstones go by `now_ms`, and replaced files by `wall_ms`. With `keeps_tombstones` no tombstone goes: uncleaned
    records of their keys may lie below the log.
    """

    def __init__(
        self,
        writer: LogWriter,
        swap: SegmentSwap,
        config: TopicConfig,
        found: CleanableRange,
        resources: CleanerResources,
        now_ms: int,
        wall_ms: int,
        *,
        keeps_tombstones: bool,
    ) -> None:
        self._writer = writer
        self._swap = swap
        self._config = config
        self._found = found
        self._resources = resources
        self._wall_ms = wall_ms
        self._segments = [each for each in writer.segments[:-1] if each.next_offset <= found.first_uncleanable]
        self._rules = CleanRules.of(
            now_ms,
            config.delete_retention_ms,
            found.first_uncleanable,
            last_records(writer, found.first_uncleanable),
            keeps_tombstones=keeps_tombstones,
        )
        self._leader_epoch = next((epoch for epoch, _ in writer.epochs.lineage), NO_EPOCH)
        self._records_read = self._records_kept = 0
        self._bytes_before = self._bytes_after = 0

    async def run(self) -> CleanResult:
        """Cleans. Raises `LogChanged`, `Corrupt` for a batch that cannot be read, and `Unavailable` of the disk."""
        found = self._found
        memory = self._resources.size_map(found.dirty_bytes, found.first_uncleanable - found.first_dirty)
        key_map = KeyOffsetMap(memory, self._resources.seed, self._resources.load_factor)
        try:
            is_full = await self._build_map(key_map)
            clean_to = key_map.latest_offset + 1 if is_full else self._found.first_uncleanable
            key_map.cover(clean_to - 1)
            transactions = CleanedTransactions(self._find_aborted(self._segments))
            facts = {each.base_offset: each for each in self._segments}
            groups = group_segments(
                [segment_facts(each) for each in self._segments],
                clean_to,
                self._config.segment_size,
                self._config.segment_index_bytes,
            )
            for group in groups:
                await self._clean_group([facts[each.base_offset] for each in group], key_map, transactions)
        finally:
            key_map.close()
        if not self._swap.has_all([]):  # `clean_to` would be set over records that came after a truncation
            raise LogChanged
        return CleanResult(
            clean_to, self._bytes_before, self._bytes_after, self._records_read, self._records_kept, is_full,
            key_map.unopened,
        )  # fmt: skip

    # -- first pass ---------------------------------------------------------------------------------------------------

    async def _build_map(self, key_map: KeyOffsetMap) -> bool:
        """Puts the keys of the dirty part into the map. Returns True if the map got full."""
        first_dirty = self._found.first_dirty
        dirty = [each for each in self._segments if each.next_offset > first_dirty]
        transactions = CleanedTransactions(self._find_aborted(dirty))
        for segment in dirty:
            pieces = _Pieces(self._open(segment), segment, self._resources)
            while not pieces.at_end:

                def put(pieces: _Pieces = pieces) -> bool:
                    data = pieces.read()
                    consumed, is_full = put_batches(key_map, data, transactions, from_offset=first_dirty)
                    pieces.consume(consumed, is_full)
                    return is_full

                if await self._step(segment, pieces, put):
                    return True
        return False

    def _find_aborted(self, segments: Sequence[Segment]) -> list[AbortedTxn]:
        if not segments:
            return []
        first, end = segments[0].base_offset, segments[-1].next_offset
        return self._writer.txn_index.find(self._writer.segments, first, end)

    # -- second pass --------------------------------------------------------------------------------------------------

    async def _clean_group(
        self, group: list[Segment], key_map: KeyOffsetMap, transactions: CleanedTransactions[AbortedTxn]
    ) -> None:
        base, end = group[0].base_offset, group[-1].next_offset
        before = sum(each.size for each in group)
        kept_before = len(transactions.kept)
        rules = replace(self._rules, upper_bound=end)  # a segment without a batch could not be uploaded
        builder = IndexBuilder(base, self._config.index_interval_bytes)
        files, path = self._writer.files, self._writer.files.path(base, ".log")
        self._swap.remove_files(base, CLEANED)
        output = files.disk.open(path + CLEANED, create=True)
        changed = len(group) > 1
        try:
            for segment in group:
                pieces = _Pieces(self._open(segment), segment, self._resources)
                while not pieces.at_end:

                    def clean(pieces: _Pieces = pieces) -> bool:
                        nonlocal changed
                        data = pieces.read()
                        dirty: Buffer = data
                        if pieces.has_horizons and end > self._found.first_dirty:
                            batches = walk(data, check_crc=False).batches
                            dirty = forget_horizons(data, batches, self._found.first_dirty)
                        cleaned = clean_batches(key_map, dirty, transactions, self._keep_epochs(rules, pieces.epochs))
                        changed |= cleaned.data != data[: cleaned.end]
                        pieces.consume(cleaned.end, False)
                        self._records_read += cleaned.records_read
                        self._records_kept += cleaned.records_kept
                        _append(output, cleaned.data, builder)
                        return False

                    await self._step(segment, pieces, clean)
            builder.finish()
            size = output.size()
            self._bytes_before, self._bytes_after = self._bytes_before + before, self._bytes_after + size
            if not changed:
                self._swap.remove_files(base, CLEANED)
                return
            await output.sync()
            entries = encode_aborted_txns(transactions.kept[kept_before:])
            for suffix, data in ((".index", builder.offsets), (".timeindex", builder.times), (".txnindex", entries)):
                self._check(group[0])
                await self._write_beside(files.path(base, suffix) + CLEANED, bytes(data))
        except (Corrupt, LogChanged, Unavailable):
            if not self._swap.status.is_closed:
                self._swap.remove_files(base, CLEANED)
            raise
        finally:
            output.close()
        segment = Segment(
            base, end, size, max(each.created_ms for each in group), builder.max_timestamp,
            builder.max_timestamp_offset, IndexChecksums.of(builder.offsets, builder.times), len(entries),
            crc32c(entries),
        )  # fmt: skip
        if not await self._swap.replace(group, segment, self._wall_ms):
            raise LogChanged

    def _keep_epochs(self, rules: CleanRules, epochs: Sequence[tuple[int, int]]) -> CleanRules:
        """Returns the rules that also keep the first batch of a leader epoch: followers learn from it where the epoch
        begins. One that took a later offset for it could keep records that were never committed. `epochs` are those of
        the next batches, with the end of the first batch of each."""
        first = list[int]()
        for epoch, last_offset in epochs:
            if epoch != self._leader_epoch:
                first.append(last_offset)
                self._leader_epoch = epoch
        return rules.keep(first) if first else rules

    async def _write_beside(self, path: str, data: bytes) -> None:
        if not data and path.endswith(".txnindex" + CLEANED):
            return
        file = self._writer.files.disk.open(path, create=True)
        try:
            if data:
                file.append([data])
            await file.sync()
        finally:
            file.close()

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _open(self, segment: Segment) -> File:
        self._check(segment)
        return self._writer.files.log_file(segment.base_offset)

    def _check(self, segment: Segment) -> None:
        if not self._swap.has_all([segment]):
            raise LogChanged

    async def _step(self, segment: Segment, pieces: _Pieces, work: Callable[[], bool]) -> bool:
        """Runs the work on the next pieces, until it returns True. An error of a segment that is gone meanwhile is no
        error."""

        def run() -> bool:
            for _ in range(PIECES_AT_ONCE):
                if work():
                    return True
                if pieces.at_end:
                    break
            return False

        await self._resources.admit(pieces.count_bytes(PIECES_AT_ONCE))
        self._check(segment)
        try:
            return run() if pieces.is_simulated else await self._resources.run(run)
        except (Corrupt, Unavailable):
            self._check(segment)
            raise


class _Pieces:
    """The batches of one segment, read in pieces of whole batches."""

    def __init__(self, file: File, segment: Segment, resources: CleanerResources) -> None:
        self._file = file
        self._size = segment.size
        self._last_offset, self._next_offset = segment.base_offset - 1, segment.next_offset
        self._position = 0
        self.epochs: list[tuple[int, int]] = []
        """Leader epochs in the piece that was read last, and where the first batch of each ends."""
        self.has_horizons = False
        """True if a batch of that piece has a delete horizon."""
        self._read_bytes = resources.read_bytes
        self._is_done = False

    @property
    def is_simulated(self) -> bool:
        """True for a file without a descriptor: work on it stays on the loop, so that runs repeat."""
        return self._file.fileno() < 0

    @property
    def at_end(self) -> bool:
        return self._is_done or self._position >= self._size

    def count_bytes(self, pieces: int) -> int:
        """Returns the size of the next pieces, at most `pieces` of them."""
        return min(pieces * self._read_bytes, self._size - self._position)

    def read(self) -> bytes:
        """Returns the next piece: one batch at least, if the rest of the segment is one. All its whole batches have to
        be consumed."""
        length = self.count_bytes(1)
        data = self._file.pread(self._position, length)
        if len(data) >= HEADER_BYTES and (size := decode_header(data).size) > len(data) and length < self._size:
            if size > self._size - self._position or (size > LARGE_BYTES and not self._has_valid_crc(size)):
                raise Corrupt(f"batch of {size} bytes", where=self._file.name, position=self._position)
            data = self._file.pread(self._position, size)
        if not data:
            raise Corrupt("the segment is cut short", where=self._file.name, position=self._position)
        self._look_at_headers(data)
        return data

    def _has_valid_crc(self, size: int) -> bool:
        """True if the next `size` bytes are one batch with a valid CRC. Reads them in pieces."""
        found, expected = 0, decode_header(self._file.pread(self._position, HEADER_BYTES)).crc
        for at in range(CRC_FROM, size, self._read_bytes):
            found = crc32c(self._file.pread(self._position + at, min(self._read_bytes, size - at)), found)
        return found == expected

    def _look_at_headers(self, data: bytes) -> None:
        """Raises `Corrupt` for a batch out of order: no CRC covers a base offset, and it decides which record is the
        last one of its key. Stops before a batch that is cut short or invalid, as those who consume the piece do."""
        at, end, last, next_offset, seen = 0, len(data), self._last_offset, self._next_offset, NO_EPOCH
        self.epochs, self.has_horizons = [], False
        while at + HEADER_BYTES <= end:
            base, length, epoch, _, _, attributes, delta = _HEAD.unpack_from(data, at)
            size = LENGTH_FROM + length
            if size < HEADER_BYTES or at + size > end:
                break
            if not last < base <= base + delta < next_offset:
                why = f"batch of offset {base} is out of place"
                raise Corrupt(why, where=self._file.name, position=self._position + at)
            last = base + delta
            if epoch != seen:
                self.epochs.append((epoch, last))
                seen = epoch
            if attributes & DELETE_HORIZON:
                self.has_horizons = True
            at += size
        self._last_offset = last

    def consume(self, count: int, is_done: bool) -> None:
        """Notes how many bytes were taken."""
        if count == 0 and not is_done:
            raise Corrupt("batch is cut short", where=self._file.name, position=self._position)
        self._position += count
        self._is_done = is_done


def _append(output: File, data: bytes, builder: IndexBuilder) -> None:
    """Appends cleaned batches, with their index entries."""
    if not data:
        return
    position = output.size()
    if position + len(data) > RELATIVE_MAX:
        raise Corrupt(f"cleaned segment exceeds {RELATIVE_MAX} bytes", where=output.name)
    output.append([data])
    for batch in walk(data, check_crc=False).batches:
        builder.add_batch(position + batch.position, batch.size, batch.last_offset, batch.max_timestamp)


def segment_facts(segment: Segment, ended_ms: int = -1) -> CleanableSegment:
    """Returns the facts of a closed segment that the plan needs. `ended_ms` is a time after its last batch came."""
    sums = segment.index_checksums
    index_bytes = max(sums.offsets_bytes, sums.times_bytes) if sums is not None else 0
    return CleanableSegment(
        segment.base_offset, segment.next_offset, segment.size, segment.max_timestamp, segment.created_ms, index_bytes,
        ended_ms,
    )  # fmt: skip


def last_records(writer: LogWriter, settled_to: int) -> dict[int, LastRecord]:
    """Returns the last record of each producer that may still write. Records below `settled_to` are not truncated."""
    found = dict[int, LastRecord]()
    for producer in writer.producers.list_producers():
        ends = [each.last_offset for each in producer.batches]
        settled = max((each for each in ends if each < settled_to), default=-1)
        found[producer.producer_id] = LastRecord(ends[-1] if ends else -1, producer.epoch, settled)
    return found

"""Copies closed segments to the bucket: objects first, manifest second, one object at a time per partition.

The log is walked and proved batch by batch before a byte of it leaves, so a segment that rotted on disk never becomes
the only copy. Memory does not grow with the segment: the walk reads pieces, the upload streams from the file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from tiered.cold.layout import SectionKind, SegmentFacts, build_tail, segment_key
from tiered.cold.manifest import Manifest, Opened, SegmentEntry
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.planner import next_copy
from tiered.errors import Corrupt, Fenced, Unavailable
from tiered.hot.checkpoints import encode_lineage
from tiered.hot.epochs import Epochs, Lineage
from tiered.ids import PartitionId
from tiered.metrics import Metrics
from tiered.ports import Clock, FileSlice, NotFound, ObjectStore, Ok, Rng
from tiered.records.model import Walked
from tiered.records.native import crc32c, walk

log = logging.getLogger(__name__)

TOGETHER_BYTES = 512 << 20
"""What one change of the manifest may name: where segments close faster than the bucket takes manifests, requests are
saved, and no more than this is ever in the bucket without a name."""
PIECE_BYTES = 512 << 10
"""Proved in one turn of the loop: less than 10 ms even of the smallest batches."""


class LogSections(Protocol):
    """The small files beside a local segment, as bytes; positions and offsets relative to the place asked for."""

    @property
    def offset_index(self) -> bytes: ...
    @property
    def time_index(self) -> bytes: ...
    @property
    def txn_index(self) -> bytes: ...
    @property
    def producer_snapshot(self) -> bytes | None: ...


class ClosedSegment(Protocol):
    """A local segment that takes no more records."""

    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def log(self) -> FileSlice: ...


class TieredLog(Protocol):
    """What the uploader needs of a local log."""

    @property
    def epochs(self) -> Epochs:
        """Who wrote what, from the log start on."""

    def closed_segments(self) -> Sequence[ClosedSegment]:
        """Oldest first."""

    def sections(self, base_offset: int, *, from_offset: int | None = None) -> LogSections:
        """Of the segment `base_offset`; with `from_offset`, as if the segment began there: offsets relative to it,
        positions relative to the first batch that reaches it."""


class Uploader:
    """Uploads for all partitions of one broker. One call at a time per partition."""

    def __init__(self, store: ObjectStore, manifests: ManifestStore, clock: Clock, rng: Rng, metrics: Metrics) -> None:
        self._store = store
        self._manifests = manifests
        self._clock = clock
        self._random = rng.stream("uploader")
        self._busy: dict[PartitionId, set[str]] = {}
        self._bytes = metrics.counter("tiered_upload_bytes_total", "Bytes of cold segments put into the bucket")
        self._segments = metrics.counter("tiered_upload_segments_total", "Segments uploaded, by outcome", ("outcome",))

    def busy(self, pid: PartitionId) -> frozenset[str]:
        """Objects being uploaded, or whose manifest change is undecided: no garbage, although nothing names them."""
        return frozenset(self._busy.get(pid, ()))

    def forget(self, pid: PartitionId) -> None:
        """The partition is led elsewhere: what was undecided is for the next leader to judge."""
        self._busy.pop(pid, None)

    async def upload_next(
        self, source: TieredLog, manifest: Manifest, epoch: int, stable_offset: int
    ) -> Manifest | None:
        """Makes the oldest closed segments above the cold end and below `stable_offset` cold, as many as are closed by
        then and one change of the manifest may name; None when there is none.

        `manifest` must have been taken over under `epoch`. Fenced: step down. Unavailable: the object may be there and
        even named; call again. Corrupt: the local copy does not prove itself. Segments before the one that failed
        are cold then all the same, and the next call tells of it.
        """
        if manifest.leader_epoch != epoch:
            raise Fenced(f"{manifest.pid}: the manifest is under epoch {manifest.leader_epoch}, not {epoch}")
        given = manifest
        if self.busy(manifest.pid):
            manifest = await self._settled(manifest, epoch)
        entries: list[SegmentEntry] = []
        planned = manifest
        while sum(entry.object_bytes for entry in entries) < TOGETHER_BYTES:
            try:
                entry = await self._next_object(source, planned, epoch, stable_offset)
            except (Unavailable, Corrupt):
                if not entries:
                    raise
                break
            if entry is None:
                break
            entries.append(entry)
            planned = planned.add(entry)
        if entries:
            return await self._name(manifest, epoch, entries)
        return manifest if manifest != given else None

    async def _next_object(
        self, source: TieredLog, manifest: Manifest, epoch: int, stable_offset: int
    ) -> SegmentEntry | None:
        """The object of the segment that follows this manifest, proved and put; None when there is none."""
        closed = source.closed_segments()
        plan = next_copy(closed, manifest, stable_offset)
        if plan is None:
            return None
        segment = next(s for s in closed if s.base_offset == plan.base_offset)
        cut, facts, wrote = await prove(segment, plan.from_offset, may_begin_before=not manifest.nodes)
        log_part = FileSlice(segment.log.file, segment.log.start + cut, facts.log_bytes)
        rebase = facts.base_offset != segment.base_offset
        sections = source.sections(segment.base_offset, from_offset=facts.base_offset if rebase else None)
        lineage = tuple(row for row in source.epochs.lineage if row[1] < facts.next_offset)
        tail, refs = build_tail(manifest.pid, epoch, facts, _section_bytes(sections, lineage))
        key = segment_key(manifest.pid, facts.base_offset, epoch, f"{self._random.getrandbits(128):032x}")
        entry = SegmentEntry(
            key=key,
            base_offset=facts.base_offset,
            next_offset=facts.next_offset,
            leader_epoch=epoch,
            lineage=wrote,
            base_timestamp=facts.base_timestamp,
            max_timestamp=facts.max_timestamp,
            record_count=facts.record_count,
            log_bytes=facts.log_bytes,
            log_crc=facts.crc,
            object_bytes=facts.log_bytes + len(tail),
            sections=refs,
            uploaded_ms=self._clock.wall_ms(),
        )
        await self._copy(manifest, epoch, entry, log_part, tail)
        return entry

    async def _settled(self, manifest: Manifest, epoch: int) -> Manifest:
        """The manifest once an earlier change, whose outcome nobody learnt, is decided. Nothing is sent before: while
        manifests cannot be written, the bucket would fill with copies of one segment."""
        written = await self._manifests.take_over(manifest.pid, manifest.topic, epoch)
        self._busy.pop(manifest.pid, None)
        return written

    async def _copy(
        self, manifest: Manifest, epoch: int, entry: SegmentEntry, log_part: FileSlice, tail: bytes
    ) -> None:
        pid, key = manifest.pid, entry.key
        self._busy.setdefault(pid, set()).add(key)
        try:
            await self._put(key, log_part, tail, entry.object_bytes)
        except BaseException:
            self._busy.get(pid, set()).discard(key)  # never offered to a manifest: an orphan, whenever it lands
            self._segments.inc(1, "failed")
            raise

    async def _put(self, key: str, log_part: FileSlice, tail: bytes, object_bytes: int) -> None:
        """The object is in the bucket, whole: its size and its last bytes are read back."""
        result = await self._store.upload(key, [log_part, tail])
        if not isinstance(result, Ok):
            raise Unavailable(f"upload of {key} did not succeed: {result!r}")
        got = await self._store.get(key, log_part.length, len(tail))
        if isinstance(got, NotFound) or got.size != object_bytes or got.data != tail:
            raise Unavailable(f"{key} does not read back as it was uploaded")
        self._bytes.inc(object_bytes)

    async def _name(self, manifest: Manifest, epoch: int, entries: Sequence[SegmentEntry]) -> Manifest:
        """The manifest names the objects. While that is undecided, their keys stay busy."""
        pid = manifest.pid

        def add(current: Manifest, _: Opened) -> Manifest:
            # Moved by an earlier, then undecided change of this very leader: that one's objects are named, or these.
            if current.cold_end_offset != manifest.cold_end_offset:
                return current
            for entry in entries:
                current = current.add(entry)
            return current

        try:
            written = await self._manifests.change(pid, manifest.topic, epoch, add)
        except Fenced:
            self.forget(pid)
            self._segments.inc(len(entries), "fenced")
            raise
        self._busy.pop(pid, None)
        named = {node.key for node in written.nodes}
        for entry in entries:
            self._segments.inc(1, "copied" if entry.key in named else "failed")
            if entry.key in named:
                log.info(
                    "segment is cold pid=%s base=%d next=%d bytes=%d key=%s",
                    pid, entry.base_offset, entry.next_offset, entry.object_bytes, entry.key,
                )  # fmt: skip
        return written


def _section_bytes(sections: LogSections, lineage: Lineage) -> dict[SectionKind, bytes]:
    return {
        SectionKind.OFFSET_INDEX: sections.offset_index,
        SectionKind.TIME_INDEX: sections.time_index,
        SectionKind.TXN_INDEX: sections.txn_index,
        SectionKind.PRODUCERS: sections.producer_snapshot or b"",
        SectionKind.LINEAGE: encode_lineage(lineage),
    }


async def prove(
    segment: ClosedSegment, from_offset: int, *, may_begin_before: bool
) -> tuple[int, SegmentFacts, Lineage]:
    """Walks a local segment, checks every batch and the order of offsets, and tells of the part from the batch that
    holds `from_offset` at which byte of the segment it begins, what it is, and who wrote it. (The log's own lineage
    begins at the log start, which may be inside that batch.)

    Corrupt when a batch does not prove itself, or when `from_offset` lies inside a batch and `may_begin_before` is
    false: the earlier part of that batch is cold already.
    """
    walked = _Walk(segment, from_offset)
    position = 0
    while position < segment.log.length:
        position += walked.piece(position)
        await asyncio.sleep(0)
    return walked.finish(may_begin_before)


class _Walk:
    """The running state of `prove`: what the batches so far add up to."""

    def __init__(self, segment: ClosedSegment, from_offset: int) -> None:
        self._log = segment.log
        self._next_offset = segment.next_offset
        self._where = segment.log.file.name
        self._from_offset = from_offset
        self._first: Walked | None = None
        self._cut = 0
        self._last_offset = segment.base_offset - 1
        self._max_timestamp = -1
        self._records = 0
        self._lineage: list[tuple[int, int]] = []
        self._crc = 0

    def piece(self, position: int) -> int:
        """Proves the whole batches of one piece at `position`; how many bytes they are."""
        length = min(PIECE_BYTES, self._log.length - position)
        data = self._log.file.pread(self._log.start + position, length)
        found = walk(data)
        if found.why == "short" and not found.batches:
            length = self._size_at(data, position)
            data = self._log.file.pread(self._log.start + position, length)
            found = walk(data)
        if found.why not in ("", "short") or not found.batches:
            raise Corrupt(found.why or "log ends early", where=self._where, position=position + found.end)
        skipped = self._skip(found.batches)
        self._add(found.batches[skipped:], position)
        begin = found.batches[skipped].at if skipped < len(found.batches) else found.end
        self._crc = crc32c(memoryview(data)[begin : found.end], self._crc)
        return found.end

    def _size_at(self, data: bytes, position: int) -> int:
        """Bytes of the batch at the start of `data`, which is larger than a piece."""
        size = 12 + int.from_bytes(data[8:12], "big") if len(data) >= 12 else 0
        if not len(data) < size <= self._log.length - position:
            raise Corrupt("log ends inside a batch", where=self._where, position=position)
        return size

    def _skip(self, batches: Sequence[Walked]) -> int:
        """How many of these batches end below the offset to begin at."""
        if self._first is not None:
            return 0
        return sum(1 for batch in batches if batch.last_offset < self._from_offset)

    def _add(self, batches: Sequence[Walked], position: int) -> None:
        if not batches:
            return
        if self._first is None:
            self._first, self._cut = batches[0], position + batches[0].at
        for batch in batches:
            if batch.base_offset <= self._last_offset:
                raise Corrupt("offsets do not increase", where=self._where, position=position + batch.at)
            if not self._lineage or self._lineage[-1][0] != batch.leader_epoch:
                self._lineage.append((batch.leader_epoch, batch.base_offset))
            self._last_offset = batch.last_offset
            self._records += batch.count
        self._max_timestamp = max(self._max_timestamp, max(batch.max_timestamp for batch in batches))

    def finish(self, may_begin_before: bool) -> tuple[int, SegmentFacts, Lineage]:
        """The cut, the facts and the lineage, once all pieces are walked."""
        first = self._first
        if first is None or self._last_offset >= self._next_offset:
            raise Corrupt("segment does not hold the offsets that it should", where=self._where)
        if first.base_offset < self._from_offset and not may_begin_before:
            raise Corrupt(f"offset {self._from_offset} is inside a batch", where=self._where, position=self._cut)
        base_offset = min(first.base_offset, self._from_offset)
        facts = SegmentFacts(
            base_offset=base_offset,
            next_offset=self._next_offset,
            base_timestamp=first.base_timestamp,
            max_timestamp=self._max_timestamp,
            record_count=self._records,
            log_bytes=self._log.length - self._cut,
            crc=self._crc,
        )
        return self._cut, facts, ((first.leader_epoch, base_offset), *self._lineage[1:])

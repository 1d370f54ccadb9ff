"""One partition's log on a Disk: appends, reads, rolls, cuts, and one fsync for many callers.

The rules are in the pure files beside it; this one performs them in the order that a crash may interrupt anywhere:
bytes before index entries, a cut's index before its log and its log before snapshots, and nothing is counted as flushed
that a later cut took back. Not for threads: all calls come from the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tiered.config import TopicConfig
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.hot import checkpoints
from tiered.hot.admission import admit, restamp
from tiered.hot.epochs import Epochs, Lineage
from tiered.hot.index import IndexBuilder, position_for, rebased
from tiered.hot.opening import Opened, Opening
from tiered.hot.producers import ProducerStates, decode_aborted
from tiered.hot.recovery import EVERYTHING, gaps, sort_names
from tiered.hot.replay import load_producers
from tiered.hot.segment_files import OpenFiles, SegmentFiles
from tiered.hot.segment_index import SegmentIndex
from tiered.hot.segments import Proof, Segment, holder, line, lines, must_roll, roll_due
from tiered.metrics import Metrics
from tiered.ports import Clock, Disk, FileSlice
from tiered.records.model import CONTROL, Walked
from tiered.records.native import walk

log = logging.getLogger(__name__)

INDEX_WRITE_BYTES = 4 << 20
"""Bytes of log whose index entries may be in memory only: what a start after a kill checks at most."""
SNAPSHOT_BYTES = 48 << 20
"""Bytes of log after which producers are snapshotted again: with one largest request on top it stays below 64 MiB."""
HINTS_MAX = 64
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_FLUSH_BUCKETS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Appended(NamedTuple):
    """Where a request's records stand. `append_time_ms` is -1 where the producer's timestamps count."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A closed segment: offsets `[base_offset, next_offset)`, `size` bytes. Times in ms."""

    base_offset: int
    next_offset: int
    size: int
    max_timestamp: int
    created_ms: int
    files: SegmentFiles

    @property
    def log(self) -> FileSlice:
        """The log's bytes; opens the file."""
        return FileSlice(self.files.log(self.base_offset), 0, self.size)


class Sections(NamedTuple):
    """What goes up with a segment's log: indexes, producers as of its end, the epochs that wrote it. Index entries are
    relative to `base_offset` and to the first byte of `log`."""

    base_offset: int
    next_offset: int
    log: FileSlice
    offset_index: bytes
    time_index: bytes
    txn_index: bytes
    producer_snapshot: bytes
    lineage: Lineage


class DiskLog:
    """The log of one partition. Offsets: `start_offset <= local_start_offset <= flushed_offset <= end_offset`."""

    def __init__(
        self,
        files: SegmentFiles,
        clock: Clock,
        config: TopicConfig,
        opened: Opened,
        *,
        start_offset: int,
        flushed_offset: int,
        metrics: Metrics,
        topic_id: str,
        name: str,
    ) -> None:
        self.config = config
        self.name = name
        self.topic_id = topic_id
        self.epochs: Epochs = opened.epochs
        self.producers: ProducerStates = opened.producers
        self.start_offset = start_offset
        self.end_offset = opened.segments[-1].next_offset
        self.flushed_offset = min(flushed_offset, self.end_offset)
        self.cut_bytes = opened.cut_bytes
        """Bytes that recovery cut from the tail."""
        self._files = files
        self._clock = clock
        self._segments = opened.segments
        self._index = SegmentIndex(files, metrics)
        self._set_active(opened.builder)
        self._snapshot_due = self._snapshot_next(opened.snapshot_at)
        self._hints: dict[int, tuple[Segment, int]] = {}
        """Where the batch that begins with an offset stands: the next read of a reader that goes on."""
        self._deleted: list[tuple[int, str]] = []
        """(renamed at, path) of dropped files, in order."""
        self._broken = ""
        self._noted_to = -1
        self._syncing: asyncio.Future[None] | None = None
        self._ceiling = self.end_offset
        self._dir_dirty = True
        self._above_dirty = True
        self._dirty = {checkpoints.EPOCHS_FILE}
        """Small files that may have been replaced since they were synced."""
        self._flush_seconds = metrics.histogram("tiered_log_flush_seconds", "Time of one group fsync.", _FLUSH_BUCKETS)
        self._rolls = metrics.counter("tiered_log_rolls_total", "Segments closed.")

    # -- life ---------------------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        disk: Disk,
        clock: Clock,
        directory: str,
        config: TopicConfig,
        *,
        same_boot: bool,
        clean: bool,
        recovery_point: int = 0,
        start_offset: int = 0,
        metrics: Metrics,
        topic_id: str,
        name: str,
        files: OpenFiles | None = None,
    ) -> DiskLog:
        """Opens or creates a partition's directory, recovered. `files` bounds the open files of many logs together.

        Unless the log is whole (`same_boot` or `clean`), what was found above `recovery_point` is fsynced before it is
        served: it must not vanish in a second power cut. A whole log moves no fsync point; its tail is the caller's to
        flush. Refused when the directory belongs to another topic id.
        """
        own = SegmentFiles(disk, directory, files if files is not None else OpenFiles(disk))
        whole = same_boot or clean
        trusted_to = EVERYTHING if whole else recovery_point
        opened = Opening(own, config, clock.wall_ms(), trusted_to).run(start_offset)
        metrics.counter("tiered_log_recovered_cut_bytes_total", "Torn bytes cut at start.").inc(opened.cut_bytes)
        self = cls(
            own,
            clock,
            config,
            opened,
            start_offset=max(start_offset, 0),
            flushed_offset=recovery_point if not clean else opened.segments[-1].next_offset,
            metrics=metrics,
            topic_id=topic_id,
            name=name,
        )
        self._claim()
        if not whole:
            await self.flush()
        return self

    def close(self) -> None:
        """Lets go of the files; writes what the next start would else have to check, syncs nothing."""
        if not self._broken:
            self._write_indexes()
        for segment in self._segments:
            for suffix in SUFFIXES:
                self._files.forget(self._files.path(segment.base_offset, suffix))

    async def close_clean(self) -> None:
        """All durable, producers snapshotted at the end: the next start has nothing to check."""
        self._builder.finish()
        self._snapshot()
        await self.flush()
        self.close()

    def _claim(self) -> None:
        path = f"{self._files.directory}/{checkpoints.METADATA_FILE}"
        try:
            owner = checkpoints.parse_metadata(self._files.read(path) or b"", where=path)
        except Corrupt:
            self._dirty.add(checkpoints.METADATA_FILE)
            self._files.replace(path, checkpoints.encode_metadata(self.topic_id))
        else:
            if owner != self.topic_id:
                raise Refused(Code.INCONSISTENT_CLUSTER_ID, f"{path} is of topic id {owner}, not {self.topic_id}")

    def _set_active(self, builder: IndexBuilder) -> None:
        self._active = self._segments[-1]
        self._builder = builder
        base = self._active.base_offset
        self._index.set_active(base, builder)
        self._offsets_written, self._times_written = (
            self._files.open(self._files.path(base, suffix), create=True).size() for suffix in (".index", ".timeindex")
        )
        self._index_due = self._active.size + INDEX_WRITE_BYTES

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def local_start_offset(self) -> int:
        """The first offset that this directory can serve."""
        return max(self.start_offset, self._segments[0].base_offset)

    @property
    def first_unstable_offset(self) -> int:
        """The first offset of an undecided transaction, else the end."""
        unstable = self.producers.first_unstable_offset
        return self.end_offset if unstable is None else unstable

    @property
    def size_bytes(self) -> int:
        """Bytes of all log files."""
        return sum(segment.size for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def active_created_ms(self) -> int:
        """When the active segment got its first batch; of no meaning while it is empty."""
        return self._active.created_ms

    @property
    def active_view(self) -> SegmentView:
        return self._view(self._active)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Damage: offset ranges `[start, end)` that are missing between segments. Reading there is `Corrupt`."""
        return gaps(self._segments)

    def closed_segments(self) -> list[SegmentView]:
        """Oldest first, without the active one."""
        return [self._view(segment) for segment in self._segments[:-1]]

    def _view(self, segment: Segment) -> SegmentView:
        return SegmentView(
            segment.base_offset,
            segment.next_offset,
            segment.size,
            segment.max_timestamp,
            segment.created_ms,
            self._files,
        )

    def sections(self, base_offset: int, *, from_offset: int | None = None) -> Sections:
        """What goes up with the closed segment at `base_offset`; from the batch that holds `from_offset` on where an
        earlier upload ended inside it."""
        segment = self._holder(base_offset)
        offsets, times = (bytes(index) for index in self._index.indexes(segment))
        first, position = segment.base_offset, 0
        if from_offset is not None and from_offset > segment.base_offset:
            position = self._index.position(segment, from_offset)
            first = next(self._files.spots(segment.base_offset, position, segment.size)).base_offset
            offsets, times = rebased(offsets, times, first - segment.base_offset, position)
        end = segment.next_offset
        snapshot = self._files.read(self._files.path(end, ".snapshot"))
        if snapshot is None:
            snapshot = load_producers(self._files, self._segments, self._snapshots(), end)[0].snapshot()
        aborted = decode_aborted(self._files.read(self._files.path(segment.base_offset, ".txnindex")) or b"")
        return Sections(
            first,
            end,
            FileSlice(self._files.log(segment.base_offset), position, segment.size - position),
            offsets,
            times,
            b"".join(one.encode() for one in aborted if one.last_offset >= first),
            snapshot,
            self.epochs.within(first, end),
        )

    # -- append -------------------------------------------------------------------------------------------------------

    def append(self, data: bytearray | memoryview, *, leader_epoch: int, now_ms: int, deep: bool = False) -> Appended:
        """Produced batches, stamped in place and written whole or not at all; batches that stand in the log already
        (an idempotent producer's retry) are answered with the offsets they have. `deep` opens every record.

        Refused with the code that the producer shall see; KAFKA_STORAGE_ERROR on a full or failing disk.
        """
        config = self.config
        base = self.end_offset
        batches = admit(data, base, leader_epoch, config, now_ms, deep)
        append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else -1
        if batches[0].producer_id >= 0 or len(batches) > 1:
            known = self.producers.known(batches)
            if known:
                if len(known) == len(batches):
                    stamp = known[-1].timestamp if append_time >= 0 else -1
                    return Appended(known[0].base_offset, known[-1].last_offset, stamp, True)
                data = memoryview(data)[batches[len(known)].at :]
                batches = restamp(data, base, leader_epoch)
                base = known[0].base_offset
        self._write(data, batches, now_ms)
        return Appended(base, self.end_offset - 1, append_time, False)

    def append_as_follower(self, data: bytearray | memoryview | bytes, *, now_ms: int) -> None:
        """Batches that have their offsets and epochs already, from a leader or the bucket; CRCs are checked.

        `Refused(CORRUPT_MESSAGE)` when they do not prove themselves or do not begin at the end of the log.
        """
        walked = walk(data)
        if walked.why or not walked.batches:
            raise Refused(Code.CORRUPT_MESSAGE, f"batch at byte {walked.end}: {walked.why or 'none'}")
        offset = self.end_offset
        for batch in walked.batches:
            if batch.base_offset != offset:
                raise Refused(Code.CORRUPT_MESSAGE, f"batch at offset {batch.base_offset} does not follow {offset - 1}")
            offset = batch.last_offset + 1
        self._write(data, walked.batches, now_ms)

    def _write(self, data: bytearray | memoryview | bytes, batches: Sequence[Walked], now_ms: int) -> None:
        if self._broken:
            raise Refused(Code.KAFKA_STORAGE_ERROR, self._broken)
        if len(data) > self.config.segment_bytes:
            raise Refused(
                Code.RECORD_LIST_TOO_LARGE, f"{len(data)} bytes, segment.bytes is {self.config.segment_bytes}"
            )
        try:
            self._prepare(len(data), batches[-1], now_ms)
            for batch in batches:
                if batch.leader_epoch > self.epochs.latest:
                    self._assign(batch.leader_epoch, batch.base_offset)
            active = self._active
            position = active.size
            active.size = self._files.log(active.base_offset).append((data,))
        except Unavailable as error:
            raise self._storage_error(error) from None
        builder, producers = self._builder, self.producers
        for batch in batches:
            builder.note(position, batch.size, batch.last_offset, batch.max_timestamp)
            position += batch.size
            if batch.producer_id >= 0:
                self._note_producer(producers, batch, data)
        end = batch.last_offset + 1
        producers.end_offset = active.next_offset = self.end_offset = end
        active.max_timestamp, active.max_timestamp_offset = builder.max_timestamp, builder.max_timestamp_offset
        if position >= self._index_due or position >= self._snapshot_due:
            self._catch_up()

    def _prepare(self, more: int, last: Walked, now_ms: int) -> None:
        """A segment that has room, and is noted from its first batch on."""
        active, config = self._active, self.config
        if must_roll(active, more, last.last_offset, config) or self._builder.is_full(config.segment_index_bytes):
            self._roll()
            active = self._active
        if active.size == 0:
            active.created_ms = now_ms
            self._note(active)

    def _note_producer(self, producers: ProducerStates, batch: Walked, data: bytearray | memoryview | bytes) -> None:
        if not batch.attributes & CONTROL:
            producers.apply(batch)
            return
        aborted = producers.end_transaction(batch, memoryview(data)[batch.at : batch.at + batch.size])
        if aborted is not None:
            self._files.open(self._files.path(self._active.base_offset, ".txnindex"), create=True).append(
                [aborted.encode()]
            )

    def _catch_up(self) -> None:
        """Index entries and producers as far as the log: spares the next start work; a full disk may delay it."""
        try:
            if self._active.size >= self._snapshot_due:
                self._snapshot()
            self._write_indexes()
        except Unavailable as error:
            self._storage_error(error)

    def _assign(self, epoch: int, start: int) -> None:
        before = self.epochs.lineage
        if self.epochs.assign(epoch, start):
            try:
                self._save_epochs()
            except Unavailable:
                self.epochs = Epochs(before)
                raise

    def assign_epoch(self, epoch: int, start: int) -> None:
        """A leader's epoch begins at `start`, also when it never writes."""
        try:
            self._assign(epoch, start)
        except Unavailable as error:
            raise self._storage_error(error) from None

    def _storage_error(self, error: Unavailable) -> Refused:
        if error.final:
            self._broken = str(error)
        log.error("disk refused a write partition=%s error=%s final=%s", self.name, error, error.final)
        return Refused(Code.KAFKA_STORAGE_ERROR, str(error))

    # -- read ---------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, end_offset: int) -> FileSlice | None:
        """Whole batches from the one that holds `offset`, all below `end_offset`, of at most `max_bytes` but at least
        one; within one segment. None where nothing is (yet). Refused outside of what this directory holds."""
        limit = min(end_offset, self.end_offset)
        if offset < self.local_start_offset or offset > self.end_offset:
            raise Refused(
                Code.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside of {self.local_start_offset}..{self.end_offset}",
            )
        if offset >= limit:
            return None
        hint = self._hints.pop(offset, None)
        if hint is not None and offset < hint[0].next_offset:
            segment, position = hint
        else:
            segment = self._holder(offset)
            position = self._index.position(segment, offset)
        end, next_offset = segment.size, segment.next_offset
        if limit < next_offset:
            end, next_offset = self._index.position(segment, limit), limit
        if end - position > max_bytes:
            end, next_offset = self._index.edge(segment, position, min(end, position + max(max_bytes, 0)))
        if end <= position or next_offset > limit:
            return None
        if len(self._hints) >= HINTS_MAX:
            self._hints.clear()
        self._hints[next_offset] = (segment, end)
        return FileSlice(self._files.log(segment.base_offset), position, end - position)

    def _holder(self, offset: int) -> Segment:
        segment = self._segments[holder(self._segments, offset)]
        if offset >= segment.next_offset:
            raise Corrupt(f"offset {offset} is missing", where=self._files.path(segment.base_offset, ".log"))
        return segment

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record that is not earlier than `timestamp` (ms)."""
        for segment in self._segments:
            if segment.max_timestamp >= timestamp and segment.next_offset > self.start_offset:
                found = self._index.first_since(segment, timestamp, self.start_offset)
                if found is not None:
                    return *found, self.epochs.epoch_at(found[0])
        return None

    def max_timestamp(self) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record with the greatest timestamp."""
        newest = max((segment.max_timestamp for segment in self._segments), default=-1)
        return self.offset_for_timestamp(newest) if newest >= 0 else None

    # -- roll ---------------------------------------------------------------------------------------------------------

    def roll_due(self, now_ms: int, *, max_age_ms: int | None = None) -> bool:
        """Whether the active segment is to be closed for its age alone."""
        return roll_due(self._active, self.config, now_ms, self.name, max_age_ms)

    def roll(self) -> None:
        """Closes the active segment and begins the next one; nothing when it is empty."""
        if self._active.size == 0:
            return
        if self._broken:
            raise Refused(Code.KAFKA_STORAGE_ERROR, self._broken)
        try:
            self._roll()
        except Unavailable as error:
            raise self._storage_error(error) from None

    def _roll(self) -> None:
        """Each step may fail or be the last before a crash, and may be done again."""
        old, end = self._active, self.end_offset
        self._builder.finish()
        self._write_indexes()
        old.proof = Proof.of(self._builder.offsets, self._builder.times)
        self._note(old)
        self._snapshot()
        for suffix in SUFFIXES[:3]:
            self._files.open(self._files.path(end, suffix), create=True).truncate(0)
        self._dir_dirty = True
        self._segments.append(Segment(end, end, 0, self._clock.wall_ms()))
        self._set_active(IndexBuilder(end, self.config.index_interval_bytes))
        self._snapshot_due = SNAPSHOT_BYTES
        self._rolls.inc()

    def _write_indexes(self) -> None:
        """Times before offsets: an offset entry that is there vouches for its time entry."""
        base, builder = self._active.base_offset, self._builder
        if len(builder.times) > self._times_written:
            file = self._files.open(self._files.path(base, ".timeindex"), create=True)
            self._times_written = file.append([memoryview(bytes(builder.times[self._times_written :]))])
        if len(builder.offsets) > self._offsets_written:
            file = self._files.open(self._files.path(base, ".index"), create=True)
            self._offsets_written = file.append([bytes(builder.offsets[self._offsets_written :])])
        self._index_due = self._active.size + INDEX_WRITE_BYTES

    def _note(self, segment: Segment) -> None:
        path = f"{self._files.directory}/{checkpoints.SEGMENTS_FILE}"
        self._files.open(path, create=True).append([line(segment)])

    def _snapshot(self) -> None:
        """Producers as of the end; the one before it goes unless it stands at a segment's beginning."""
        end = self.end_offset
        self._files.replace(self._files.path(end, ".snapshot"), self.producers.snapshot())
        self._dir_dirty = True
        bases = {segment.base_offset for segment in self._segments}
        for offset in self._snapshots():
            if offset < end and offset not in bases:
                self._files.disk.remove(self._files.path(offset, ".snapshot"))
        self._snapshot_due = self._active.size + SNAPSHOT_BYTES

    def _snapshots(self) -> tuple[int, ...]:
        return sort_names(self._files.disk.list(self._files.directory)).snapshots

    def _snapshot_next(self, snapshot_at: int) -> int:
        """Log size of the active segment at which producers are snapshotted again."""
        if snapshot_at <= self._active.base_offset:
            return SNAPSHOT_BYTES
        return position_for(self._builder.offsets, snapshot_at - self._active.base_offset)[1] + SNAPSHOT_BYTES

    def _save_epochs(self) -> None:
        self._dirty.add(checkpoints.EPOCHS_FILE)
        self._dir_dirty = True
        self._files.replace(
            f"{self._files.directory}/{checkpoints.EPOCHS_FILE}", checkpoints.encode_lineage(self.epochs.lineage)
        )

    # -- cut ----------------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Cuts the batch that holds `offset` and all after it; the end is then where that batch began."""
        if offset >= self.end_offset:
            return
        if offset <= self._segments[0].base_offset:
            self.restart_at(offset, self.epochs.within(0, offset), None)
            return
        self._guard(self._truncate, offset)

    def _truncate(self, offset: int) -> None:
        self._hints.clear()
        keep = self._holder(offset)
        while self._segments[-1] is not keep:
            self._remove(self._segments.pop())
        position, next_offset = self._index.position(keep, offset), keep.base_offset
        builder = IndexBuilder(keep.base_offset, self.config.index_interval_bytes)
        for spot in self._files.spots(keep.base_offset, 0, position):
            builder.note(spot.position, spot.size, spot.last_offset, spot.max_timestamp)
            next_offset = spot.last_offset + 1
        self._index.forget(keep.base_offset)
        for suffix, data in ((".index", builder.offsets), (".timeindex", builder.times)):
            self._files.replace(self._files.path(keep.base_offset, suffix), bytes(data))
        self._cut_aborted(keep.base_offset, next_offset)
        self._files.log(keep.base_offset).truncate(position)
        keep.size, keep.next_offset, keep.proof = position, next_offset, None
        keep.max_timestamp, keep.max_timestamp_offset = builder.max_timestamp, builder.max_timestamp_offset
        self._ends_at(next_offset)
        self._set_active(builder)
        snapshots = self._snapshots()
        for above in snapshots:
            if above > next_offset:
                self._files.disk.remove(self._files.path(above, ".snapshot"))
        self.producers, used = load_producers(self._files, self._segments, snapshots, next_offset)
        self._snapshot_due = self._snapshot_next(used)
        if self.epochs.truncate_from(next_offset):
            self._save_epochs()
        self._renote()

    def restart_at(self, offset: int, epochs: Lineage, producer_snapshot: bytes | None) -> None:
        """Forgets all that is local and begins empty at `offset`, with the history that others kept of what lies
        below it (the bucket, or a leader)."""
        self._guard(self._restart, offset, epochs, producer_snapshot)

    def _restart(self, offset: int, epochs: Lineage, producer_snapshot: bytes | None) -> None:
        producers = ProducerStates(offset)
        if producer_snapshot:
            producers = ProducerStates.from_snapshot(producer_snapshot, offset, where=self.name)
        self._hints.clear()
        for segment in reversed(self._segments):
            self._remove(segment)
        for left in self._snapshots():
            self._files.disk.remove(self._files.path(left, ".snapshot"))
        self._segments.clear()
        self._segments.append(Segment(offset, offset, 0, self._clock.wall_ms()))
        self._files.open(self._files.path(offset, ".log"), create=True)
        self._ends_at(offset)
        self._set_active(IndexBuilder(offset, self.config.index_interval_bytes))
        self.producers = producers
        self._snapshot()
        self._snapshot_due = SNAPSHOT_BYTES
        self.epochs = Epochs(entry for entry in epochs if entry[1] < offset)
        self._save_epochs()
        self._renote()

    def _ends_at(self, offset: int) -> None:
        self.end_offset = offset
        self.flushed_offset = min(self.flushed_offset, offset)
        self._noted_to = min(self._noted_to, offset)
        self._ceiling = min(self._ceiling, offset)
        self._dir_dirty = True

    def _guard(self, cut: Callable[..., None], *arguments: object) -> None:
        """A cut that fails half way leaves a directory that only a new start can judge."""
        if self._broken:
            raise Refused(Code.KAFKA_STORAGE_ERROR, self._broken)
        try:
            cut(*arguments)
        except Unavailable as error:
            self._broken = f"a cut of the log failed: {error}"
            raise Refused(Code.KAFKA_STORAGE_ERROR, self._broken) from None

    def _remove(self, segment: Segment) -> None:
        base = segment.base_offset
        self._index.forget(base)
        for suffix in (".index", ".timeindex", ".txnindex", ".log", ".snapshot"):
            path = self._files.path(base, suffix)
            self._files.forget(path)
            self._files.disk.remove(path)

    def _cut_aborted(self, base_offset: int, end: int) -> None:
        path = self._files.path(base_offset, ".txnindex")
        held = self._files.read(path)
        if held is not None:
            kept = [one.encode() for one in decode_aborted(held) if one.last_offset < end]
            self._files.replace(path, b"".join(kept))

    def _renote(self) -> None:
        path = f"{self._files.directory}/{checkpoints.SEGMENTS_FILE}"
        self._files.replace(path, lines(self._segments))

    # -- start and retention ------------------------------------------------------------------------------------------

    def advance_start(self, offset: int) -> None:
        """Records below `offset` are gone for every reader. Files stay until `drop_local_below`."""
        self.start_offset = max(self.start_offset, min(offset, self.end_offset))

    def drop_local_below(self, offset: int) -> int:
        """Takes closed segments that end at or below `offset` out of the log; returns how many. Their files are
        renamed, and deleted by `sweep` after file.delete.delay.ms: a reader in their middle may finish."""
        dropped = 0
        now_ms = self._clock.wall_ms()
        while len(self._segments) > 1 and self._segments[0].next_offset <= offset:
            segment = self._segments.pop(0)
            self._index.forget(segment.base_offset)
            for suffix in SUFFIXES:
                path = self._files.path(segment.base_offset, suffix)
                if self._files.disk.exists(path):
                    self._files.forget(path)
                    self._files.disk.rename(path, path + ".deleted")
                    self._deleted.append((now_ms, path + ".deleted"))
            dropped += 1
        if dropped:
            self._hints.clear()
            self._renote()
        return dropped

    def sweep(self, now_ms: int) -> int:
        """Deletes dropped files whose delay is over; returns how many."""
        count = 0
        while self._deleted and now_ms - self._deleted[0][0] >= self.config.file_delete_delay_ms:
            self._files.disk.remove(self._deleted.pop(0)[1])
            count += 1
        return count

    # -- flush --------------------------------------------------------------------------------------------------------

    async def flush(self, up_to: int | None = None) -> int:
        """Makes the log durable below `up_to`, or all of it with its indexes; returns the flushed offset. Callers that
        come while a sync runs share the next one. `Unavailable(final=True)` when a sync failed: never tried again."""
        whole = up_to is None
        while True:
            target = self.end_offset if up_to is None else min(up_to, self.end_offset)
            if self._broken:
                raise Unavailable(self._broken, final=True)
            if (self._noted_to if whole else self.flushed_offset) >= target:
                return self.flushed_offset
            if self._syncing is not None:
                await asyncio.shield(self._syncing)
                continue
            done = self._syncing = asyncio.get_running_loop().create_future()
            try:
                await self._sync(whole)
            except Unavailable as error:
                if error.final:
                    self._broken = str(error)
                raise
            finally:
                self._syncing = None
                done.set_result(None)

    async def _sync(self, whole: bool) -> None:
        began = self._clock.mono_ns()
        end = self._ceiling = self.end_offset
        if whole:
            self._write_indexes()
        active, builder = self._active, self._builder
        noted = Segment(
            active.base_offset,
            end,
            active.size,
            active.created_ms,
            builder.max_timestamp,
            builder.max_timestamp_offset,
            Proof.of(builder.offsets, builder.times),
        )
        since = min(self._noted_to, self.flushed_offset) if whole else self.flushed_offset
        for segment in [one for one in self._segments if one.next_offset > since or one is active]:
            for path in self._unsynced(segment, with_indexes=whole or segment is not active):
                if any(one is segment for one in self._segments):
                    await self._files.open(path).sync()
        await self._sync_directory()
        if whole and self._ceiling == end and active is self._active:
            self._note(noted)
            await self._files.open(f"{self._files.directory}/{checkpoints.SEGMENTS_FILE}").sync()
            self._noted_to = min(end, self._ceiling)
        self.flushed_offset = max(self.flushed_offset, min(end, self._ceiling))
        self._flush_seconds.observe((self._clock.mono_ns() - began) / 1e9)

    def _unsynced(self, segment: Segment, *, with_indexes: bool) -> list[str]:
        paths = [self._files.path(segment.base_offset, ".log")]
        if with_indexes:
            paths += [self._files.path(segment.base_offset, suffix) for suffix in SUFFIXES[1:4]]
            paths.append(self._files.path(segment.next_offset, ".snapshot"))
        return [path for path in paths if path.endswith(".log") or self._files.disk.exists(path)]

    async def _sync_directory(self) -> None:
        """Small files and names; once also the names of the folders above, which may be new themselves."""
        directory, disk = self._files.directory, self._files.disk
        dirty, self._dirty = sorted(self._dirty), set()
        for name in dirty:
            if disk.exists(f"{directory}/{name}"):
                file = disk.open(f"{directory}/{name}")
                try:
                    await file.sync()
                finally:
                    file.close()
        if self._dir_dirty:
            self._dir_dirty = False
            await disk.sync_dir(directory)
        if self._above_dirty:
            self._above_dirty = False
            for depth in range(directory.count("/"), -1, -1):
                await disk.sync_dir("/".join(directory.split("/")[:depth]) or ".")

"""The writer of one log: appends to the active segment, its indexes, producer state and leader epochs.

Each step may fail on a full disk, may be the last one before a crash, and may be repeated. Therefore the order is
fixed: batches before index entries, time entries before offset entries, the checkpoint line of a segment before the
files of the next segment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from tiered.config.settings import TopicConfig
from tiered.errors import Code, Corrupt, Refused
from tiered.hot import checkpoints
from tiered.hot.index import RELATIVE_MAX, IndexBuilder, lookup_offset
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.hot.log_loader import LoadedLog, rebuild_epochs
from tiered.hot.recovery import classify_files
from tiered.hot.segment_files import SegmentFiles
from tiered.hot.segment_index import SegmentIndex
from tiered.hot.segments import IndexChecksums, Segment, encode_line, encode_lines, find_segment_number, must_roll
from tiered.hot.transaction_index import INDEX_BYTES_MAX, TransactionIndex
from tiered.ports import Clock, File
from tiered.producers.limits import ProducerLimits
from tiered.producers.states import ProducerStates
from tiered.records.model import CONTROL, WalkedBatch

log = logging.getLogger(__name__)

INDEX_WRITE_BYTES = 1 << 20
"""Bytes of log whose index entries may be in memory only: a start after a kill checks at most this much."""
SNAPSHOT_BYTES = 48 << 20
"""Bytes of log after which a producer snapshot is due: with one largest request on top it stays below 64 MiB."""
CHECKPOINT_LINES_MAX = 64
"""Limit on the lines of one segment in the segment checkpoint, before the checkpoint is rewritten."""
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


OPENED_FILES: frozenset[str] = frozenset((checkpoints.EPOCHS_FILE, checkpoints.METADATA_FILE))
"""Files that an earlier process may have written without an fsync. All logs share the set."""


class UnsyncedState:
    """The state that a power cut could take back.

    All records below `flushed_offset` are durable. The segment checkpoint covers the active segment up to
    `checkpointed_to`, indexes included.
    """

    __slots__ = (
        "checkpointed_to",
        "directory_changed",
        "flushed_offset",
        "lowest_end",
        "parents_changed",
        "replaced_files",
    )

    def __init__(self, flushed_offset: int) -> None:
        self.flushed_offset = flushed_offset
        self.checkpointed_to = -1
        self.lowest_end = flushed_offset
        """Lowest log end since the running fsync began. Records above it were truncated meanwhile, so they are not
        synced."""
        self.replaced_files = OPENED_FILES
        """Files to fsync beside the log."""
        self.directory_changed = True
        self.parents_changed = True

    def note_replaced(self, name: str) -> None:
        """Notes that the next flush has to fsync this file."""
        if name not in self.replaced_files:
            self.replaced_files |= {name}

    def truncate_to(self, end_offset: int) -> None:
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self.checkpointed_to = -1
        self.lowest_end = min(self.lowest_end, end_offset)
        self.directory_changed = True


class LogWriter:
    """The growing end of one log. `segments` is never empty, and the last of them is the active one."""

    __slots__ = (
        "_checkpoint_lines",
        "_checkpointed",
        "_clock",
        "_epochs_due",
        "_fast_below",
        "_fast_config",
        "_index_due",
        "_offsets_written",
        "_snapshot_due",
        "_times_written",
        "active",
        "builder",
        "end_offset",
        "epochs",
        "files",
        "index",
        "is_tiered",
        "loose_snapshots",
        "producer_limits",
        "producers",
        "segments",
        "txn_index",
        "unconfirmed_topic_id",
        "unsynced",
    )

    def __init__(
        self,
        files: SegmentFiles,
        clock: Clock,
        index: SegmentIndex,
        opened: LoadedLog,
        unsynced: UnsyncedState,
        producer_limits: ProducerLimits,
    ) -> None:
        self.files = files
        self.index = index
        self.segments = opened.segments
        self.epochs = opened.epochs
        self.producers = opened.producers
        self.producer_limits = producer_limits
        self.producers.known.join_limits(producer_limits)
        self.end_offset = opened.segments[-1].next_offset
        self.unsynced = unsynced
        self.is_tiered = False
        self.unconfirmed_topic_id = ""
        """Topic id of a log without records, until `partition.metadata` is checked to name it.
        Empty once that is done."""
        self._clock = clock
        self.loose_snapshots: list[int] | None = None
        """Offsets of producer snapshots that may be at no base of a segment. None: nobody has listed them yet."""
        self._checkpoint_lines = 0
        self._epochs_due = False
        self._fast_below = 0
        """Below this size of the active segment an append needs only a write and an index entry..."""
        self._fast_config: TopicConfig | None = None
        """... under these settings."""
        self.txn_index = TransactionIndex(files, opened.segments, producer_limits.per_partition)
        self.set_active_segment(opened.builder, opened.index_file_sizes, opened.snapshot_offset)

    def set_active_segment(
        self, builder: IndexBuilder, index_file_sizes: tuple[int, int], snapshot_offset: int
    ) -> None:
        """Makes the last segment the active one.

        `builder` has its indexes, and `index_file_sizes` says how many bytes of both are in their files. The newest
        producer snapshot is at `snapshot_offset`.
        """
        self.active = self.segments[-1]
        self.builder = builder
        self._checkpointed: Segment | None = None
        self._fast_below = 0
        base = self.active.base_offset
        self.index.set_active(base, builder)
        self.txn_index.set_active(self.active)
        self._offsets_written, self._times_written = index_file_sizes
        self._index_due = self.active.size + INDEX_WRITE_BYTES
        walked_from = lookup_offset(builder.offsets, snapshot_offset - base)[1] if snapshot_offset > base else 0
        self._snapshot_due = walked_from + SNAPSHOT_BYTES

    def begin_empty_segment(self, offset: int, interval: int) -> None:
        """Starts a new active segment at `offset`.

        Its log file is created last. Any start deletes indexes without a log file. But after a failed
        roll an empty log file would make a load truncate the records that the old segment gets next.
        """
        self._confirm_owner()
        for suffix in reversed(SUFFIXES[:3]):
            self.files.open(self.files.path(offset, suffix), create=True).truncate(0)
        self.unsynced.directory_changed = True
        self.segments.append(Segment(offset, offset, 0, self._clock.wall_ms()))
        self.set_active_segment(IndexBuilder(offset, interval), (0, 0), offset)

    def _move_empty_segment(self, offset: int, interval: int) -> Segment:
        """Begins the empty active segment at `offset` instead: compaction has removed the offsets before, and more of
        them than an index can span."""
        old = self.segments[-1]
        old.next_offset = offset
        self.begin_empty_segment(offset, interval)
        self.segments.remove(old)
        self.index.unmap(old.base_offset)
        for suffix in SUFFIXES[:3]:
            self.files.remove(self.files.path(old.base_offset, suffix))
        if len(self.segments) > 1:
            self.segments[-2].next_offset = offset
            self.rewrite_checkpoint()
        return self.active

    @property
    def first_unstable_offset(self) -> int:
        """Returns the first offset of the oldest undecided transaction, or the log end if there is none."""
        unstable = self.producers.txns.first_unstable_offset
        return self.end_offset if unstable is None else unstable

    @property
    def lacks_producers(self) -> bool:
        """True if the bucket may know producers that this log does not, until the next leader asks it.

        No snapshot is written before: each start has to find that producers are missing.
        """
        return self.is_tiered and self.producers.is_incomplete

    def replace_producers(self, producers: ProducerStates) -> None:
        """Replaces the producer state after the log end has moved."""
        self.producers.known.leave_limits()
        self.producers = producers
        producers.known.join_limits(self.producer_limits)

    # -- growing ------------------------------------------------------------------------------------------------------

    def write(
        self,
        data: bytearray | memoryview | bytes,
        batches: Sequence[WalkedBatch],
        config: TopicConfig,
        now_ms: int,
        seen_ms: int,
    ) -> None:
        """Appends batches that begin at the log end. `seen_ms` is the monotonic time for the producers.

        Raises `Unavailable` if the disk refuses: then nothing was written.
        """
        self._confirm_owner()
        active = self.active
        if (
            must_roll(active, len(data), batches[-1].last_offset, config)
            or self.builder.is_full(config.segment_index_bytes)
            or active.txn_index_bytes >= INDEX_BYTES_MAX
        ):
            self.roll(config.index_interval_bytes)
            active = self.active
        if active.size == 0:
            if batches[-1].last_offset - active.base_offset > RELATIVE_MAX:
                active = self._move_empty_segment(batches[0].base_offset, config.index_interval_bytes)
            active.created_ms = now_ms
        position = active.size
        active.size = self.files.log_file(active.base_offset).append((data,))
        builder = self.builder
        for batch in batches:
            if batch.leader_epoch > self.epochs.latest:
                self.assign_epoch(batch.leader_epoch, batch.base_offset)
            builder.add_batch(position, batch.size, batch.last_offset, batch.max_timestamp)
            position += batch.size
            if batch.producer_id >= 0:
                self._update_producer(batch, data, seen_ms)
        self.end_offset = self.producers.end_offset = active.next_offset = batches[-1].last_offset + 1
        active.max_timestamp, active.max_timestamp_offset = builder.max_timestamp, builder.max_timestamp_offset
        self._update_fast_limit(config)

    def write_fast(
        self, data: bytearray | memoryview | bytes, batch: WalkedBatch, config: TopicConfig, seen_ms: int
    ) -> bool:
        """Appends one batch of records while nothing else is due. Returns False if `write` is needed instead."""
        active, builder, last_offset = self.active, self.builder, batch.last_offset
        position = active.size
        if (
            position + batch.size >= self._fast_below
            or config is not self._fast_config
            or batch.attributes & CONTROL
            or batch.leader_epoch != self.epochs.latest
            or last_offset - active.base_offset > RELATIVE_MAX
        ):
            return False
        active.size = self.files.log_file(active.base_offset).append((data,))
        builder.add_batch(position, batch.size, last_offset, batch.max_timestamp)
        if batch.producer_id >= 0:
            self.producers.apply(batch, seen_ms)
        self.end_offset = self.producers.end_offset = active.next_offset = last_offset + 1
        active.max_timestamp, active.max_timestamp_offset = builder.max_timestamp, builder.max_timestamp_offset
        if builder.unindexed_bytes == batch.size:  # an entry was written
            self._update_fast_limit(config)
        return True

    def _update_fast_limit(self, config: TopicConfig) -> None:
        self._fast_config = config
        full = self.builder.is_full(config.segment_index_bytes)
        self._fast_below = (
            0 if full or self.txn_index.unwritten else min(config.segment_size, self._index_due, self._snapshot_due)
        )

    def is_behind(self) -> bool:
        """True if indexes or producer snapshot on disk are further behind the log than a start should have to
        repeat."""
        size = self.active.size
        return size >= self._index_due or size >= self._snapshot_due or self.txn_index.unwritten != b""

    def catch_up(self) -> None:
        self.write_txn_index()
        if self.active.size >= self._snapshot_due:
            self.take_snapshot()
        if self.active.size >= self._index_due:
            self.write_indexes()

    def roll(self, interval: int) -> None:
        """Closes the active segment and starts the next one."""
        old, end = self.active, self.end_offset
        self.builder.finish()
        self.write_indexes()
        old.index_checksums = IndexChecksums.of(self.builder.offsets, self.builder.times)
        self.append_checkpoint([old])
        self.unsynced.note_replaced(checkpoints.SEGMENTS_FILE)
        self.take_snapshot()
        self.files.log_file(old.base_offset).truncate(old.size)  # releases space that was reserved after its end
        self.begin_empty_segment(end, interval)

    def assign_epoch(self, epoch: int, start: int) -> None:
        """Records that leader epoch `epoch` writes from `start` on.

        The epoch file is written before any index entry of the epoch's batches: a load walks all batches after the last
        index entry, and finds the epoch there.
        """
        self._epochs_due |= self.epochs.assign(epoch, start)

    def _update_producer(self, batch: WalkedBatch, data: bytearray | memoryview | bytes, seen_ms: int) -> None:
        if not batch.attributes & CONTROL:
            self.producers.apply(batch, seen_ms)
            return
        marker = memoryview(data)[batch.position : batch.position + batch.size]
        try:
            aborted = self.producers.end_transaction(batch, marker, seen_ms)
        except Corrupt as error:  # it ends nothing: nobody gets the records of its transaction
            log.error("marker cannot be read directory=%s error=%s", self.files.directory, error)
            return
        if aborted is not None:
            self.txn_index.add(self.active, aborted)

    # -- beside the log -----------------------------------------------------------------------------------------------

    def write_indexes(self) -> None:
        """Writes leader epochs and index entries up to the log end."""
        self.write_txn_index()
        if self._epochs_due:
            self.save_epochs()
        times, offsets = self.builder.times, self.builder.offsets
        if len(times) > self._times_written:
            self._times_written = self._index_file(".timeindex").append([bytes(times[self._times_written :])])
        if len(offsets) > self._offsets_written:
            self._offsets_written = self._index_file(".index").append([bytes(offsets[self._offsets_written :])])
        self._index_due = self.active.size + INDEX_WRITE_BYTES

    def write_txn_index(self) -> None:
        """Writes the new entries of the transaction index. The next flush of any kind makes them durable: a start after
        a power cut takes the entries of markers below the flushed offset from the file."""
        if self.txn_index.unwritten:
            is_new = len(self.txn_index.unwritten) == self.active.txn_index_bytes
            self.txn_index.write(self.active)
            self.unsynced.note_replaced(f"{self.active.base_offset:020d}.txnindex")
            self.unsynced.directory_changed |= is_new

    def take_snapshot(self) -> None:
        """Writes a producer snapshot at the log end, and deletes older snapshots that are not at the base of a segment.
        All entries of the transaction index are written before: a start replays only what follows the snapshot.

        A snapshot at a base offset stays. It may be the only state of producers from before the log start. It may also
        be durable while the new one is not yet.
        """
        self.write_txn_index()
        if self.lacks_producers:
            self._snapshot_due = self.active.size + SNAPSHOT_BYTES
            return
        end = self.end_offset
        if not self._is_snapshotted(end):
            self.files.replace(self.files.path(end, ".snapshot"), self.producers.encode_snapshot())
            self.unsynced.note_replaced(f"{end:020d}.snapshot")
            self.unsynced.directory_changed = True
        loose = self.snapshot_offsets() if self.loose_snapshots is None else self.loose_snapshots
        self.loose_snapshots = None
        for offset in loose:
            if offset < end and self.segments[find_segment_number(self.segments, offset)].base_offset != offset:
                self.files.remove(self.files.path(offset, ".snapshot"))
        self.loose_snapshots = [end]
        self._snapshot_due = self.active.size + SNAPSHOT_BYTES

    def _is_snapshotted(self, end: int) -> bool:
        path = self.files.path(end, ".snapshot")
        data = self.files.read(path)
        if data is None:
            return False
        try:
            ProducerStates.from_snapshot(data, end, where=path)
        except Corrupt:
            return False
        return True

    def snapshot_offsets(self) -> tuple[int, ...]:
        """Returns the offsets of all producer snapshots."""
        return classify_files(self.files.disk.list(self.files.directory)).snapshots

    def claim_for_topic(self, topic_id: str, is_new: bool) -> None:
        """Writes `partition.metadata`, or checks that it names this topic id.
        Raises `Refused` if it names another one."""
        path = f"{self.files.directory}/{checkpoints.METADATA_FILE}"
        if is_new:
            self._create(checkpoints.METADATA_FILE, checkpoints.encode_metadata(topic_id))
            return
        try:
            owner = checkpoints.parse_metadata(self.files.read(path) or b"", where=path)
        except Corrupt:
            self.replace(checkpoints.METADATA_FILE, checkpoints.encode_metadata(topic_id))
        else:
            if owner != topic_id:
                raise Refused(Code.INCONSISTENT_CLUSTER_ID, f"{path} belongs to topic id {owner}, not to {topic_id}")

    def _confirm_owner(self) -> None:
        """Checks or rewrites `partition.metadata` before the log holds any record.

        A clean stop does not sync the file of an empty log, so a power cut may have torn it. Records must not pass to a
        later topic of the same name.
        """
        if self.unconfirmed_topic_id:
            self.claim_for_topic(self.unconfirmed_topic_id, is_new=False)
            self.unconfirmed_topic_id = ""

    def repair_leader_epochs(self) -> bool:
        """Compares the lineage with the batches and corrects it. Returns True if it was wrong."""
        walked = LeaderEpochs(self.epochs.lineage)
        rebuild_epochs(self.files, self.segments, walked)
        if walked.lineage == self.epochs.lineage:
            return False
        self.epochs = walked
        self.save_epochs()
        return True

    def save_epochs(self) -> None:
        self.replace(checkpoints.EPOCHS_FILE, checkpoints.encode_lineage(self.epochs.lineage))
        self._epochs_due = False

    def _create(self, name: str, data: bytes) -> None:
        """Creates a small file that did not exist. Whatever a crash leaves of it counts as absent."""
        self.unsynced.note_replaced(name)
        self.unsynced.directory_changed = True
        self.files.create(f"{self.files.directory}/{name}", data)

    def replace(self, name: str, data: bytes) -> None:
        """Replaces a small file of the directory; durable with the next sync."""
        self.unsynced.note_replaced(name)
        self.unsynced.directory_changed = True
        self.files.replace(f"{self.files.directory}/{name}", data)

    def append_checkpoint(self, segments: Iterable[Segment]) -> None:
        """Appends lines to the segment checkpoint."""
        path = f"{self.files.directory}/{checkpoints.SEGMENTS_FILE}"
        self.files.open(path, create=True).append([encode_line(segment) for segment in segments])

    def checkpoint_active(self, as_synced: Segment) -> None:
        """Records that the active segment is durable as of `as_synced`: a start after a power cut checks only what
        follows.

        Rewrites the checkpoint once it has too many lines of this segment.
        """
        self._checkpointed = as_synced
        self._checkpoint_lines += 1
        if self._checkpoint_lines < CHECKPOINT_LINES_MAX:
            self.append_checkpoint([as_synced])
        else:
            self.rewrite_checkpoint()

    def rewrite_checkpoint(self, closed: Iterable[Segment] | None = None) -> None:
        """Rewrites the segment checkpoint without old lines and without deleted segments. `closed` are other lines than
        those of the closed segments."""
        self._checkpoint_lines = 0
        lines = self.segments[:-1] if closed is None else closed
        self.replace(checkpoints.SEGMENTS_FILE, encode_lines([*lines, self._checkpointed or self.active]))

    @property
    def unproved_bytes(self) -> int:
        """Returns the bytes of the active segment that no checkpoint line covers."""
        return self.active.size - (self._checkpointed.size if self._checkpointed is not None else 0)

    def _index_file(self, suffix: str) -> File:
        return self.files.open(self.files.path(self.active.base_offset, suffix), create=True)

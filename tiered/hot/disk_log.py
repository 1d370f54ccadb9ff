"""The log of one partition on a `Disk`: append, read, roll, truncate and flush.

Keeps I2 and I3: each batch is appended at the log end, with the offsets that the reply names.

The rules are in the pure files of this package. The order of writes and fsyncs is in log_loader.py, log_writer.py,
truncation.py, segment_deletion.py and flush.py, which this file combines. This file turns disk errors into the error
code that a producer sees. It is not thread-safe: all calls come from the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from tiered.compaction.cleanable_range import is_compacted
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused, Unavailable
from tiered.hot import truncation
from tiered.hot.checkpoints import CompactionState
from tiered.hot.clean_shutdown import CleanLogEntry, is_small
from tiered.hot.flush import GroupFlush
from tiered.hot.leader_epochs import LeaderEpochs, Lineage
from tiered.hot.log_compaction import LogCompaction, load_state
from tiered.hot.log_loader import LoadedLog, LogLoader
from tiered.hot.log_reader import LogReader, find_segment
from tiered.hot.log_recovery import LogRecovery
from tiered.hot.log_segments import LogSegments
from tiered.hot.log_status import LogStatus
from tiered.hot.log_writer import LogWriter, UnsyncedState
from tiered.hot.producer_restore import decode_producers, restore_producers
from tiered.hot.segment_deletion import SegmentDeletion
from tiered.hot.segment_files import OpenFiles, SegmentFiles
from tiered.hot.segment_index import SegmentIndex
from tiered.hot.segments import is_roll_due
from tiered.hot.suspect_marker import SuspectMarker
from tiered.hot.synced_logs import SyncedLogEntry
from tiered.hot.traffic import Traffic
from tiered.hot.unsynced_truncations import UnsyncedTruncations
from tiered.hot.validation import LogAppendInfo, OpenedBatch, assign_offsets, validate_batches, walk_follower_batches
from tiered.log_limiter import LogLimiter
from tiered.metrics import Metrics
from tiered.ports import Clock, Disk, FileSlice
from tiered.producers.aborted_txns import list_for_readers
from tiered.producers.limits import ProducerLimits
from tiered.producers.states import ProducerStates
from tiered.producers.verification import VerificationGuard
from tiered.records.model import WalkedBatch

__all__ = ["LogAppendInfo", "DiskLog"]

log = logging.getLogger(__name__)


class DiskLog:
    """The log of one partition, with `start_offset <= local_start_offset <= end_offset`.

    Records below `flushed_offset` survive a power cut. `checkpointed_start_offset` is the log start offset that is
    durable in the data directory.
    """

    __slots__ = (
        "_clock",
        "_deletion",
        "_group_flush",
        "_log_limiter",
        "_reader",
        "_resumed_at",
        "_writer",
        "checkpointed_start_offset",
        "compaction",
        "config",
        "name",
        "segments",
        "start_offset",
        "status",
        "suspect",
        "synced_entry",
        "topic_id",
        "traffic",
        "truncated_bytes",
        "truncations",
    )

    def __init__(
        self,
        writer: LogWriter,
        clock: Clock,
        metrics: Metrics,
        config: TopicConfig,
        synced_entry: SyncedLogEntry,
        *,
        start_offset: int,
        topic_id: str,
        name: str,
        compaction: CompactionState | None = None,
    ) -> None:
        self.synced_entry = synced_entry
        self.config = config
        self.name = name
        self.topic_id = topic_id
        self.start_offset = self.checkpointed_start_offset = start_offset
        self.truncated_bytes = 0  # by recovery, from the end of the log
        self.traffic = Traffic()
        self.suspect = False  # True: records were lost to corruption, and the cluster may not know it yet
        self.truncations = UnsyncedTruncations()
        self.status = LogStatus()
        self._resumed_at: tuple[int, int, Lineage] | None = None
        """First offset, log end and lineage as a clean stop left them."""
        self._clock = clock
        self._writer = writer
        self._group_flush = GroupFlush(writer, self.status, self.truncations, clock, metrics)
        self._reader = LogReader(writer, writer.index, writer.files)
        self.segments = LogSegments(writer)
        self._deletion = SegmentDeletion(writer)
        self.compaction = LogCompaction(
            writer, self._reader, self._deletion, self._group_flush, clock, config, compaction
        )
        self._log_limiter: LogLimiter | None = None  # made with the first refused write
        self.configure(config)

    # -- life ---------------------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        disk: Disk,
        clock: Clock,
        directory: str,
        config: TopicConfig,
        left: LogRecovery,
        *,
        metrics: Metrics,
        topic_id: str,
        name: str,
        files: OpenFiles | None = None,
        synced_entry: SyncedLogEntry | None = None,
        producer_limits: ProducerLimits | None = None,
    ) -> DiskLog:
        """Opens or creates a partition's directory, and recovers the log by what the last process `left`.

        `files` bounds the open files of many logs together. `synced_entry` is the log's part of the list of synced
        logs. `producer_limits` are shared by all logs of a broker.

        If bytes have to be truncated that no crash explains, the log is `suspect`, at every start until
        `clear_suspicion`. Raises `Refused` if the directory belongs to another topic id.
        """
        own = SegmentFiles(disk, directory, files if files is not None else OpenFiles(disk))
        limits = producer_limits or ProducerLimits()
        compaction = None if left.is_new or left.clean_entry is not None else load_state(own)
        loader = LogLoader(
            own, config, clock.wall_ms(), left, producers_max=limits.per_partition,
            may_have_gaps=compaction is not None or is_compacted(config),
        )  # fmt: skip
        loaded = await loader.open()
        metrics.counter("tiered_log_recovered_cut_bytes_total", "Torn bytes cut at start.").inc(loaded.truncated_bytes)
        unsynced = UnsyncedState(left.find_flushed(loaded.end_offset))
        writer = LogWriter(own, clock, SegmentIndex(own, metrics), loaded, unsynced, limits)
        self = cls(
            writer, clock, metrics, config, synced_entry or SyncedLogEntry(),
            start_offset=left.start_offset, topic_id=topic_id, name=name, compaction=compaction,
        )  # fmt: skip
        self.truncated_bytes, self.suspect = loaded.truncated_bytes, loader.suspect
        self._note_recovery(left, loaded)
        await self._prepare_to_serve(left)
        return self

    def _note_recovery(self, left: LogRecovery, loaded: LoadedLog) -> None:
        """Notes what follows from the last stop: the state of compaction, truncations, and the topic of the log."""
        end, first = loaded.end_offset, loaded.segments[0].base_offset
        self.compaction.note_load()
        if loaded.is_resumed and left.start_offset == 0:
            self._resumed_at = (first, end, loaded.epochs.lineage)
        # A log that may end below its recovery point counts as a truncation that is not durable yet.
        self.truncations.made = int(left.may_end_below_recovery_point(end))
        self.truncations.checkpointed_point = left.checkpointed_recovery_point
        if left.is_new or not loaded.is_resumed:
            self._writer.claim_for_topic(self.topic_id, left.is_new)
        elif not self._writer.active.size:
            self._writer.unconfirmed_topic_id = self.topic_id

    async def _prepare_to_serve(self, left: LogRecovery) -> None:
        """Moves the log end to the log start at least, and fsyncs a log that may not be whole. A log that never had a
        record has nothing to fsync: any start creates it again."""
        end, start_offset = self.end_offset, left.start_offset
        if end < start_offset:  # records are lost; a record appended at `end` would be below the log start: unreadable
            self.truncate_fully_and_start_at(start_offset, self.epochs.lineage, None)
            await self.flush()
        if not left.is_whole and (self.end_offset or self.truncated_bytes):
            try:
                await self.flush()
            except Unavailable as error:
                if error.final:
                    raise
                await self.flush(end)  # no room for indexes, which only save time

    def close(self) -> None:
        """Closes the files. Writes indexes, so that the next start need not rebuild them, but syncs nothing."""
        self.status.is_closed = True
        self._writer.producers.known.leave_limits()
        try:
            if not self.status.write_failure:
                self._writer.write_indexes()
        finally:
            self._writer.files.close()

    @property
    def is_unchanged_since_stop(self) -> bool:
        """True if a clean stop has nothing to sync: the log is as the last clean stop left it, or is new and was never
        written.

        If a power cut damages a log without records, any start creates it again.
        """
        if self._resumed_at is None or self.truncations.made:
            return False
        return (
            (self.local_start_offset, self.end_offset, self.epochs.lineage) == self._resumed_at
            and self.make_clean_entry(-1, True) is not None
            and not self.status.write_failure
        )

    async def close_clean(self) -> None:
        """Fsyncs everything, with a producer snapshot at the end: the next start has nothing to check."""
        self._writer.builder.finish()
        if self.make_clean_entry(-1, True) is None:
            self._writer.take_snapshot()
        await self.flush()
        self.close()

    def configure(self, config: TopicConfig) -> None:
        """Applies changed settings."""
        self.config = config
        self.compaction.configure(config)
        self._writer.is_tiered = config.remote_storage_enable
        self.synced_entry.configure(ack=config.flush == "ack", end_offset=self.end_offset)

    async def update_synced_entry(self) -> None:
        """Brings the list of synced logs in line with `flush`, after a flush (`SyncedLogEntry.save_if_due`).

        Raises `Unavailable`.
        """
        await self.synced_entry.save_if_due(self.flushed_offset, self.end_offset)

    async def clear_suspicion(self) -> None:
        """Clears `suspect` durably: the cluster knows which records are missing, so no later start marks the log again.

        Raises `Unavailable`.
        """
        if self.suspect:
            await SuspectMarker(self._writer.files).clear()
            self.suspect = False

    def make_clean_entry(self, leader_epoch: int, has_cold_segments: bool) -> CleanLogEntry | None:
        """Returns the entry that describes this log once it is closed, or None if the log is too large for one."""
        if self._writer.txn_index.bases or self.compaction.may_have_gaps or self._writer.lacks_producers:
            return None
        if not is_small(self.segments.count, len(self.producers), self._writer.builder):
            return None
        return CleanLogEntry.of(
            self.topic_id,
            leader_epoch,
            has_cold_segments,
            self.epochs.lineage,
            self._writer.active,
            self._writer.builder,
        )

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """Returns the offset of the next record."""
        return self._writer.end_offset

    @property
    def flushed_offset(self) -> int:
        """Returns the offset below which all records are durable."""
        return self._writer.unsynced.flushed_offset

    @property
    def recovery_point(self) -> int:
        """Returns the recovery point to save: `flushed_offset`, or the end after the planned truncation."""
        return self.truncations.recovery_point(self.flushed_offset)

    @property
    def unproved_bytes(self) -> int:
        """Returns how many bytes of the active segment a start after a power cut would check, fsynced or not."""
        return self._writer.unproved_bytes

    @property
    def local_start_offset(self) -> int:
        """Returns the first offset that is on this disk."""
        return max(self.start_offset, self._writer.segments[0].base_offset)

    @property
    def first_unstable_offset(self) -> int:
        """Returns the first offset of the oldest undecided transaction, or the end offset if there is none."""
        return self._writer.first_unstable_offset

    @property
    def epochs(self) -> LeaderEpochs:
        return self._writer.epochs

    @property
    def producers(self) -> ProducerStates:
        return self._writer.producers

    # -- append -------------------------------------------------------------------------------------------------------

    def append(
        self,
        data: bytearray | memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        check_each_record: bool = False,
        guard: VerificationGuard | None = None,
        from_coordinator: bool = False,
        opened: Sequence[OpenedBatch] = (),
        holder: str = "",
    ) -> LogAppendInfo:
        """Stamps produced batches in place and appends all of them or none.

        If batches are in the log already (the retry of an idempotent producer), the result has the offsets that they
        have there. `check_each_record` decodes every record. A batch that begins a transaction needs a valid `guard`.
        `from_coordinator`: a coordinator of this broker writes on behalf of a producer, without sequences, or writes a
        marker. `opened`: what a thread has read of the batches (`batch_opening`). New producers count for `holder`.

        Raises `Refused` with the code for the producer: KAFKA_STORAGE_ERROR if the disk is full or failing.
        """
        config, writer = self.config, self._writer
        base = writer.end_offset
        batches = validate_batches(
            data, base, leader_epoch, config, now_ms, check_each_record, from_coordinator, opened
        )
        append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else -1
        seen_ms = self._clock.mono_ns() // 1_000_000
        if batches[0].producer_id >= 0 or len(batches) > 1:
            duplicates = writer.producers.check_batches(
                batches, seen_ms, guard, from_coordinator=from_coordinator, holder=holder
            )
            if duplicates:
                if len(duplicates) == len(batches):
                    stamp = duplicates[-1].timestamp if append_time >= 0 else -1
                    return LogAppendInfo(duplicates[0].base_offset, duplicates[-1].last_offset, stamp, True)
                data = memoryview(data)[batches[len(duplicates)].position :]
                batches = assign_offsets(data, base, leader_epoch)
                base = duplicates[0].base_offset
        self._write(data, batches, now_ms, seen_ms)
        return LogAppendInfo(base, writer.end_offset - 1, append_time, False)

    def append_as_follower(
        self, data: bytearray | memoryview | bytes, *, now_ms: int, may_have_gaps: bool = False
    ) -> None:
        """Appends batches that have their offsets and epochs already, from a leader or the bucket.

        Does not judge again what a leader judges at produce, such as sizes and decompressed sizes. A follower that
        refused a batch of its leader could never be in sync; every reader bounds what it opens.
        Raises `Refused` with CORRUPT_MESSAGE if they are invalid or do not begin at the log end. With
        `may_have_gaps` they may begin later: the leader's cleaner has removed the offsets before.
        """
        batches, has_gaps = walk_follower_batches(data, self.end_offset, may_have_gaps)
        if has_gaps:
            self.compaction.mark()
        seen_ms = self._clock.mono_ns() // 1_000_000
        if len(data) <= self.config.segment_size:
            self._write(data, batches, now_ms, seen_ms)
            return
        view = memoryview(data)
        for batch in batches:  # they come from a larger segment; a larger batch gets a segment of its own
            alone = view[batch.position : batch.position + batch.size]
            self._write(alone, [batch._replace(position=0)], now_ms, seen_ms)

    def _write(
        self, data: bytearray | memoryview | bytes, batches: Sequence[WalkedBatch], now_ms: int, seen_ms: int
    ) -> None:
        """Writes batches. `seen_ms` is the time for the producers, by the monotonic clock."""
        config, writer = self.config, self._writer
        if self.status.write_failure:
            raise Refused(Code.KAFKA_STORAGE_ERROR, self.status.write_failure)
        try:
            if len(batches) == 1 and writer.write_fast(data, batches[0], config, seen_ms):
                return
            writer.write(data, batches, config, now_ms, seen_ms)
        except Unavailable as error:
            raise self._storage_error(error) from None
        if writer.is_behind():
            try:
                writer.catch_up()
            except Unavailable as error:
                # The batch is written. Late indexes only make the next start slower, unless the disk has failed.
                refused = self._storage_error(error)
                if error.final:
                    raise refused from None

    def _storage_error(self, error: Unavailable) -> Refused:
        if error.final:
            self.status.fail(str(error), final=True)
        self._log_limiter = self._log_limiter or LogLimiter(self._clock)
        suppressed = self._log_limiter.admit("final" if error.final else "passing")
        if suppressed is not None:
            log.error(
                "disk refused a write partition=%s final=%s suppressed=%d error=%s",
                self.name,
                error.final,
                suppressed,
                error,
            )
        return Refused(Code.KAFKA_STORAGE_ERROR, str(error))

    # -- read ---------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, end_offset: int) -> FileSlice | None:
        """Returns whole batches of one segment, from the batch that holds `offset` on, all below `end_offset`.

        They have at most `max_bytes`, except that the first batch is always returned. Returns None if there is nothing
        there yet. Raises `Refused` if `offset` is outside of what this disk has.
        """
        limit = min(end_offset, self.end_offset)
        if offset < self.local_start_offset or offset > self.end_offset:
            local_range = f"{self.local_start_offset}..{self.end_offset}"
            raise Refused(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside of the local log {local_range}")
        if offset >= limit:
            return None
        return self._reader.read(offset, max_bytes, limit)

    @property
    def last_read_end(self) -> int:
        """The offset after the records that the last `read` returned."""
        return self._reader.next_offset

    def read_committed(
        self, offset: int, max_bytes: int, *, end_offset: int
    ) -> tuple[FileSlice | None, tuple[tuple[int, int], ...]]:
        """Like `read`, with the aborted transactions of the returned records: (producer id, first offset), sorted by
        offset. `end_offset` is the last stable offset or below. Raises `Corrupt` if the transaction index is damaged
        beyond repair."""
        found = self.read(offset, max_bytes, end_offset=end_offset)
        if found is None or not self._writer.txn_index.bases:
            return found, ()
        aborted = self._writer.txn_index.find(self._writer.segments, offset, self._reader.next_offset)
        return found, list_for_readers(aborted)

    # -- roll and truncate --------------------------------------------------------------------------------------------

    def is_roll_due(self, now_ms: int, *, max_age_ms: int | None = None) -> bool:
        """True if the active segment has to be closed because of its age."""
        return is_roll_due(self._writer.active, self.config, now_ms, self.name, max_age_ms)

    def roll(self) -> None:
        """Closes the active segment and starts the next one. Does nothing if the active segment is empty."""
        self.status.require_writable(self.name)
        if self._writer.active.size == 0:
            return
        try:
            self._writer.roll(self.config.index_interval_bytes)
        except Unavailable as error:
            raise self._storage_error(error) from None

    def plan_truncation(self, offset: int) -> bool:
        """Keeps the recovery point from now on at or below the end that `truncate_to` will leave.

        Returns False as long as the data directory has a higher one: a power cut during the truncation would look like
        rot. Raises `Corrupt` if the log is damaged below `offset`.
        """
        self.truncations.planned_end = truncation.find_end(self._writer, offset)
        return not self.truncations.must_lower_point

    def truncate_to(self, offset: int) -> None:
        """Truncates the log at the batch that holds `offset`: this batch and all later ones go.

        The log end is then the first offset of that batch, and the log start is not above it. Call `plan_truncation`
        before. Call `flush` before the next append: otherwise a power cut could bring back parts of both histories.

        Segments above that of `offset` go first, and alone: call `flush`, then this method again. A power cut could
        bring them back after a truncation of the segment before them, and leave a hole. Raises `Corrupt` if the log is
        damaged below `offset`: it stays as it is then.
        """
        if offset >= self.end_offset:
            return
        if offset < self._writer.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset, self.epochs.lineage_within(0, offset), None)
        else:
            keep, interval = find_segment(self._writer, offset), self.config.index_interval_bytes
            self._run_truncation(lambda: truncation.truncate(self._writer, keep, offset, interval))
        self.lower_start(self.end_offset)

    def truncate_fully_and_start_at(self, offset: int, epochs: Lineage, producer_snapshot: bytes | None) -> None:
        """Deletes all local records and restarts the empty log at `offset`.

        `epochs` and `producer_snapshot` describe the records below `offset`, as the bucket or a leader has them. Call
        `flush` before the next append, as after `truncate_to`.
        """
        producers = ProducerStates(offset)
        if producer_snapshot:
            producers = decode_producers(self._writer, offset, producer_snapshot, self.name)
        interval = self.config.index_interval_bytes
        self._run_truncation(lambda: truncation.truncate_fully(self._writer, offset, epochs, producers, interval))

    def restore_producers(self, offset: int, snapshot: bytes | None, batches: Iterable[WalkedBatch]) -> None:
        """Completes the producer state from a snapshot of the bucket (`producer_restore.py`). Raises `Unavailable`."""
        restore_producers(self._writer, offset, snapshot, batches, self.name)

    def _run_truncation(self, action: Callable[[], None]) -> None:
        """Runs a truncation. If it fails half way, the directory has to be opened again before it can be used.

        Raises `Unavailable`, with `final` as the disk reported it.
        """
        self.status.require_writable(self.name)
        self._reader.clear_hints()
        self.truncations.made += 1
        try:
            self.compaction.end_clean()
            action()
            self.compaction.note_log_end()
        except Unavailable as error:
            self.status.fail(f"a truncation of the log failed: {error}", final=error.final)
            raise Unavailable(self.status.write_failure, final=error.final) from None

    def repair_leader_epochs(self) -> bool:
        """Compares the lineage with every batch header and corrects it. Returns True if it was wrong. Reads the whole
        log."""
        return self._writer.repair_leader_epochs()

    def advance_start(self, offset: int) -> None:
        """Moves the log start to `offset`: no reader gets the records below it. Their files stay until
        `drop_local_below`."""
        self.start_offset = max(self.start_offset, min(offset, self.end_offset))
        self._writer.epochs.truncate_start(self.start_offset)

    def lower_start(self, offset: int) -> None:
        """Moves the log start down to `offset` if it is higher.

        Records that are appended there belong to another history than the deleted ones. Below the log start they would
        be acknowledged, and nobody could read them.
        """
        self.start_offset = min(self.start_offset, offset)

    async def drop_local_below(self, offset: int) -> int:
        """Removes closed segments that end at or below `offset` from the log, and returns how many.

        `delete_dropped_files` deletes their files later. Drops nothing if the log is closed or truncated meanwhile: it
        may have grown again, with other records below `offset`.
        """
        made = self.truncations.made
        await self._deletion.sync_producer_snapshot(offset)
        if self.status.is_closed or self.truncations.made != made:
            return 0
        self._reader.clear_hints()
        if self._writer.segments[0].next_offset <= offset:
            self.compaction.cancel_swap()
        return self._deletion.drop_segments_below(offset, self._clock.wall_ms())

    async def delete_dropped_files(self, now_ms: int) -> int:
        """Deletes files of dropped segments that are older than file.delete.delay.ms. Returns how many."""
        return await self._deletion.delete_files(now_ms - self.config.file_delete_delay_ms)

    @property
    def flush_progress_ns(self) -> int | None:
        """When the fsync that runs began, or synced its last file; None if none runs."""
        return self._group_flush.progress_ns

    async def flush(self, up_to: int | None = None) -> int:
        """Makes the log durable below `up_to`; None means all of it, with indexes. Returns the flushed offset.

        Raises `Unavailable`, perhaps final.
        """
        return await self._group_flush.flush(up_to)

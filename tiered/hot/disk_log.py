"""One partition's log on a Disk: appends, reads, rolls, cuts and flushes.

The rules are in the pure files beside it and their order in the carriers that it puts together: opening.py, tail.py,
cutting.py, dropping.py, flushing.py. Here an error of the disk becomes the answer that a producer may see. Not for
threads: all calls come from the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused, Unavailable
from tiered.hot import checkpoints, recovery, truncation
from tiered.hot.clean_shutdown import CleanLogEntry, is_small
from tiered.hot.flush import GroupFlush
from tiered.hot.leader_epochs import LeaderEpochs, Lineage
from tiered.hot.log_loader import LoadedLog, LogLoader
from tiered.hot.log_reader import LogReader
from tiered.hot.log_writer import LogWriter, UnsyncedState
from tiered.hot.producer_state import ProducerLimits, ProducerStates
from tiered.hot.segment_deletion import SegmentDeletion
from tiered.hot.segment_files import OpenFiles, SegmentFiles
from tiered.hot.segment_index import CandidateBatch, SegmentIndex
from tiered.hot.segment_view import LogSegmentData, SegmentView, build_segment_data
from tiered.hot.segments import find_segment_number, is_roll_due
from tiered.hot.synced_logs import SyncedLogEntry
from tiered.hot.traffic import Traffic
from tiered.hot.unsynced_truncations import UnsyncedTruncations
from tiered.hot.validation import LogAppendInfo, assign_offsets, validate_batches
from tiered.log_limiter import LogLimiter
from tiered.metrics import Metrics
from tiered.ports import Clock, Disk, FileSlice
from tiered.records.model import WalkedBatch
from tiered.records.native import walk

__all__ = ["LogAppendInfo", "DiskLog", "LogSegmentData", "SegmentView"]

log = logging.getLogger(__name__)


class DiskLog:
    """The log of one partition. Offsets: `start_offset <= local_start_offset <= end_offset`, and what is below
    `flushed_offset` survives a power cut. `noted_start_offset` is the start that the data directory says, durably."""

    def __init__(
        self,
        files: SegmentFiles,
        clock: Clock,
        config: TopicConfig,
        opened: LoadedLog,
        *,
        start_offset: int,
        flushed_offset: int,
        metrics: Metrics,
        topic_id: str,
        name: str,
        synced_entry: SyncedLogEntry,
        producer_limits: ProducerLimits,
        resumed: bool = False,
    ) -> None:
        self.synced_entry = synced_entry
        self._resumed_at = (opened.segments[-1].next_offset, opened.epochs.lineage) if resumed else None
        self.config = config
        self.name = name
        self.topic_id = topic_id
        self.start_offset = self.checkpointed_start_offset = start_offset
        self.truncated_bytes = opened.truncated_bytes  # by recovery, from the tail
        self.traffic = Traffic()
        self.suspect = False  # records have rotted away that this log once had, and not everybody knows it yet
        self.truncations = UnsyncedTruncations()
        self._files = files
        self._clock = clock
        self._index = SegmentIndex(files, metrics)
        self._writer = LogWriter(files, clock, self._index, opened, UnsyncedState(flushed_offset), producer_limits)
        self._group_flush = GroupFlush(self._writer, clock, metrics)
        self._reader = LogReader(self._writer, self._index, files)
        self._deletion = SegmentDeletion(self._writer)
        self._log_limiter = LogLimiter(clock)
        self.configure(config)

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
        is_new: bool = False,
        truncation_interrupted: bool = False,
        clean_entry: CleanLogEntry | None = None,
        synced_entry: SyncedLogEntry | None = None,
        producer_limits: ProducerLimits | None = None,
    ) -> DiskLog:
        """Opens or creates a partition's directory, recovered. `files` bounds the open files of many logs together. A
        `fresh` directory is known not to be there; of a `cut` one that failed half way; `left`: a clean stop's word.
        `synced` is what is noted of it; `producer_limits` are shared by the logs of a broker.

        Unless the log is whole (`same_boot` or `clean`), what was found above `recovery_point` is fsynced before it is
        served: it must not vanish in a second power cut. A whole log moves no fsync point; its tail is the caller's to
        flush. Where no crash explains what has to be cut off, the log is `doubted`, at every start until `believe`.
        Refused when the directory belongs to another topic id.
        """
        own = SegmentFiles(disk, directory, files if files is not None else OpenFiles(disk))
        whole = same_boot or clean
        trusted_to = recovery.WHOLE_LOG if whole else recovery_point
        limits = producer_limits or ProducerLimits()
        opening = LogLoader(own, config, clock.wall_ms(), trusted_to, clean=clean, producers_max=limits.per_partition)
        resumed = (
            opening.create(start_offset)
            if is_new
            else opening.load_clean(clean_entry)
            if clean_entry is not None
            else None
        )
        opened = resumed or await opening.recover(start_offset, recovery_point)
        metrics.counter("tiered_log_recovered_cut_bytes_total", "Torn bytes cut at start.").inc(opened.truncated_bytes)
        end = opened.segments[-1].next_offset
        self = cls(
            own, clock, config, opened, start_offset=start_offset,
            flushed_offset=end if clean else min(recovery_point, end), metrics=metrics, topic_id=topic_id, name=name,
            synced_entry=synced_entry or SyncedLogEntry(), producer_limits=limits,
            resumed=resumed is not None and start_offset == 0,
        )  # fmt: skip
        self.suspect = opening.suspect
        self.truncations.made = int(truncation_interrupted or end < recovery_point)
        if resumed is None or is_new:
            self._writer.claim_for_topic(topic_id, is_new)
        elif not self._writer.active.size:
            self._writer.unconfirmed_topic_id = topic_id
        if end < start_offset:  # what was not deleted is lost; who wrote on from `end` would write what nobody can read
            self.truncate_fully_and_start_at(start_offset, self.epochs.lineage, None)
            await self.flush()
        if not whole:
            try:
                await self.flush()
            except Unavailable as error:
                if error.final:
                    raise
                await self.flush(end)  # no room for indexes, which only save time
        return self

    def close(self) -> None:
        """Lets go of the files; writes what the next start would else have to check, syncs nothing."""
        self._writer.producers.leave_limits()
        if not self._group_flush.write_failure:
            self._writer.write_indexes()
        self._files.forget_all()

    @property
    def is_unchanged_since_stop(self) -> bool:
        """True if nothing has to be synced for a clean stop: the log is as the last clean stop left it, or was made
        since and never written. What a power cut takes of a log without records, any start makes anew."""
        if self._resumed_at is None or self.truncations.made or self._writer.end_offset != self._resumed_at[0]:
            return False
        return (
            self.epochs.lineage == self._resumed_at[1]
            and self.make_clean_entry(-1, True) is not None
            and not self.write_failure
        )

    async def close_clean(self) -> None:
        """All durable, producers snapshotted at the end: the next start has nothing to check."""
        self._writer.builder.finish()
        if self.make_clean_entry(-1, True) is None:
            self._writer.take_snapshot()
        await self.flush()
        self.close()

    def configure(self, config: TopicConfig) -> None:
        """Other settings are in force."""
        self.config = config
        self.synced_entry.configure(ack=config.flush == "ack", end_offset=self.end_offset)

    async def update_synced_entry(self) -> None:
        """Brings in line with `flush` what is noted of this log, after a flush (`Synced.settle`). `Unavailable`."""
        await self.synced_entry.save_if_due(self.flushed_offset, self.end_offset)

    async def clear_suspicion(self) -> None:
        """The cluster knows what is missing: no next start need doubt it, also after a power cut. `Unavailable`."""
        if self.suspect:
            self._files.disk.remove(f"{self._files.directory}/{checkpoints.SUSPECT_FILE}")
            await self._files.disk.sync_dir(self._files.directory)
            self.suspect = False

    def make_clean_entry(self, leader_epoch: int, has_cold_segments: bool) -> CleanLogEntry | None:
        """What is to be said of it once it is closed; None when it is too large for that."""
        if not is_small(self.segment_count, len(self.producers), self._writer.builder):
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
        """The offset of the next record."""
        return self._writer.end_offset

    @property
    def flushed_offset(self) -> int:
        """Everything below it is durable: the recovery point."""
        return self._writer.unsynced.flushed_offset

    @property
    def unproved_bytes(self) -> int:
        """Bytes of the active segment that a start after a power cut would check, whatever was fsynced of them."""
        return self._writer.unproved_bytes

    @property
    def write_failure(self) -> str:
        """Why this log takes no writes any more; empty while it does."""
        return self._group_flush.write_failure

    @property
    def has_disk_failed(self) -> bool:
        """Whether it is `broken` because the disk failed."""
        return bool(self._group_flush.write_failure) and self._group_flush.has_disk_failed

    @property
    def local_start_offset(self) -> int:
        """The first offset that this directory can serve."""
        return max(self.start_offset, self._writer.segments[0].base_offset)

    @property
    def first_unstable_offset(self) -> int:
        """The first offset of an undecided transaction, else the end."""
        unstable = self._writer.producers.first_unstable_offset
        return self.end_offset if unstable is None else unstable

    @property
    def epochs(self) -> LeaderEpochs:
        return self._writer.epochs

    @property
    def producers(self) -> ProducerStates:
        return self._writer.producers

    @property
    def size_bytes(self) -> int:
        """Bytes of all log files."""
        return sum(segment.size for segment in self._writer.segments)

    @property
    def segment_count(self) -> int:
        return len(self._writer.segments)

    @property
    def active_view(self) -> SegmentView:
        """The segment that grows, as of now; `created_ms` is of no meaning while it is empty."""
        return SegmentView.of(self._writer.active, self._files)

    @property
    def offset_gaps(self) -> list[tuple[int, int]]:
        """Damage: offset ranges `[start, end)` that are missing between segments. Reading there is `Corrupt`."""
        return recovery.find_gaps(self._writer.segments)

    def closed_segments(self) -> list[SegmentView]:
        """Oldest first, without the active one."""
        return [SegmentView.of(segment, self._files) for segment in self._writer.segments[:-1]]

    def segment_data(self, base_offset: int, *, from_offset: int | None = None) -> LogSegmentData:
        """What goes up with the closed segment at `base_offset`; from the batch that holds `from_offset` on where an
        earlier upload ended inside it."""
        return build_segment_data(self._writer, self._reader.find_segment(base_offset), from_offset)

    # -- append -------------------------------------------------------------------------------------------------------

    def append(
        self, data: bytearray | memoryview, *, leader_epoch: int, now_ms: int, check_each_record: bool = False
    ) -> LogAppendInfo:
        """Produced batches, stamped in place and written whole or not at all; batches that stand in the log already
        (an idempotent producer's retry) are answered with the offsets they have. `deep` opens every record. Refused
        with the code that the producer shall see, KAFKA_STORAGE_ERROR on a full or failing disk."""
        config, tail = self.config, self._writer
        base = tail.end_offset
        batches = validate_batches(data, base, leader_epoch, config, now_ms, check_each_record)
        append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else -1
        if batches[0].producer_id >= 0 or len(batches) > 1:
            known = tail.producers.find_duplicates(batches, now_ms)
            if known:
                if len(known) == len(batches):
                    stamp = known[-1].timestamp if append_time >= 0 else -1
                    return LogAppendInfo(known[0].base_offset, known[-1].last_offset, stamp, True)
                data = memoryview(data)[batches[len(known)].position :]
                batches = assign_offsets(data, base, leader_epoch)
                base = known[0].base_offset
        if len(data) > config.segment_bytes:
            raise Refused(Code.RECORD_LIST_TOO_LARGE, f"{len(data)} bytes, segment.bytes is {config.segment_bytes}")
        self._write(data, batches, now_ms)
        return LogAppendInfo(base, tail.end_offset - 1, append_time, False)

    def append_as_follower(self, data: bytearray | memoryview | bytes, *, now_ms: int) -> None:
        """Batches that have their offsets and epochs already, from a leader or the bucket. `Refused(CORRUPT_MESSAGE)`
        when they do not prove themselves or do not begin at the end of the log."""
        walked = walk(data)
        if walked.why or not walked.batches:
            raise Refused(Code.CORRUPT_MESSAGE, f"batch at byte {walked.end}: {walked.why or 'none'}")
        offset = self.end_offset
        for batch in walked.batches:
            if batch.base_offset != offset:
                raise Refused(Code.CORRUPT_MESSAGE, f"batch at offset {batch.base_offset} does not follow {offset - 1}")
            offset = batch.last_offset + 1
        if len(data) <= self.config.segment_bytes:
            self._write(data, walked.batches, now_ms)
            return
        view = memoryview(data)
        for batch in walked.batches:  # they come from a larger segment; no batch is too large for one of its own
            self._write(view[batch.position : batch.position + batch.size], [batch._replace(position=0)], now_ms)

    def _write(self, data: bytearray | memoryview | bytes, batches: Sequence[WalkedBatch], now_ms: int) -> None:
        config, tail = self.config, self._writer
        if self._group_flush.write_failure:
            raise Refused(Code.KAFKA_STORAGE_ERROR, self._group_flush.write_failure)
        try:
            if len(batches) == 1 and tail.write_fast(data, batches[0], config):
                return
            tail.write(data, batches, config, now_ms)
        except Unavailable as error:
            raise self._storage_error(error) from None
        if tail.is_behind():
            try:
                tail.catch_up()
            except Unavailable as error:
                # The batch is written; what is late only costs the next start time, unless the directory is done for.
                self._storage_error(error)

    def _storage_error(self, error: Unavailable) -> Refused:
        if error.final:
            self._group_flush.fail(str(error), final=True)
        unsaid = self._log_limiter.admit("final" if error.final else "passing")
        if unsaid is not None:
            log.error(
                "disk refused a write partition=%s final=%s unsaid=%d error=%s", self.name, error.final, unsaid, error
            )
        return Refused(Code.KAFKA_STORAGE_ERROR, str(error))

    # -- read ---------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, end_offset: int) -> FileSlice | None:
        """Whole batches from the one that holds `offset`, all below `end_offset`, of at most `max_bytes` but at least
        one; within one segment. None where nothing is (yet). Refused outside of what this directory holds."""
        limit = min(end_offset, self.end_offset)
        if offset < self.local_start_offset or offset > self.end_offset:
            held = f"{self.local_start_offset}..{self.end_offset}"
            raise Refused(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside of {held}")
        if offset >= limit:
            return None
        return self._reader.read(offset, max_bytes, limit)

    def find_batch_by_time(self, timestamp: int, offset: int) -> CandidateBatch | None:
        """The first batch that reaches `offset` and claims a record not earlier than `timestamp` (ms): a step of a
        look-up by time (`time_lookup.py`)."""
        return self._index.find_batch_by_time(self._writer.segments, timestamp, offset)

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp that any batch claims; -1 while there is none."""
        return max(segment.max_timestamp for segment in self._writer.segments)

    # -- roll and cut -------------------------------------------------------------------------------------------------

    def is_roll_due(self, now_ms: int, *, max_age_ms: int | None = None) -> bool:
        """Whether the active segment is to be closed for its age alone."""
        return is_roll_due(self._writer.active, self.config, now_ms, self.name, max_age_ms)

    def segment_created_ms(self, offset: int) -> int:
        """When the segment that holds `offset` got its first batch, by the broker's clock."""
        segments = self._writer.segments
        return segments[max(find_segment_number(segments, offset), 0)].created_ms

    def roll(self) -> None:
        """Closes the active segment and begins the next one; nothing when it is empty."""
        if self._group_flush.write_failure:
            raise Refused(Code.KAFKA_STORAGE_ERROR, self._group_flush.write_failure)
        if self._writer.active.size == 0:
            return
        try:
            self._writer.roll(self.config.index_interval_bytes)
        except Unavailable as error:
            raise self._storage_error(error) from None

    def truncate_to(self, offset: int) -> None:
        """Cuts the batch that holds `offset` and all after it; the end is then where that batch began, and the start no
        higher. `flush` before the next append: else a power cut could bring back parts of both histories."""
        if offset >= self.end_offset:
            return
        if offset <= self._writer.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset, self.epochs.lineage_within(0, offset), None)
        else:
            keep, interval = self._reader.find_segment(offset), self.config.index_interval_bytes
            self._run_truncation(lambda: truncation.truncate(self._writer, keep, offset, interval))
        self.lower_start(self.end_offset)

    def truncate_fully_and_start_at(self, offset: int, epochs: Lineage, producer_snapshot: bytes | None) -> None:
        """Forgets all that is local and begins empty at `offset`, with the history that others kept of what lies
        below it (the bucket, or a leader). `flush` before the next append, as after `truncate_to`."""
        producers = ProducerStates(offset)
        if producer_snapshot:
            producers = ProducerStates.from_snapshot(producer_snapshot, offset, where=self.name)
        interval = self.config.index_interval_bytes
        self._run_truncation(lambda: truncation.truncate_fully(self._writer, offset, epochs, producers, interval))

    def _run_truncation(self, action: Callable[[], None]) -> None:
        """A cut that fails half way leaves a directory that only opening it anew can judge: `Unavailable`, final or not
        as the disk was."""
        if self._group_flush.write_failure:
            raise Refused(Code.KAFKA_STORAGE_ERROR, self._group_flush.write_failure)
        self._reader.clear_hints()
        self.truncations.made += 1
        try:
            action()
        except Unavailable as error:
            self._group_flush.fail(f"a cut of the log failed: {error}", final=error.final)
            raise Unavailable(self._group_flush.write_failure, final=error.final) from None

    def repair_leader_epochs(self) -> bool:
        """Holds the lineage against every batch and mends it; whether it was wrong. Reads all headers."""
        return self._writer.repair_leader_epochs()

    def advance_start(self, offset: int) -> None:
        """Records below `offset` are gone for every reader. Files stay until `drop_local_below`."""
        self.start_offset = max(self.start_offset, min(offset, self.end_offset))
        self._writer.epochs.truncate_start(self.start_offset)

    def lower_start(self, offset: int) -> None:
        """The log starts at `offset` at the latest: what is to follow there is of another history than what was gone,
        and would be acknowledged and read by nobody."""
        self.start_offset = min(self.start_offset, offset)

    async def drop_local_below(self, offset: int) -> int:
        """Takes closed segments that end at or below `offset` out of the log, for `sweep` to delete; how many."""
        await self._deletion.sync_producer_snapshot(offset)
        self._reader.clear_hints()
        return self._deletion.drop_segments_below(offset, self._clock.wall_ms())

    async def delete_dropped_files(self, now_ms: int) -> int:
        """Deletes dropped files that are older than file.delete.delay.ms; returns how many."""
        return await self._deletion.delete_files(now_ms - self.config.file_delete_delay_ms)

    async def flush(self, up_to: int | None = None) -> int:
        """Durable below `up_to` (all, with indexes); returns the flushed offset. `Unavailable`, perhaps final."""
        made, flushed = self.truncations.made, await self._group_flush.flush(up_to)
        self.truncations.mark_synced(made if up_to is None else 0)
        return flushed

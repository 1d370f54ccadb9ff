"""Loads the directory of a partition: segments, indexes, leader epochs and producer state.

Applies the rules of recovery.py to a `Disk`. A second run after a crash gives the same result: the loader only
truncates bytes that cannot be served, and rebuilds what follows from the log itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from tiered.config.settings import TopicConfig
from tiered.errors import Corrupt, Unavailable
from tiered.hot import checkpoints, recovery
from tiered.hot.clean_shutdown import CleanLogEntry
from tiered.hot.index import IndexBuilder, lookup_offset
from tiered.hot.interrupted_swaps import finish_swaps
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.hot.log_recovery import LogRecovery
from tiered.hot.producer_recovery import AbortedBySegment, load_producers, replay_aborted_txns
from tiered.hot.segment_files import SegmentFiles
from tiered.hot.segments import UNKNOWN_BYTES, IndexChecksums, Segment, parse_lines
from tiered.hot.suspect_marker import SuspectMarker
from tiered.hot.transaction_index import SUFFIX, write_index
from tiered.ids import NO_EPOCH
from tiered.producers.aborted_txns import ENTRY_BYTES, MAX_OFFSET, decode_aborted_txns, encode_aborted_txns
from tiered.producers.states import ProducerStates
from tiered.records.batch import decode_header
from tiered.records.model import HEADER_BYTES
from tiered.records.native import crc32c

log = logging.getLogger(__name__)


@dataclass
class LoadedLog:
    """A partition's log as loaded. The last of `segments` is the active one, and `builder` has its indexes."""

    segments: list[Segment]
    builder: IndexBuilder
    index_file_sizes: tuple[int, int]
    """Bytes of both indexes in `builder` that are in their files."""
    epochs: LeaderEpochs
    producers: ProducerStates
    snapshot_offset: int
    truncated_bytes: int
    is_resumed: bool = False
    """The log is new, or as a clean stop left it: no segment was read."""

    @property
    def end_offset(self) -> int:
        return self.segments[-1].next_offset


class CorruptLog(Corrupt):
    """Records would have to be truncated that no crash explains. Nothing is truncated before this is noted on the
    disk."""


class LogLoader:
    """One load of one directory. `suspect` is True once a file notes that records are missing: only then may corrupt
    records be truncated."""

    def __init__(
        self,
        files: SegmentFiles,
        config: TopicConfig,
        now_ms: int,
        left: LogRecovery,
        *,
        producers_max: int,
        may_have_gaps: bool = False,
    ) -> None:
        self._files = files
        self._config = config
        self._now_ms = now_ms
        self._left = left
        self._trusted_to = left.trusted_to
        self._producers_max = producers_max
        self._may_have_gaps = may_have_gaps
        """Compaction may have removed offsets between batches and at the end of a segment."""
        self.suspect = False
        self._truncated_bytes = 0
        self._index_file_sizes = (0, 0)
        self._last_epoch = NO_EPOCH
        """Epoch of the last checked batch. A lower epoch after it belongs to a truncated history."""

    async def open(self) -> LoadedLog:
        """Loads the log in the quickest way that the last stop allows."""
        if self._left.is_new:
            return self._create()
        entry = self._left.clean_entry
        loaded = self._load_clean(entry) if entry is not None else None
        return loaded or await self._recover()

    async def _recover(self) -> LoadedLog:
        """Loads the log from its files. An empty directory begins at the log start offset.

        The loader notes on the disk that records are missing before it truncates them. Otherwise a crash after the
        truncation would hide the loss. Raises `CorruptLog` if there is no room for that note.
        """
        marker = SuspectMarker(self._files)
        self.suspect = marker.is_set
        try:
            opened = self._load()
        except CorruptLog as error:
            try:
                await marker.set(str(error))
            except Unavailable:
                raise error from None
            self.suspect = True
            opened = self._load()
        recovery_point = self._left.recovery_point
        end = opened.segments[-1].next_offset
        if self._left.clean and end < recovery_point and not self.suspect:
            log.error(
                "log ends below the offset of its clean shutdown directory=%s end=%d closed_at=%d",
                self._files.directory,
                end,
                recovery_point,
            )
            why = f"the clean shutdown was at offset {recovery_point}, but the log ends at {end}"
            try:
                await marker.set(why)
            except Unavailable:
                raise CorruptLog(why, where=self._files.directory) from None
            self.suspect = True
        return opened

    def _load(self) -> LoadedLog:
        """Loads the log once. Raises `CorruptLog` if records are missing and this is not noted yet."""
        self._truncated_bytes, self._last_epoch, start_offset = 0, NO_EPOCH, self._left.start_offset
        listing = self._remove_leftovers()
        checkpointed = parse_lines(self._files.read(self._checkpoint_path(checkpoints.SEGMENTS_FILE)) or b"")
        epochs = self._load_epochs()
        loaded_lineage = epochs.lineage if epochs is not None else None
        # A power cut can leave an unsynced file empty. If it was empty before, the rebuild finds no epochs either.
        rebuild = not loaded_lineage
        epochs = epochs or LeaderEpochs()
        segments, builder = self._open_segments(listing, checkpointed, epochs, start_offset)
        end = segments[-1].next_offset
        if self._trusted_to != recovery.WHOLE_LOG and not rebuild:
            rebuild = not self._epochs_match(epochs, segments)
        if rebuild:
            rebuild_epochs(self._files, segments, epochs)
        else:
            epochs = find_first_epochs(self._files, segments, epochs, max(start_offset, segments[0].base_offset))
        epochs.truncate_from(end)
        for offset in listing.snapshots:
            if offset > end:
                self._files.remove(self._files.path(offset, ".snapshot"))
        aborted: AbortedBySegment = {}
        producers, snapshot_at = load_producers(
            self._files, segments, listing.snapshots, end, self._producers_max,
            trusted_to=self._trusted_to, aborted=aborted, repair=True, is_tiered=self._config.remote_storage_enable,
        )  # fmt: skip
        if end == segments[0].base_offset and not self._files.disk.exists(self._files.path(end, ".snapshot")):
            # The restart of an empty log was interrupted. Without epochs a leader restarts it at the cold end again.
            epochs = LeaderEpochs()
        if epochs.lineage != loaded_lineage:
            self._files.replace(
                self._checkpoint_path(checkpoints.EPOCHS_FILE), checkpoints.encode_lineage(epochs.lineage)
            )
        for segment in segments:
            line = checkpointed.get(segment.base_offset)
            is_listed = segment.base_offset in listing.txn_indexes
            if segment.next_offset > snapshot_at or segment is segments[-1]:
                self._load_txn_index(segments, segment, is_listed, line, snapshot_at, aborted)
            elif is_listed and not segment.txn_index_bytes:
                segment.txn_index_bytes = UNKNOWN_BYTES
        return LoadedLog(
            segments, builder, self._index_file_sizes, epochs, producers, snapshot_at, self._truncated_bytes
        )

    def _create(self) -> LoadedLog:
        """Creates a directory that did not exist: there is nothing to read. Index files are created with their first
        entry."""
        start_offset = self._left.start_offset
        self._files.disk.make_dirs(self._files.directory)
        self._files.open(self._files.path(start_offset, ".log"), create=True)
        active = Segment(start_offset, start_offset, 0, self._now_ms)
        builder = IndexBuilder(start_offset, self._config.index_interval_bytes)
        states = ProducerStates(start_offset)
        return LoadedLog([active], builder, (0, 0), LeaderEpochs(), states, start_offset, 0, is_resumed=True)

    def _load_clean(self, entry: CleanLogEntry) -> LoadedLog | None:
        """Loads the log as the last process closed it. Returns None if the log file has another size than `entry`
        states."""
        segment = entry.segment
        try:
            if self._files.size(self._files.path(segment.base_offset, ".log")) != segment.size:
                return None
        except Unavailable:
            return None
        builder = entry.build_indexes(self._config.index_interval_bytes)
        end, indexed = segment.next_offset, (len(entry.offsets), len(entry.times))
        epochs = LeaderEpochs(entry.lineage)
        epochs.truncate_from(end)
        return LoadedLog([segment], builder, indexed, epochs, ProducerStates(end), end, 0, is_resumed=True)

    def _checkpoint_path(self, name: str) -> str:
        return f"{self._files.directory}/{name}"

    def _remove_leftovers(self) -> recovery.DirectoryListing:
        self._files.disk.make_dirs(self._files.directory)
        finish_swaps(self._files)
        listing = recovery.classify_files(self._files.disk.list(self._files.directory))
        for name in listing.leftovers:
            self._files.disk.remove(f"{self._files.directory}/{name}")
        return listing

    # -- segments -----------------------------------------------------------------------------------------------------

    def _open_segments(
        self,
        listing: recovery.DirectoryListing,
        checkpointed: dict[int, Segment],
        epochs: LeaderEpochs,
        start_offset: int,
    ) -> tuple[list[Segment], IndexBuilder]:
        bases = listing.bases or (start_offset,)
        segments: list[Segment] = []
        for number, base in enumerate(bases):
            following = bases[number + 1] if number + 1 < len(bases) else None
            if following is not None and following <= self._trusted_to:
                segments.append(self._load_closed_segment(base, following, checkpointed.get(base)))
                continue
            segment, builder = self._recover_segment(base, checkpointed.get(base), epochs)
            segments.append(segment)
            if following is None:
                break
            if self._may_have_gaps and self._is_whole(segment, following, checkpointed.get(base)):
                segment.next_offset = following
            if segment.next_offset != following:
                self._delete_segments(bases[number + 1 :])
                break
            builder.finish()
            self._write_indexes(base, builder)
            segment.index_checksums = IndexChecksums.of(builder.offsets, builder.times)
        return segments, builder

    def _load_closed_segment(self, base: int, following: int, checkpointed: Segment | None) -> Segment:
        """Loads a segment below the trusted offset from its checkpoint line, or from its headers if the line does not
        match."""
        size = self._files.size(self._files.path(base, ".log"))
        if (
            checkpointed is not None
            and checkpointed.next_offset == following
            and checkpointed.size == size
            and checkpointed.index_checksums is not None
        ):
            return checkpointed
        builder = IndexBuilder(base, self._config.index_interval_bytes)
        end, next_offset = 0, base
        for batch in self._files.walk_batches(base, 0, check_crc=False):
            if batch.base_offset < next_offset or batch.last_offset >= following:
                break  # not a batch of this segment: no CRC covers the base offset
            builder.add_batch(batch.position, batch.size, batch.last_offset, batch.max_timestamp)
            end, next_offset = batch.position + batch.size, batch.last_offset + 1
        builder.finish()
        if self._may_have_gaps and end == size:
            next_offset = following
        if next_offset != following:
            log.error(
                "records are missing from a segment directory=%s base=%d from=%d to=%d readable=%d size=%d",
                self._files.directory, base, next_offset, following, end, size,
            )  # fmt: skip
        self._write_indexes(base, builder)
        created = checkpointed.created_ms if checkpointed is not None else self._guess_created_ms(builder)
        index_checksums = IndexChecksums.of(builder.offsets, builder.times)
        return Segment(
            base, next_offset, end, created, builder.max_timestamp, builder.max_timestamp_offset, index_checksums,
            UNKNOWN_BYTES,
        )  # fmt: skip

    def _recover_segment(
        self, base: int, checkpointed: Segment | None, epochs: LeaderEpochs
    ) -> tuple[Segment, IndexBuilder]:
        """Loads the active segment, or one above the trusted offset.

        Checks every CRC from the last proven position on, and truncates after the last valid batch.
        """
        file = self._files.open(self._files.path(base, ".log"), create=True)
        offsets, times = (self._files.read(self._files.path(base, suffix)) for suffix in (".index", ".timeindex"))
        start = self._find_recovery_start(base, checkpointed, file.size(), offsets or b"", times or b"")
        builder, end, next_offset = start.builder, start.position, start.next_offset
        self._index_file_sizes = len(builder.offsets), len(builder.times)
        for batch in self._files.walk_batches(base, end, check_crc=True):
            follows = batch.base_offset == next_offset or (self._may_have_gaps and batch.base_offset > next_offset)
            if not follows or batch.leader_epoch < self._last_epoch:
                break
            self._last_epoch = batch.leader_epoch
            builder.add_batch(batch.position, batch.size, batch.last_offset, batch.max_timestamp)
            if batch.leader_epoch > epochs.latest:
                epochs.assign(batch.leader_epoch, batch.base_offset)
            end, next_offset = batch.position + batch.size, batch.last_offset + 1
        if end < file.size():
            self._check_truncation(base, end, next_offset)
            self._truncated_bytes += file.size() - end
        self._truncate_index(self._files.path(base, ".index"), offsets, self._index_file_sizes[0])
        self._truncate_index(self._files.path(base, ".timeindex"), times, self._index_file_sizes[1])
        if end < file.size():
            file.truncate(end)
        created = checkpointed.created_ms if checkpointed is not None else self._guess_created_ms(builder)
        segment = Segment(base, next_offset, end, created, builder.max_timestamp, builder.max_timestamp_offset)
        return segment, builder

    def _is_whole(self, segment: Segment, following: int, checkpointed: Segment | None) -> bool:
        """True if a recovered segment that is not the last one has all that it had.

        A power cut may take the end of a file that was not fsynced. Then only the checkpoint tells a gap from that.
        """
        if self._truncated_bytes > 0:
            return False
        if self._trusted_to == recovery.WHOLE_LOG:
            return checkpointed is None or checkpointed.size <= segment.size
        return checkpointed is not None and checkpointed.next_offset == following and checkpointed.size == segment.size

    def _check_truncation(self, base: int, end: int, next_offset: int) -> None:
        """Logs what is about to be truncated, and why. Raises `CorruptLog` if a loss is not noted on the disk yet."""
        tail = self._files.log_file(base).map()[end:]
        torn = self._trusted_to == recovery.WHOLE_LOG and recovery.is_torn(tail, next_offset)
        point = recovery.TruncationPoint(next_offset, torn)
        is_corrupt = recovery.is_corruption(
            point, clean=self._left.clean, start_offset=self._left.start_offset, trusted_to=self._trusted_to
        )
        if is_corrupt and not self.suspect:
            raise CorruptLog(f"records from offset {next_offset} on are corrupt", where=self._files.path(base, ".log"))
        (log.error if is_corrupt else log.warning)(
            "%s directory=%s base=%d end_offset=%d bytes=%d",
            "truncated corrupt records" if is_corrupt else "truncated a torn write",
            self._files.directory, base, next_offset, len(tail),
        )  # fmt: skip

    def _find_recovery_start(
        self, base: int, checkpointed: Segment | None, size: int, offsets: bytes, times: bytes
    ) -> recovery.RecoveryStart:
        """Returns where the check of a segment starts.

        In a suspect log it starts at 0. If the power failed before the truncation was durable, corrupt records may be
        back. They may lie below the checkpointed position.
        """
        interval = self._config.index_interval_bytes
        if self.suspect:
            return recovery.RecoveryStart(0, base, IndexBuilder(base, interval))
        if self._trusted_to == recovery.WHOLE_LOG:
            position, builder = recovery.last_indexed_batch(base, interval, size, offsets, times)
            batch = self._files.read_batch(base, position) if position >= 0 else None
            relative = lookup_offset(builder.offsets, 2**31)[0]
            if batch is not None and batch.last_offset == base + relative:
                builder.unindexed_bytes = batch.size
                return recovery.RecoveryStart(position + batch.size, batch.last_offset + 1, builder)
        else:
            proved = recovery.start_from_checkpoint(checkpointed, interval, size, offsets, times, self._trusted_to)
            if proved is not None:
                return proved
        return recovery.RecoveryStart(0, base, IndexBuilder(base, interval))

    def _guess_created_ms(self, builder: IndexBuilder) -> int:
        """Returns a creation time for a segment without one: the time of its newest record if it has one, but not later
        than now."""
        return min(builder.max_timestamp, self._now_ms) if builder.max_timestamp >= 0 else self._now_ms

    def _truncate_index(self, path: str, content: bytes | None, keep: int) -> None:
        """Truncates an index to `keep` bytes. `content` is None if there is no file."""
        if content is not None and len(content) > keep:
            self._files.open(path).truncate(keep)

    def _write_indexes(self, base: int, builder: IndexBuilder) -> None:
        for suffix, data in ((".timeindex", builder.times), (".index", builder.offsets)):
            path = self._files.path(base, suffix)
            if self._files.read(path) != bytes(data):
                self._files.replace(path, bytes(data))

    def _load_txn_index(
        self,
        segments: list[Segment],
        segment: Segment,
        is_listed: bool,
        line: Segment | None,
        replayed_from: int,
        aborted: AbortedBySegment,
    ) -> None:
        """Corrects the transaction index of a segment of which all batches from `replayed_from` on were replayed.

        A crash can leave half an entry, entries above the log end, and too few entries above the flushed offset, from
        which on the log is replayed. `line` is the segment's line in the checkpoint.
        """
        path, replayed = self._files.path(segment.base_offset, SUFFIX), aborted.get(segment.base_offset, [])
        is_proved = line is not None and line.txn_index_bytes >= 0 and line.next_offset <= segment.next_offset
        proved_bytes, proved_crc = (line.txn_index_bytes, line.txn_index_crc) if line and is_proved else (0, 0)
        if not is_listed and not replayed and not proved_bytes:
            segment.txn_index_bytes = segment.txn_index_crc = 0
            return
        data = (self._files.read(path) if is_listed else None) or b""
        try:
            whole = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
            entries = decode_aborted_txns(whole, begin=segment.base_offset, end=MAX_OFFSET, where=path)
            known_to = min(max(replayed_from, segment.base_offset), segment.next_offset)
            entries = [entry for entry in entries if entry.last_offset < known_to] + replayed
            encoded = encode_aborted_txns(entries)
            if len(encoded) < proved_bytes or crc32c(encoded[:proved_bytes]) != proved_crc:
                raise Corrupt("transaction index is not as it was synced", where=path)
        except Corrupt as error:
            log.warning("transaction index is rebuilt from the log error=%s", error)
            entries = replay_aborted_txns(self._files, segments, segment, self._producers_max)
            encoded = encode_aborted_txns(entries)
        if encoded != data:
            write_index(self._files, segment, entries)
        segment.txn_index_bytes, segment.txn_index_crc = len(encoded), crc32c(encoded)

    def _delete_segments(self, bases: tuple[int, ...]) -> None:
        """Deletes the segments after a torn one: nobody was promised their offsets."""
        for base in reversed(bases):
            log.warning("deleted a segment after a torn one directory=%s base=%d", self._files.directory, base)
            self._truncated_bytes += self._files.size(self._files.path(base, ".log"))
            for suffix in (".index", ".timeindex", ".txnindex", ".log", ".snapshot"):
                self._files.remove(self._files.path(base, suffix))

    # -- leader epochs ------------------------------------------------------------------------------------------------

    def _load_epochs(self) -> LeaderEpochs | None:
        """Returns the lineage in the checkpoint, or None if the file is invalid."""
        path = self._checkpoint_path(checkpoints.EPOCHS_FILE)
        try:
            return LeaderEpochs(checkpoints.parse_lineage(self._files.read(path) or b"", where=path))
        except Corrupt as error:
            log.warning("leader epochs are rebuilt from the log because their checkpoint is invalid error=%s", error)
            return None

    def _epochs_match(self, epochs: LeaderEpochs, segments: list[Segment]) -> bool:
        """True if the lineage agrees with the batches.

        After a power cut either a truncated log or its lineage may be back in its earlier state. This walks the last
        segment and those in which an epoch begins. In all others it looks at the first batch only.
        """
        starts = {start for _, start in epochs.lineage}
        for segment in segments:
            base = segment.base_offset
            if segment is segments[-1] or any(base < start < segment.next_offset for start in starts):
                walked = self._files.walk_batches(base, 0, check_crc=False)
                seen = ((one.leader_epoch, one.base_offset) for one in walked)
            elif segment.size == 0:
                continue
            else:
                first = decode_header(self._files.log_file(base).pread(0, HEADER_BYTES))
                seen = (one for one in [(first.leader_epoch, first.base_offset)])
            if any(epoch != epochs.epoch_at(offset) for epoch, offset in seen):
                log.warning("leader epoch checkpoint does not match the batches directory=%s", self._files.directory)
                return False
        return True


def rebuild_epochs(files: SegmentFiles, segments: Sequence[Segment], epochs: LeaderEpochs) -> None:
    """Rebuilds `epochs` from the batches of these segments. Entries from before the first segment stay."""
    epochs.truncate_from(segments[0].base_offset)
    for segment in segments:
        for batch in files.walk_batches(segment.base_offset, 0, check_crc=False):
            if batch.leader_epoch != epochs.epoch_at(batch.base_offset):
                epochs.assign(batch.leader_epoch, batch.base_offset)


def find_first_epochs(
    files: SegmentFiles, segments: Sequence[Segment], epochs: LeaderEpochs, start: int
) -> LeaderEpochs:
    """Completes `epochs` down to `start`, from the batches below the first known epoch, and returns them.

    A moved log start removes epochs from their file at once, and is itself saved later. A kill between the two brings
    records back without their epochs. A leader that does not know their epochs would keep followers from truncating
    other records of these offsets.
    """
    if not epochs.lineage or epochs.lineage[0][1] <= start:
        return epochs
    known_from, found = epochs.lineage[0][1], LeaderEpochs()
    for segment in segments:
        if segment.next_offset <= start:
            continue
        for batch in files.walk_batches(segment.base_offset, 0, check_crc=False):
            if batch.base_offset >= known_from:
                break
            if batch.last_offset >= start:
                found.assign(batch.leader_epoch, max(batch.base_offset, start))
        if segment.next_offset >= known_from:
            break
    return LeaderEpochs((*found.lineage, *epochs.lineage))

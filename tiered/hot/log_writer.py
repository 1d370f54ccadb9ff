"""Where a log grows: the active segment, its indexes in memory, producers and leader epochs as of the end.

Each step may fail on a full disk, or be the last before a crash, and may be done again: bytes before index entries,
time entries before offset entries, a segment's line before the next segment's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiered.config.settings import TopicConfig
from tiered.errors import Code, Corrupt, Refused
from tiered.hot import checkpoints
from tiered.hot.index import RELATIVE_MAX, IndexBuilder, position_for
from tiered.hot.leader_epochs import Epochs
from tiered.hot.log_loader import Opened, walk_epochs
from tiered.hot.producer_state import ProducerLimits, ProducerStates
from tiered.hot.recovery import sort_names
from tiered.hot.segment_files import SegmentFiles
from tiered.hot.segment_index import SegmentIndex
from tiered.hot.segments import Proof, Segment, line, lines, must_roll
from tiered.ports import Clock, File
from tiered.records.model import CONTROL, Walked

INDEX_WRITE_BYTES = 1 << 20
"""Bytes of log whose index entries may be in memory only: what a start after a kill checks at most."""
SNAPSHOT_BYTES = 48 << 20
"""Bytes of log after which producers are snapshotted again: with one largest request on top it stays below 64 MiB."""
PROOFS_MAX = 64
"""Lines of one segment in its checkpoint before it is written anew."""
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


class Unsynced:
    """What a crash of the machine could take back. `flushed_offset` bounds what it could not; `noted_to` bounds what
    the segment checkpoint proves, indexes included."""

    def __init__(self, flushed_offset: int) -> None:
        self.flushed_offset = flushed_offset
        self.noted_to = -1
        self.ceiling = flushed_offset
        """The lowest end since the running sync began: what was cut meanwhile was not synced."""
        self.replaced: set[str] = {checkpoints.EPOCHS_FILE, checkpoints.METADATA_FILE}
        """Files to sync beside the log. These two an earlier process may have written and not synced."""
        self.names = True
        self.names_above = True

    def cut(self, end_offset: int) -> None:
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self.noted_to = -1
        self.ceiling = min(self.ceiling, end_offset)
        self.names = True


class Tail:
    """The growing end of one log. `segments` is never empty, its last is the active one."""

    def __init__(
        self,
        files: SegmentFiles,
        clock: Clock,
        index: SegmentIndex,
        opened: Opened,
        unsynced: Unsynced,
        producer_limits: ProducerLimits,
    ) -> None:
        self.files = files
        self.index = index
        self.segments = opened.segments
        self.epochs = opened.epochs
        self.producers = opened.producers
        self.producer_limits = producer_limits
        self.producers.join(producer_limits)
        self.end_offset = opened.segments[-1].next_offset
        self.unsynced = unsynced
        self.unclaimed = ""
        """The topic id of a log without records, as long as nobody looked whether its directory names that topic."""
        self._clock = clock
        self._proofs = 0
        self._epochs_due = False
        self._quiet_below = 0
        """Up to this size of the active segment a batch is written and noted, and nothing else is due..."""
        self._quiet_for: TopicConfig | None = None
        """... by these settings."""
        self.begin(opened.builder, opened.indexed, opened.snapshot_at)

    def begin(self, builder: IndexBuilder, indexed: tuple[int, int], snapshot_at: int) -> None:
        """The last segment is the active one, with `builder` as its indexes, of which its files hold `indexed` bytes;
        the newest producer snapshot is at `snapshot_at`."""
        self.active = self.segments[-1]
        self.builder = builder
        self._proved: Segment | None = None
        self._quiet_below = 0
        base = self.active.base_offset
        self.index.set_active(base, builder)
        self._offsets_written, self._times_written = indexed
        self._index_due = self.active.size + INDEX_WRITE_BYTES
        walked_from = position_for(builder.offsets, snapshot_at - base)[1] if snapshot_at > base else 0
        self._snapshot_due = walked_from + SNAPSHOT_BYTES

    def begin_empty(self, offset: int, interval: int) -> None:
        """A new active segment at `offset`. Its log file comes last: indexes without one are swept up by any start,
        but an empty log, left by a roll that failed half way, would cut off what the old segment still takes."""
        self._confirm_owner()
        for suffix in reversed(SUFFIXES[:3]):
            self.files.open(self.files.path(offset, suffix), create=True).truncate(0)
        self.unsynced.names = True
        self.segments.append(Segment(offset, offset, 0, self._clock.wall_ms()))
        self.begin(IndexBuilder(offset, interval), (0, 0), offset)

    def replace_producers(self, producers: ProducerStates) -> None:
        """Those of another end of the log."""
        self.producers.leave()
        self.producers = producers
        producers.join(self.producer_limits)

    # -- growing ------------------------------------------------------------------------------------------------------

    def write(
        self, data: bytearray | memoryview | bytes, batches: Sequence[Walked], config: TopicConfig, now_ms: int
    ) -> None:
        """Writes batches that begin at the end. `Unavailable` when the disk refuses: then nothing was written."""
        self._confirm_owner()
        active = self.active
        if must_roll(active, len(data), batches[-1].last_offset, config) or self.builder.is_full(
            config.segment_index_bytes
        ):
            self.roll(config.index_interval_bytes)
            active = self.active
        if active.size == 0:
            active.created_ms = now_ms
        position = active.size
        for batch in batches:
            if batch.leader_epoch > self.epochs.latest:
                self.assign_epoch(batch.leader_epoch, batch.base_offset)
        active.size = self.files.log(active.base_offset).append((data,))
        builder = self.builder
        for batch in batches:
            builder.note(position, batch.size, batch.last_offset, batch.max_timestamp)
            position += batch.size
            if batch.producer_id >= 0:
                self._note_producer(batch, data, now_ms)
        self.end_offset = self.producers.end_offset = active.next_offset = batches[-1].last_offset + 1
        active.max_timestamp, active.max_timestamp_offset = builder.max_timestamp, builder.max_timestamp_offset
        self._look_ahead(config)

    def write_usual(self, data: bytearray | memoryview | bytes, batch: Walked, config: TopicConfig) -> bool:
        """The same for one batch of no producer that is remembered, while nothing else is due; whether it was so."""
        active, builder, last_offset = self.active, self.builder, batch.last_offset
        position = active.size
        if (
            position + batch.size >= self._quiet_below
            or config is not self._quiet_for
            or batch.producer_id >= 0
            or batch.leader_epoch != self.epochs.latest
            or last_offset - active.base_offset > RELATIVE_MAX
        ):
            return False
        active.size = self.files.log(active.base_offset).append((data,))
        builder.note(position, batch.size, last_offset, batch.max_timestamp)
        self.end_offset = self.producers.end_offset = active.next_offset = last_offset + 1
        active.max_timestamp, active.max_timestamp_offset = builder.max_timestamp, builder.max_timestamp_offset
        if builder.unindexed == batch.size:  # an entry was written
            self._look_ahead(config)
        return True

    def _look_ahead(self, config: TopicConfig) -> None:
        self._quiet_for = config
        full = self.builder.is_full(config.segment_index_bytes)
        self._quiet_below = 0 if full else min(config.segment_bytes, self._index_due, self._snapshot_due)

    def is_behind(self) -> bool:
        """Whether indexes or producers on disk are further behind the log than a start should have to make up."""
        return self.active.size >= self._index_due or self.active.size >= self._snapshot_due

    def catch_up(self) -> None:
        if self.active.size >= self._snapshot_due:
            self.snapshot()
        self.write_indexes()

    def roll(self, interval: int) -> None:
        """Closes the active segment and begins the next one."""
        old, end = self.active, self.end_offset
        self.builder.finish()
        self.write_indexes()
        old.proof = Proof.of(self.builder.offsets, self.builder.times)
        self.note([old])
        self.unsynced.replaced.add(checkpoints.SEGMENTS_FILE)
        self.snapshot()
        self.files.log(old.base_offset).truncate(old.size)  # gives back what was reserved behind its end
        self.begin_empty(end, interval)

    def assign_epoch(self, epoch: int, start: int) -> None:
        """The leader epoch `epoch` writes from `start` on. Its file is written before any index entry of its batches:
        whoever opens the log walks what no index speaks of, and finds it there."""
        self._epochs_due |= self.epochs.assign(epoch, start)

    def _note_producer(self, batch: Walked, data: bytearray | memoryview | bytes, now_ms: int) -> None:
        if not batch.attributes & CONTROL:
            self.producers.apply(batch, now_ms)
            return
        aborted = self.producers.end_transaction(batch, memoryview(data)[batch.at : batch.at + batch.size], now_ms)
        if aborted is not None:
            self._index_file(".txnindex").append([aborted.encode()])
            self.unsynced.names = True

    # -- beside the log -----------------------------------------------------------------------------------------------

    def write_indexes(self) -> None:
        """Leader epochs and index entries up to the end."""
        if self._epochs_due:
            self.save_epochs()
        times, offsets = self.builder.times, self.builder.offsets
        if len(times) > self._times_written:
            self._times_written = self._index_file(".timeindex").append([bytes(times[self._times_written :])])
        if len(offsets) > self._offsets_written:
            self._offsets_written = self._index_file(".index").append([bytes(offsets[self._offsets_written :])])
        self._index_due = self.active.size + INDEX_WRITE_BYTES

    def snapshot(self) -> None:
        """Producers as of the end; the snapshot before it goes unless it stands where a segment begins.

        One that stands there stays: it may be all that is known of what came before the log, and durable, which its
        successor is not yet.
        """
        end = self.end_offset
        if not self._is_snapshotted(end):
            self.files.replace(self.files.path(end, ".snapshot"), self.producers.snapshot())
            self.unsynced.replaced.add(f"{end:020d}.snapshot")
            self.unsynced.names = True
        bases = {segment.base_offset for segment in self.segments}
        for offset in self.snapshots():
            if offset < end and offset not in bases:
                self.files.remove(self.files.path(offset, ".snapshot"))
        self._snapshot_due = self.active.size + SNAPSHOT_BYTES

    def _is_snapshotted(self, end: int) -> bool:
        path = self.files.path(end, ".snapshot")
        held = self.files.read(path)
        if held is None:
            return False
        try:
            ProducerStates.from_snapshot(held, end, where=path)
        except Corrupt:
            return False
        return True

    def snapshots(self) -> tuple[int, ...]:
        """Offsets of all producer snapshots."""
        return sort_names(self.files.disk.list(self.files.directory)).snapshots

    def claim(self, topic_id: str, fresh: bool) -> None:
        """The directory is of this topic: `Refused` when it says that it is another's. A `fresh` one says nothing."""
        path = f"{self.files.directory}/{checkpoints.METADATA_FILE}"
        if fresh:
            self._create(checkpoints.METADATA_FILE, checkpoints.encode_metadata(topic_id))
            return
        try:
            owner = checkpoints.parse_metadata(self.files.read(path) or b"", where=path)
        except Corrupt:
            self.replace(checkpoints.METADATA_FILE, checkpoints.encode_metadata(topic_id))
        else:
            if owner != topic_id:
                raise Refused(Code.INCONSISTENT_CLUSTER_ID, f"{path} is of topic id {owner}, not {topic_id}")

    def _confirm_owner(self) -> None:
        """Claims what a clean stop did not sync and a power cut may have torn, before the log holds anything: records
        must not pass to a later topic of that name."""
        if self.unclaimed:
            self.claim(self.unclaimed, fresh=False)
            self.unclaimed = ""

    def prove_epochs(self) -> bool:
        """Whether the lineage was not that of the batches; then it is now."""
        walked = Epochs(self.epochs.lineage)
        walk_epochs(self.files, self.segments, walked)
        if walked.lineage == self.epochs.lineage:
            return False
        self.epochs = walked
        self.save_epochs()
        return True

    def save_epochs(self) -> None:
        self.replace(checkpoints.EPOCHS_FILE, checkpoints.encode_lineage(self.epochs.lineage))
        self._epochs_due = False

    def _create(self, name: str, data: bytes) -> None:
        """A small file that was not there; what a crash leaves of it is as good as none."""
        self.unsynced.replaced.add(name)
        self.unsynced.names = True
        self.files.create(f"{self.files.directory}/{name}", data)

    def replace(self, name: str, data: bytes) -> None:
        """A small file of the directory; durable with the next sync."""
        self.unsynced.replaced.add(name)
        self.unsynced.names = True
        self.files.replace(f"{self.files.directory}/{name}", data)

    def note(self, segments: Iterable[Segment]) -> None:
        """Appends lines to the segment checkpoint."""
        path = f"{self.files.directory}/{checkpoints.SEGMENTS_FILE}"
        self.files.open(path, create=True).append([line(segment) for segment in segments])

    def prove(self, as_synced: Segment) -> None:
        """The active segment is durable as far as `as_synced`: from there a start after a power cut checks it. The
        checkpoint is written anew when many of its lines are older than the last such one."""
        self._proved = as_synced
        self._proofs += 1
        if self._proofs < PROOFS_MAX:
            self.note([as_synced])
        else:
            self.renote()

    def renote(self) -> None:
        """The segment checkpoint anew, without old lines and segments that are gone."""
        self._proofs = 0
        self.replace(checkpoints.SEGMENTS_FILE, lines([*self.segments[:-1], self._proved or self.active]))

    @property
    def unproved_bytes(self) -> int:
        """Bytes of the active segment that no sync has proved."""
        return self.active.size - (self._proved.size if self._proved is not None else 0)

    def _index_file(self, suffix: str) -> File:
        return self.files.open(self.files.path(self.active.base_offset, suffix), create=True)

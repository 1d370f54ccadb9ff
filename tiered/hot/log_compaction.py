"""Compaction of one log: how far it is clean, what may be cleaned, and cleans.

Keeps I26. A log is marked as compacted before it gets a gap between offsets: a start then takes a gap for lawful.
Records that a truncation takes are not clean any more.
"""

from __future__ import annotations

import logging

from tiered.compaction.cleanable_range import CleanableRange, LogEnds, find_cleanable, is_compacted
from tiered.config.settings import TopicConfig
from tiered.errors import Corrupt, Unavailable
from tiered.hot import checkpoints
from tiered.hot.checkpoints import CompactionState
from tiered.hot.flush import GroupFlush
from tiered.hot.log_cleaning import CleanerResources, CleanResult, LogChanged, LogCleaning, segment_facts
from tiered.hot.log_reader import LogReader
from tiered.hot.log_writer import LogWriter
from tiered.hot.retention import segment_end_times
from tiered.hot.segment_deletion import SegmentDeletion
from tiered.hot.segment_files import SegmentFiles
from tiered.hot.segment_swap import SegmentSwap
from tiered.ports import Clock

log = logging.getLogger(__name__)


class LogCompaction:
    """The compaction of one log. `state` is the last clean; None for a log in which compaction left no gap between
    offsets."""

    __slots__ = ("_clock", "_config", "_deletion", "_group_flush", "_reader", "_swap", "_writer", "state")

    def __init__(
        self,
        writer: LogWriter,
        reader: LogReader,
        deletion: SegmentDeletion,
        group_flush: GroupFlush,
        clock: Clock,
        config: TopicConfig,
        state: CompactionState | None,
    ) -> None:
        self.state = state
        self._writer = writer
        self._reader = reader
        self._deletion = deletion
        self._group_flush = group_flush
        self._clock = clock
        self._swap: SegmentSwap | None = None
        """The swaps of the last clean; None before the first. Most logs are never cleaned."""
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Applies changed settings."""
        self._config = config
        self._writer.index.may_have_gaps = self.state is not None or is_compacted(config)

    @property
    def may_have_gaps(self) -> bool:
        """True if compaction removes offsets of this log, or once did."""
        return self._writer.index.may_have_gaps

    def note_load(self) -> None:
        """Corrects the state of a log that was just loaded: it may end below its clean part, and another program may
        have cleaned it."""
        writer = self._writer
        self.note_log_end()
        if self.state is None and is_compacted(self._config) and writer.end_offset > writer.segments[0].base_offset:
            self.mark()

    def mark(self) -> None:
        """Marks the log before it gets a gap. The next flush makes the mark durable, together with the gap."""
        if self.state is None:
            self._note(CompactionState())

    def cancel_swap(self) -> None:
        """Gives up the swap that is not done: segments are about to be dropped."""
        if self._swap is not None:
            self._swap.cancel()

    def end_clean(self) -> None:
        """Ends the clean that runs: it has read records that are about to be truncated."""
        if self._swap is not None:
            self._swap.on_truncation()

    def note_log_end(self) -> None:
        """Notes that nothing above the log end is clean, after it moved down."""
        if self.state is not None and self.state.clean_to > self._writer.end_offset:
            self._note(self.state._replace(clean_to=self._writer.end_offset))

    def find_cleanable(self, start_offset: int, high_watermark: int, now_ms: int | None = None) -> CleanableRange:
        """Returns the part of a log from `start_offset` on that may be cleaned, now by default. Records that a power
        cut could take stay as they are."""
        writer, state = self._writer, self.state or CompactionState()
        *closed, active = writer.segments
        start = max(start_offset, writer.segments[0].base_offset)
        limit = min(high_watermark, writer.unsynced.flushed_offset)
        ends = LogEnds(start, state.clean_to, limit, writer.first_unstable_offset, writer.end_offset)
        at_ms = self._clock.wall_ms() if now_ms is None else now_ms
        facts = map(segment_facts, closed, segment_end_times(closed, active))
        return find_cleanable([*facts], ends, self._config, at_ms)

    async def clean(
        self,
        found: CleanableRange,
        resources: CleanerResources,
        now_ms: int | None = None,
        *,
        keeps_tombstones: bool = False,
    ) -> CleanResult:
        """Cleans the closed segments in `found`, which `find_cleanable` has just returned. One clean at a time.

        Tombstones go by `now_ms`, now by default. The whole log is durable first: a marker above the segments decides
        which of their records go. Raises `LogChanged`, `Corrupt` for a batch that cannot be read, and `Unavailable` of
        the disk.
        """
        writer = self._writer
        swap = self._swap = SegmentSwap(writer, self._group_flush.status, self._deletion, self._reader.clear_hints)
        if writer.unsynced.flushed_offset < writer.end_offset:
            await self._group_flush.flush(None)
        if self.state is None:
            await self._save(CompactionState(), swap)
        wall_ms = self._clock.wall_ms()
        cleaning = LogCleaning(
            writer, swap, self._config, found, resources, wall_ms if now_ms is None else now_ms, wall_ms,
            keeps_tombstones=keeps_tombstones,
        )  # fmt: skip
        try:
            result = await cleaning.run()
        except Unavailable as error:
            if error.final or swap.is_half_done:
                self._group_flush.status.fail(f"a clean of the log failed: {error}", final=error.final)
            raise
        clean_to = min(result.clean_to, writer.end_offset)
        await self._save(CompactionState(clean_to, wall_ms, result.bytes_before, result.bytes_after), swap)
        return result

    async def _save(self, state: CompactionState, swap: SegmentSwap) -> None:
        files, self.state = self._writer.files, state
        data = checkpoints.encode_compaction(state)
        try:
            await checkpoints.save(files.disk, files.directory, checkpoints.COMPACTION_FILE, data)
        except Unavailable as error:
            if error.final or not swap.is_truncated:
                raise
            raise LogChanged from error  # the truncation has written the file meanwhile

    def _note(self, state: CompactionState) -> None:
        self.state = state
        self._writer.index.may_have_gaps = True
        self._writer.replace(checkpoints.COMPACTION_FILE, checkpoints.encode_compaction(state))


def load_state(files: SegmentFiles) -> CompactionState | None:
    """Returns the state of the last clean, or None for a log that is not marked. A damaged file still marks the log."""
    path = f"{files.directory}/{checkpoints.COMPACTION_FILE}"
    data = files.read(path)
    if data is None:
        return None
    try:
        return checkpoints.parse_compaction(data, where=path)
    except Corrupt as error:
        log.warning("the log is cleaned from its start error=%s", error)
        return CompactionState()

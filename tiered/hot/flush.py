"""One fsync for many callers: makes a log durable up to an offset.

Records count as flushed only if the names of their files are durable too, and if no truncation removed them while the
fsync ran. A failed fsync is final: the state of the page cache is unknown from then on, and a second fsync that
succeeds proves nothing.

An fsync is a task of its own, which goes on if its caller is cancelled. A caller that tries again after a timeout would
otherwise begin it anew each time. On a disk that takes longer than the timeout, none would come to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tiered.errors import Unavailable
from tiered.hot import checkpoints
from tiered.hot.log_status import LogStatus
from tiered.hot.log_writer import SUFFIXES, LogWriter
from tiered.hot.segments import IndexChecksums, Segment
from tiered.hot.unsynced_truncations import UnsyncedTruncations
from tiered.metrics import Metrics
from tiered.ports import Clock

_BUCKETS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class _Extent(NamedTuple):
    """The part of a log that one fsync covers, as of its begin. `synced` has the facts of the segment `active`."""

    whole: bool
    began_ns: int
    end: int
    since: int
    active: Segment
    synced: Segment


class GroupFlush:
    """The fsyncs of one log. A failed one fails the log. If the log is closed, the fsync that runs raises `Unavailable`
    at its next step."""

    __slots__ = ("_clock", "_running", "_seconds", "_truncations", "_writer", "progress_ns", "status")

    def __init__(
        self, writer: LogWriter, status: LogStatus, truncations: UnsyncedTruncations, clock: Clock, metrics: Metrics
    ) -> None:
        self._writer = writer
        self.status = status
        self._truncations = truncations
        self._clock = clock
        self._running: asyncio.Task[Unavailable | None] | None = None
        self.progress_ns: int | None = None
        """When the fsync that runs began, or synced its last file; None if none runs."""
        self._seconds = metrics.histogram("tiered_log_flush_seconds", "Time of one group fsync.", _BUCKETS)

    async def flush(self, up_to: int | None) -> int:
        """Makes the log durable below `up_to` and returns the flushed offset.

        With None it also checkpoints the indexes, so that a start after a power cut checks only what follows. The
        truncations made before are durable then. Callers that come while an fsync runs share the next one.
        """
        made, flushed = self._truncations.made, await self._flush_to(up_to)
        self._truncations.mark_synced(made if up_to is None else 0)
        return flushed

    async def _flush_to(self, up_to: int | None) -> int:
        unsynced = self._writer.unsynced
        target = self._writer.end_offset if up_to is None else up_to
        while True:
            self.status.check_syncable(self._writer.files.directory)
            reached = unsynced.flushed_offset
            if up_to is None:
                reached = -1 if unsynced.replaced_files else unsynced.checkpointed_to
            if reached >= min(target, self._writer.end_offset):
                return unsynced.flushed_offset
            if self._running is not None and not self._running.done():
                await asyncio.shield(self._running)
                continue
            try:
                extent = self._begin_sync(up_to is None)
            except Unavailable as error:
                self._note_failure(error)
                raise
            self.progress_ns = extent.began_ns
            running = self._running = asyncio.create_task(self._run_sync(extent), name="group-fsync")
            failure = await asyncio.shield(running)
            if failure is not None:
                raise failure

    async def _run_sync(self, extent: _Extent) -> Unavailable | None:
        """Returns the error instead of raising it: perhaps nobody waits for the fsync any longer."""
        try:
            await self._sync(extent)
        except Unavailable as error:
            self._note_failure(error)
            return error
        finally:
            self._running = self.progress_ns = None
        return None

    def _note_failure(self, error: Unavailable) -> None:
        if error.final:
            self.status.fail(str(error), final=True)

    def _begin_sync(self, whole: bool) -> _Extent:
        """Writes what the fsync has to cover, in the turn of its caller: what is appended later belongs to the next
        one."""
        began, writer, unsynced = self._clock.mono_ns(), self._writer, self._writer.unsynced
        end = unsynced.lowest_end = writer.end_offset
        if whole:
            writer.write_indexes()
        else:
            writer.write_txn_index()
        since = min(unsynced.checkpointed_to, unsynced.flushed_offset) if whole else unsynced.flushed_offset
        return _Extent(whole, began, end, since, writer.active, self._copy_active())

    async def _sync(self, extent: _Extent) -> None:
        self._check_open()
        writer, unsynced = self._writer, self._writer.unsynced
        whole, began, end, since, active, synced = extent
        for segment in list(writer.segments):
            if segment.next_offset > since or segment is active:
                for path in self._paths_to_sync(segment, with_indexes=whole or segment is not active):
                    # A truncation or a drop may have removed the segment during the fsync before this one.
                    if any(present is segment for present in writer.segments):
                        await writer.files.open(path).sync()
                        self._check_open()
        await self._sync_directory()
        self._check_open()
        if whole and unsynced.lowest_end == end and active is writer.active:
            writer.checkpoint_active(synced)
            await writer.files.open(f"{writer.files.directory}/{checkpoints.SEGMENTS_FILE}").sync()
            self._check_open()
            unsynced.checkpointed_to = min(end, unsynced.lowest_end)
        unsynced.flushed_offset = max(unsynced.flushed_offset, min(end, unsynced.lowest_end))
        self._seconds.observe((self._clock.mono_ns() - began) / 1e9)

    def _check_open(self) -> None:
        """Notes the progress of the fsync. Raises `Unavailable` if the log was closed."""
        self.progress_ns = self._clock.mono_ns()
        self.status.check_open(self._writer.files.directory)

    def _copy_active(self) -> Segment:
        """Copies the facts of the active segment as of now, for the checkpoint line that is written once they are
        durable."""
        active, builder = self._writer.active, self._writer.builder
        return Segment(
            active.base_offset,
            active.next_offset,
            active.size,
            active.created_ms,
            builder.max_timestamp,
            builder.max_timestamp_offset,
            IndexChecksums.of(builder.offsets, builder.times),
            active.txn_index_bytes,
            active.txn_index_crc,
        )

    def _paths_to_sync(self, segment: Segment, *, with_indexes: bool) -> Iterator[str]:
        files = self._writer.files
        yield files.path(segment.base_offset, ".log")
        if with_indexes:
            beside = [files.path(segment.base_offset, suffix) for suffix in SUFFIXES[1:4]]
            beside.append(files.path(segment.next_offset, ".snapshot"))
            for path in beside:
                if files.disk.exists(path):
                    yield path

    async def _sync_directory(self) -> None:
        """Syncs replaced files and the directory. The first call also syncs the parent directories, which may be new
        themselves."""
        unsynced = self._writer.unsynced
        replaced, directory_changed, parents_changed = (
            unsynced.replaced_files,
            unsynced.directory_changed,
            unsynced.parents_changed,
        )
        unsynced.replaced_files, unsynced.directory_changed, unsynced.parents_changed = frozenset(), False, False
        try:
            await self._sync_files(sorted(replaced), directory_changed, parents_changed)
        except BaseException:
            # The fsync failed or was cancelled half way: the next one repeats all of it.
            unsynced.replaced_files |= replaced
            unsynced.directory_changed |= directory_changed
            unsynced.parents_changed |= parents_changed
            raise

    async def _sync_files(self, replaced_files: Iterable[str], directory_changed: bool, parents_changed: bool) -> None:
        files = self._writer.files
        for name in replaced_files:
            path = f"{files.directory}/{name}"
            if files.disk.exists(path):
                file = files.disk.open(path)
                try:
                    await file.sync()
                finally:
                    file.close()
                self._check_open()
        if directory_changed:
            await files.disk.sync_dir(files.directory)
            self._check_open()
        if parents_changed:
            folders = files.directory.split("/")[:-1]
            for depth in range(len(folders), -1, -1):
                await files.disk.sync_dir("/".join(folders[:depth]) or ".")

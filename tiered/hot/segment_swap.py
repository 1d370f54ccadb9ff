"""Replaces a run of closed segments by one cleaned segment, so that a crash at any step leaves one whole log.

The names are Kafka's. The cleaned files are fsynced as `.cleaned` and then renamed to `.swap`, the log file last. Once
these names are durable the old files are renamed to `.deleted`, and the `.swap` files get their final names. A start
removes `.cleaned` files, and finishes a swap whose log file is there as `.swap` (interrupted_swaps.py). Readers in old
files can finish. Keeps I26.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiered.errors import Unavailable
from tiered.hot import checkpoints
from tiered.hot.interrupted_swaps import CLEANED, PARTS, SWAP
from tiered.hot.log_status import LogStatus
from tiered.hot.log_writer import LogWriter
from tiered.hot.segment_deletion import SegmentDeletion
from tiered.hot.segments import Segment


class SegmentSwap:
    """The swaps of one log, one at a time. `forget_positions` is called when positions in the replaced files end."""

    __slots__ = ("_deletion", "_forget_positions", "_pending", "_writer", "is_half_done", "is_truncated", "status")

    def __init__(
        self, writer: LogWriter, status: LogStatus, deletion: SegmentDeletion, forget_positions: Callable[[], None]
    ) -> None:
        self.status = status
        """Once the log is closed nothing is renamed in its directory: it may belong to another log."""
        self._writer = writer
        self._forget_positions = forget_positions
        self._deletion = deletion
        self._pending = -1
        """Base offset of the segment whose files are `.swap`, or -1."""
        self.is_half_done = False
        """True if the disk failed in the middle of an exchange: the directory has to be opened again."""
        self.is_truncated = False
        """True if the log was truncated since the clean began that runs. Truncated records supersede none that stay,
        and a segment that was truncated may have grown again."""

    async def replace(self, group: Sequence[Segment], cleaned: Segment, now_ms: int) -> bool:
        """Puts `cleaned`, whose `.cleaned` files are fsynced, in the place of `group`.

        Returns False if the log no longer has the group: a truncation or a deletion came first. Raises `Unavailable`.
        """
        files, base = self._writer.files, cleaned.base_offset
        try:
            if await self._prepare(group, cleaned):
                self._exchange(group, cleaned, now_ms)
                await files.disk.sync_dir(files.directory)
                return True
        except Unavailable:
            if not self.is_half_done and not self.status.is_closed:
                self._give_up(base)
            raise
        if not self.status.is_closed:
            self._give_up(base)
        return False

    async def _prepare(self, group: Sequence[Segment], cleaned: Segment) -> bool:
        """Makes the `.swap` files durable. Returns False if the log no longer has the group."""
        writer, files, base = self._writer, self._writer.files, cleaned.base_offset
        if not self.has_all(group):
            return False
        others = [each for each in writer.segments[:-1] if all(each is not old for old in group)]
        writer.rewrite_checkpoint([*others, cleaned])
        await files.open(f"{files.directory}/{checkpoints.SEGMENTS_FILE}").sync()
        if not self.has_all(group):
            return False
        self._pending = base
        for suffix in PARTS:
            path = files.path(base, suffix)
            if files.disk.exists(path + CLEANED):
                files.disk.rename(path + CLEANED, path + SWAP)
        await files.disk.sync_dir(files.directory)
        return self._pending == base and self.has_all(group)

    def _exchange(self, group: Sequence[Segment], cleaned: Segment, now_ms: int) -> None:
        """Replaces the files of the group, without a pause: no reader sees a state in between."""
        files, base = self._writer.files, cleaned.base_offset
        self.is_half_done = True
        self._forget_positions()
        self._deletion.retire(group, now_ms)
        for suffix in PARTS:
            path = files.path(base, suffix)
            if files.disk.exists(path + SWAP):
                files.forget(path)
                files.disk.rename(path + SWAP, path)
        self._install(group, cleaned)
        self.is_half_done = False
        self._pending = -1

    def _give_up(self, base: int) -> None:
        """Removes what a swap that is not done has left."""
        self._pending = -1
        self.remove_files(base, SWAP)
        self.remove_files(base, CLEANED)
        self._writer.rewrite_checkpoint()

    def cancel(self) -> None:
        """Gives up a swap that is not done. The caller is about to truncate or drop segments: a later start must not
        bring them back."""
        if self._pending >= 0:
            self.remove_files(self._pending, SWAP)
            self._pending = -1

    def on_truncation(self) -> None:
        """Ends the clean that runs: it has read records that are about to go."""
        self.is_truncated = True
        self.cancel()

    def remove_files(self, base_offset: int, suffix: str) -> None:
        """Removes the files of a segment that are not in use yet, the log file first."""
        for part in reversed(PARTS):
            self._writer.files.remove(self._writer.files.path(base_offset, part) + suffix)

    def has_all(self, group: Sequence[Segment]) -> bool:
        """True if the log is open and was not truncated, and its closed segments still have the whole group."""
        if self.status.is_closed or self.is_truncated:
            return False
        closed = self._writer.segments[:-1]
        return all(any(each is old for each in closed) for old in group)

    def _install(self, group: Sequence[Segment], cleaned: Segment) -> None:
        writer = self._writer
        first = next(number for number, each in enumerate(writer.segments) if each is group[0])
        for old in group:
            writer.index.unmap(old.base_offset)
            writer.txn_index.drop(old.base_offset)
        writer.segments[first : first + len(group)] = [cleaned]
        writer.loose_snapshots = None  # those of the group may be at no base any more
        if cleaned.txn_index_bytes:
            writer.txn_index.bases = tuple(sorted((*writer.txn_index.bases, cleaned.base_offset)))
        writer.rewrite_checkpoint()

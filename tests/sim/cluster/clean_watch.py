"""Watches cleans of logs on simulated disks, and passes each to the reference before its result gets a name that a
start would take (I26)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from tests.sim.cluster.compacted_logs import CompactedLog
from tests.sim.cluster.expiry import LogBatch
from tests.sim.harness.compaction_rules import CleanBounds
from tests.sim.harness.disk import SimDisk
from tests.sim.harness.durable_bytes import Inode
from tiered.compaction.cleanable_range import CleanableRange, is_compacted
from tiered.config.settings import TopicConfig
from tiered.hot.interrupted_swaps import CLEANED
from tiered.hot.log_cleaning import CleanerResources, CleanResult, LogCleaning
from tiered.hot.log_writer import LogWriter
from tiered.hot.segment_swap import SegmentSwap
from tiered.hot.segments import Segment


class JudgedLog(NamedTuple):
    """A log whose cleans are judged: it stands for `batches`, of which those below `committed_end` are committed, and
    those below `cold_end` in the bucket."""

    compacted: CompactedLog
    batches: Sequence[LogBatch]
    committed_end: int
    log_start: int = 0
    max_clock_skew_ms: int = 0
    cold_end: int = 0


class RunningClean(NamedTuple):
    """A clean of a log on a disk. The swap is kept, so that no other one gets its identity."""

    swap: SegmentSwap
    config: TopicConfig
    now_ms: int
    keeps_tombstones: bool
    first_dirty: int


class CleanWatch:
    """The hooks. `find` returns the log of a writer as the model has it, None if cleans of it are not judged."""

    def __init__(self, find: Callable[[LogWriter], JudgedLog | None]) -> None:
        self._find = find
        self._cleans: dict[int, RunningClean] = {}
        """By swap: the clean that runs."""

    @property
    def hooks(self) -> tuple[tuple[type[Any] | ModuleType, str, Callable[[Any], Any]], ...]:
        """Returns what to wrap: owner, name, and the function that makes a new one of the original."""
        return (
            (LogCleaning, "__init__", self._begin),
            (LogCleaning, "run", self._run),
            (SegmentSwap, "_prepare", self._prepare),
        )

    def _begin(self, original: Any) -> Any:
        def begin(
            cleaning: LogCleaning, writer: LogWriter, swap: SegmentSwap, config: TopicConfig, found: CleanableRange,
            resources: CleanerResources, now_ms: int, wall_ms: int, *, keeps_tombstones: bool,
        ) -> None:  # fmt: skip
            original(
                cleaning, writer, swap, config, found, resources, now_ms, wall_ms, keeps_tombstones=keeps_tombstones
            )
            judged = self._find(writer)
            is_tiered = judged is not None and judged.cold_end > 0  # older records of any key may be in the bucket
            self._cleans[id(swap)] = RunningClean(swap, config, now_ms, is_tiered, found.first_dirty)

        return begin

    def _run(self, original: Any) -> Any:
        async def run(cleaning: LogCleaning) -> CleanResult:
            result: CleanResult = await original(cleaning)
            writer = cleaning._writer
            judged, end = self._find(writer), result.clean_to
            if judged is not None and not cleaning._swap.status.is_closed and writer.end_offset >= end:
                held = read_segments(writer, end)
                judged.compacted.check_clean_part(judged.batches, held, judged.log_start, end)
            return result

        return run

    def _prepare(self, original: Any) -> Any:
        async def prepare(swap: SegmentSwap, group: Sequence[Segment], cleaned: Segment) -> bool:
            self._judge(swap, group, cleaned)
            done: bool = await original(swap, group, cleaned)
            return done

        return prepare

    def _judge(self, swap: SegmentSwap, group: Sequence[Segment], cleaned: Segment) -> None:
        writer, running = swap._writer, self._cleans[id(swap)]
        judged = self._find(writer)
        if judged is None or not swap.has_all(group):
            return
        lag_ms = running.config.min_compaction_lag_ms
        bounds = CleanBounds(
            judged.committed_end, writer.segments[-1].base_offset, running.now_ms, running.config.delete_retention_ms,
            running.now_ms - lag_ms + judged.max_clock_skew_ms if lag_ms else 2**62, running.keeps_tombstones,
            judged.log_start, running.first_dirty,
        )  # fmt: skip
        base = cleaned.base_offset
        after = read_segment(writer, base, cleaned.size, CLEANED)
        if not is_compacted(running.config):
            judged.compacted.report(f"a log with cleanup.policy={running.config.cleanup_policy} is cleaned")
        judged.compacted.on_clean(
            judged.batches,
            b"".join(read_segment(writer, each.base_offset, each.size) for each in group),
            after,
            cleaned.next_offset,
            bounds,
            read_segments(writer, base),
        )
        indexes = [read_file(writer, base, suffix + CLEANED) for suffix in (".index", ".timeindex")]
        judged.compacted.check_indexes(base, after, *indexes)


def read_segments(writer: LogWriter, end: int) -> bytes:
    """Returns the bytes of the segments that begin below an offset."""
    return b"".join(
        read_segment(writer, each.base_offset, each.size) for each in writer.segments if each.base_offset < end
    )


def read_segment(writer: LogWriter, base: int, size: int, suffix: str = "") -> bytes:
    """Returns the bytes of a segment; reads past the disk's faults."""
    return read_file(writer, base, ".log" + suffix)[:size]


def read_file(writer: LogWriter, base: int, suffix: str) -> bytes:
    """Returns the bytes of a file of a segment, none if it is not there."""
    disk = writer.files.disk
    assert isinstance(disk, SimDisk)
    node = disk._find(writer.files.path(base, suffix))
    return bytes(node.data) if isinstance(node, Inode) else b""

"""Cleans of compacted topics in the bucket, judged at the manifest change that names their objects (I20, I21, I23,
I26).

A run of segments may be replaced by cleaned successors that cover the same offsets. A replaced object stays for the
readers that hold an older manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from tests.sim.cluster.compacted_logs import CompactedLog, held_batches_of
from tests.sim.cluster.expiry import LogBatch
from tests.sim.harness.compaction_rules import CleanBounds
from tiered.cold.collector import Collector
from tiered.cold.manifest import Manifest, SegmentEntry
from tiered.config.settings import TopicConfig
from tiered.ids import PartitionId
from tiered.object_store.memory import StoredObject

GRACE_SHARE = 0.98
"""Clocks drift: a deletion may come that much earlier."""


IS_SWEEP = ContextVar("IS_SWEEP", default=False)


def mark_sweep(original: Any) -> Any:
    """Wraps a sweep, so that its deletions are known as such."""

    async def sweep(self: Collector, *args: Any) -> list[str]:
        token = IS_SWEEP.set(True)
        try:
            found: list[str] = await original(self, *args)
            return found
        finally:
            IS_SWEEP.reset(token)

    return sweep


class ColdLog(NamedTuple):
    """A partition as the model has it when its manifest changes. `configs` were in force lately."""

    compacted: CompactedLog
    committed: Mapping[int, LogBatch]
    committed_end: int
    configs: Sequence[TopicConfig]
    max_clock_skew_ms: int


class Replacement(NamedTuple):
    """The end of an object that a clean replaced: it went to `next_offset`."""

    at_ns: int
    next_offset: int
    epoch: int


class ColdCleans:
    """The segments of each compacted partition, as its last manifest names them."""

    def __init__(self, objects: Callable[[], Mapping[str, StoredObject]], report: Callable[[str, str], None]) -> None:
        self.cleans = 0
        self.replaced: dict[str, Replacement] = {}
        """By key: the objects that a clean replaced."""
        self._objects = objects
        self._report = report
        self._segments: dict[PartitionId, list[SegmentEntry]] = {}
        self._clean_to: dict[PartitionId, int] = {}

    def on_manifest(self, manifest: Manifest, segments: list[SegmentEntry], log: ColdLog, now_ns: int) -> None:
        """Judges the change from the manifest before to this one, which names these segments from its log start on."""
        before = self._segments.get(manifest.partition_id, [])
        self._segments[manifest.partition_id] = segments
        clean_to = max(self._clean_to.get(manifest.partition_id, 0), 0)
        self._clean_to[manifest.partition_id] = manifest.clean_to
        known, old_end = {each.key for each in before}, before[-1].next_offset if before else 0
        name, at = log.compacted.name, segments[0].base_offset if segments else 0
        for each in segments:
            if each.base_offset != at:
                self._report("I21", f"{name}: cold goes on at {each.base_offset} after {at}")
            at = each.next_offset
            if each.key not in self._objects():
                self._report("I23", f"{name}: {each.key} is named and not there")
                return
        new = [each for each in segments if each.key not in known]
        if new and new[-1].next_offset > old_end:
            log.compacted.on_upload(_in_order(log), old_end, new[-1].next_offset)
        for each in new:
            if each.base_offset >= old_end:
                for finding in self.check_object(log, each):
                    self._report(*finding)
        for run in _runs_below(new, old_end):
            self._check_run(manifest, before, segments, run, log, now_ns, clean_to)
        if manifest.clean_to >= 0 and manifest.cleaned_ms >= 0 and new:
            covered = b"".join(self._data(each) for each in segments if each.base_offset < manifest.clean_to)
            log.compacted.check_clean_part(
                _in_order(log), covered, manifest.log_start_offset, min(manifest.clean_to, old_end)
            )

    def _check_run(
        self,
        manifest: Manifest,
        before: Sequence[SegmentEntry],
        segments: Sequence[SegmentEntry],
        run: Sequence[SegmentEntry],
        log: ColdLog,
        now_ns: int,
        first_dirty: int,
    ) -> None:
        base, end, name = run[0].base_offset, run[-1].next_offset, log.compacted.name
        gone = [each for each in before if base <= each.base_offset < end]
        if not gone or (gone[0].base_offset, gone[-1].next_offset) != (base, end):
            self._report("I20", f"{name}: the successors of {base} to {end} replace {[each.key for each in gone]}")
            return
        if not any("compact" in each.cleanup_policy and each.remote_storage_enable for each in log.configs):
            log.compacted.report(f"objects are cleaned with {[each.cleanup_policy for each in log.configs]}")
        for each in gone:
            self.replaced[each.key] = Replacement(now_ns, each.next_offset, manifest.leader_epoch)
            if each.key not in self._objects():
                self._report("I23", f"{name}: {each.key} is gone before its successor is named")
                return
        self.cleans += 1
        now_ms = max(each.cleaned_ms for each in run)
        lag_ms = min(each.min_compaction_lag_ms for each in log.configs)
        bounds = CleanBounds(
            log.committed_end, manifest.cold_end_offset, now_ms, min(each.delete_retention_ms for each in log.configs),
            now_ms - lag_ms + log.max_clock_skew_ms if lag_ms else 2**62, log_start=manifest.log_start_offset,
            first_dirty=first_dirty,
        )  # fmt: skip
        log.compacted.on_clean(
            _in_order(log),
            b"".join(map(self._data, gone)),
            b"".join(map(self._data, run)),
            end,
            bounds,
            b"".join(self._data(each) for each in segments if each.base_offset < base),
        )

    def check_object(self, log: ColdLog, entry: SegmentEntry) -> Iterator[tuple[str, str]]:
        """I20: an object has committed records only. I26: it lacks what cleans have removed, and nothing else."""
        held = held_batches_of(self._data(entry), check_crc=True)
        found, hole = log.compacted.restore(entry.base_offset, held, entry.next_offset)
        wrong = next((each for each in found if log.committed.get(each.base) != each), None)
        if wrong is not None and wrong.last >= entry.base_offset:
            committed = log.committed.get(wrong.base)
            yield "I20", f"{log.compacted.name}: {entry.key} holds {wrong}, committed is {committed}"
        if hole:
            yield "I26", f"{entry.key}: {hole}"

    def on_delete(self, keys: Sequence[str], now_ns: int, grace_ms: int) -> None:
        """I23: a replaced object stays for the readers that hold an older manifest. A sweep knows the age of an object
        only; readers that miss one find the next manifest."""
        for key in () if IS_SWEEP.get() else keys:
            gone = self.replaced.get(key)
            if gone is not None and now_ns - gone.at_ns < grace_ms * GRACE_SHARE * 1e6:
                ms = (now_ns - gone.at_ns) // 1_000_000
                self._report("I23", f"{key} goes {ms} ms after it was replaced, readers have {grace_ms} ms")

    def _data(self, entry: SegmentEntry) -> bytes:
        stored = self._objects().get(entry.key)
        return bytes(stored.data[: entry.log_bytes]) if stored is not None else b""


def _in_order(log: ColdLog) -> list[LogBatch]:
    return [batch for _, batch in sorted(log.committed.items())]


def _runs_below(new: Sequence[SegmentEntry], end: int) -> Iterator[list[SegmentEntry]]:
    """Yields runs of segments that follow each other, of those that begin below an offset."""
    run: list[SegmentEntry] = []
    for each in new:
        if each.base_offset >= end:
            continue
        if run and run[-1].next_offset != each.base_offset:
            yield run
            run = []
        run.append(each)
    if run:
        yield run

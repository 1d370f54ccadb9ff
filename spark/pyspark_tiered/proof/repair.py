"""Makes a table equal to the log: restores rows that are missing or changed, removes rows that are duplicate or extra.

One version of the table is compared with the log. Then each partition at fault gets one Delta transaction that starts
at that version. The transaction removes the files with wrong rows, adds them without these rows, and adds the right
rows from the log. The transaction fails if a load or another repair moved the partition meanwhile, or another writer
removed one of the files. Then the table is compared again.

Therefore a kill leaves each partition either repaired or not, and two repairs at once duplicate nothing. The last
commit records up to which version the table is equal to the log. That commit comes only after a comparison without
faults.

A data file that is gone counts as a file without rows: the log gives again those that it still holds, all of them by
the transaction that takes the file out of the table. The others are named as gaps.

Compaction may have taken the record of a row after the load: such a row stays, and so does one of equal rows with one
offset. The log is looked at again before a row is removed because no record of it is there.

Rows that were erased lawfully are not restored, and are removed if they are there. The record of an erasure is read
after the version that is compared. An erasure commits after its record, so a commit of either fails if the other's
came in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING

from pyspark_tiered.delta import delta_state, table_features, topic_table
from pyspark_tiered.delta.data_files import TableFile
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.snapshot import Snapshot
from pyspark_tiered.delta.table_form import Advance, LoadedFile, Range, ReplacedFile
from pyspark_tiered.load.convert import ConversionTask, RawForm, convert
from pyspark_tiered.load.native_engine import OnTask, open_engine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.log.bucket import check_table, check_topic, never_loaded
from pyspark_tiered.log.plan import ColdPartition, ColdTopic, Split, cleaned_ranges, splits
from pyspark_tiered.proof.comparison import (
    KEPT_ONCE,
    Comparison,
    FaultyRange,
    TaskRunner,
    find_gaps,
    read_cold_topic,
    read_ends,
)
from pyspark_tiered.proof.erase import remove_erased_values
from pyspark_tiered.proof.erasures import explain_erased, join_ranges, read_erasures
from pyspark_tiered.proof.gaps import Gap
from pyspark_tiered.proof.rewrite import RowChooser, join_faults, remove_rows, snapshot_after
from pyspark_tiered.proof.verify import GAPS_MAX, explain_holes
from tiered.errors import Code, Corrupt, Refused, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

ATTEMPTS = 10
"""Comparisons in a row after which no commit succeeded, or the same faults were found again."""
RANGES_MAX = 100_000
"""Ranges of offsets that are repaired after one comparison. The next comparison finds the rest."""
REMOVED_KINDS = ("changed", "duplicate", "extra", "erased", KEPT_ONCE)
RESTORED_KINDS = ("missing", "changed", "duplicate")


@dataclass(frozen=True, slots=True)
class RepairProgress:
    """Progress of a repair. `step` is compared, mended or done.

    `rows` were restored or replaced, and the rows of `taken_out` offsets removed. The rows of the `gaps` cannot be
    restored, because the log no longer holds them.
    """

    step: str
    table: str
    rows: int = 0
    taken_out: int = 0
    gaps: tuple[Gap, ...] = ()


def repair(
    store: str,
    topic: str,
    warehouse: str,
    progress: Callable[[RepairProgress], None] = lambda _: None,
    *,
    null_timestamps: bool = False,
    spark: SparkSession | None = None,
    split_bytes: int | None = None,
    on_task: OnTask = lambda *_: None,
) -> RepairProgress:
    """Repairs the table `<warehouse>/<topic>`. Another call, also after a kill, goes on from the state of the table.

    Raises `Refused` if there is no such table or topic, or the table is ahead of the bucket, and `Corrupt` if a segment
    that is needed cannot be read.
    """
    check_topic(store, topic)
    url = f"{spark_url(warehouse)}/{topic}"
    check_table(topic, url)
    cold = read_cold_topic(store, topic)
    with closing(NativeTable(url, topic, cold.topic_id)) as table, closing(open_engine(spark, on_task)) as runner:
        topic_table.refuse_latest(table.pin().properties(), url, "which no repair mends yet", WAY_OUT)
        return _Repair(runner, store, table, progress, null_timestamps, split_bytes).run()


WAY_OUT = ": drop the table, and load it again"


class _Repair:
    """One repair in progress."""

    def __init__(
        self,
        runner: TaskRunner,
        store: str,
        table: NativeTable,
        report: Callable[[RepairProgress], None],
        null_timestamps: bool,
        split_bytes: int | None,
    ) -> None:
        self._runner = runner
        self._store = store
        self._table = table
        self._topic = table.topic
        self._url = table.url
        self._report = report
        self._null_timestamps = null_timestamps
        self._split_bytes = split_bytes
        self._rows = 0
        self._taken_out = 0

    def run(self) -> RepairProgress:
        """Compares and repairs until a comparison finds nothing."""
        failures = 0
        before: list[FaultyRange] = []
        while failures < ATTEMPTS:
            cold, table = read_cold_topic(self._store, self._topic), self._table
            at = table.pin()
            if at.version < 0:
                raise never_loaded(self._topic, self._url)
            gone = at.find_gone()
            for file in gone:
                log.warning(
                    "a data file is gone, its rows come from the log again table=%s file=%s",
                    self._url,
                    file.add["path"],
                )
            at = at.without(gone) if gone else at
            ends = _expected_ends(cold, at)
            comparison = self._compare(cold, at, ends)
            found = first_faults(comparison, cold)
            self._report_step("compared", ())
            if found or gone:
                # A clean since the first look may have taken records: their rows look as if they were in no log.
                newest = read_cold_topic(self._store, self._topic)
                certain = leave_lost_records(found, newest)
                committed = self._repair_partitions(cold, at, ends, certain, gone)
                failures = 0 if committed and found != before else failures + 1
                before = found
            elif comparison.is_sound and table.mark_sound(at, {**at.loaded_offsets(), **ends}, repaired=self._rows):
                remove_erased_values(self._url, cold.name, cold.topic_id, read_erasures(self._url, cold.topic_id))
                return self._report_step("done", tuple(_expired_gaps(cold, ends, comparison)))
            else:
                failures += 1
        raise Unavailable(
            f"{ATTEMPTS} attempts in a row repaired nothing of {self._url}, or other writers committed first: try again"
        )

    def _compare(self, cold: ColdTopic, at: Snapshot, ends: Mapping[int, int]) -> Comparison:
        """Compares the table up to the ends. A partition that was never loaded has no end."""
        bounds = {number: (low, max(ends.get(number, low), low)) for number, low, *_ in cold.partitions}
        erased = join_ranges(read_erasures(self._url, cold.topic_id))
        return Comparison(self._runner, self._store, cold, at, bounds, erased)

    def _repair_partitions(
        self,
        cold: ColdTopic,
        at: Snapshot,
        ends: Mapping[int, int],
        found: Sequence[FaultyRange],
        gone: Sequence[TableFile],
    ) -> bool:
        """Commits one transaction for each partition at fault. Returns true if any was committed.

        The rows of files that are gone come back by one transaction, which takes the files out of the table: a table
        that cannot be read never becomes one that lacks rows. Ends early if another writer committed too: then the
        comparison is out of date.
        """
        known, committed = at.loaded_offsets(), False
        partitions = {each.partition: each for each in cold.partitions}
        newest: Snapshot | None = at
        for faulty in [found] if gone else [list(runs) for _, runs in groupby(found, lambda run: run.partition)]:
            numbers = sorted({run.partition for run in faulty})
            files = [
                file
                for number in numbers
                if number in partitions
                for file in self._convert(cold, partitions[number], [run for run in faulty if run.partition == number])
            ]
            to_remove = [run for run in faulty if run.kind in REMOVED_KINDS]
            steps = [Advance(number, known.get(number, -1), ends[number]) for number in numbers if number in ends]
            lows = {number: each.log_start_offset for number, each in partitions.items()}
            kept_once = [run for run in to_remove if is_kept_once(run, lows.get(run.partition, 0))]
            if newest is None:
                break
            if self._commit(newest, to_remove, files, steps, kept_once, gone):
                committed = True
                newest = snapshot_after(self._table, newest)
                self._rows += sum(file.rows for file in files)
                self._taken_out += sum(run.end - run.start for run in to_remove)
                self._report_step("mended", ())
        return committed

    def _commit(
        self,
        at: Snapshot,
        to_remove: Sequence[FaultyRange],
        files: Sequence[LoadedFile],
        advances: Sequence[Advance],
        kept_once: Sequence[FaultyRange],
        gone: Sequence[TableFile],
    ) -> bool:
        """Removes rows in ranges and the `gone` files, and adds `files`. Returns false if another writer came first.

        Keeps one row of each offset in the `kept_once` ranges: the log has no other copy.
        """
        if to_remove or gone:
            table_features.check_removal(at.properties(), self._url)
        if files:
            self._table.check_writable(at.state)
        nowhere = any(each.partition < 0 or each.start < 0 for each in to_remove)
        chooser = RowChooser(join_faults(to_remove), join_faults(kept_once), removes_nowhere=nowhere)
        replaced = remove_rows(self._table, at.files() if to_remove else (), chooser)
        replaced += [ReplacedFile(file.add, 0, None, "") for file in gone]
        operation = delta_state.append_operation(files)
        return self._table.replace_files(at.state, replaced, operation, files=files, advances=advances, repair=True)

    def _convert(self, cold: ColdTopic, partition: ColdPartition, faulty: Sequence[FaultyRange]) -> list[LoadedFile]:
        """Writes files with the rows that are missing or wrong, and no others.

        Raises `Corrupt` or `Refused` if the log cannot give them.
        """
        low = partition.log_start_offset
        missing = [(run.start, run.end) for run in faulty if run.kind in RESTORED_KINDS and run.start >= low]
        plan = plan_missing_splits(cold, partition, missing, self._runner.tasks, self._split_bytes)
        if not plan:
            return []
        tasks = [
            ConversionTask(self._store, (split,), RawForm(self._url, ranges), self._null_timestamps)
            for split, ranges in plan
        ]
        results = self._runner.run_tasks(f"could not convert {self._url}", convert, tasks)
        stops = [outcome.stop for result in results for outcome in result.outcomes if outcome.stop is not None]
        if any(stop.damaged for stop in stops):
            raise Corrupt("; ".join(stop.why for stop in stops))
        if stops:
            raise Refused(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, "; ".join(stop.why for stop in stops))
        return [file for result in results for file in result.files]

    def _report_step(self, step: str, gaps: tuple[Gap, ...]) -> RepairProgress:
        progress = RepairProgress(step, self._url, self._rows, self._taken_out, gaps)
        self._report(progress)
        return progress


def first_faults(comparison: Comparison, cold: ColdTopic) -> list[FaultyRange]:
    """Returns the first ranges of offsets at fault, each once, by partition and offset."""
    found = sorted(set(islice(comparison.faults(only_equal=True), RANGES_MAX)))
    return split_at_log_starts(found, cold)


def split_at_log_starts(faults: Sequence[FaultyRange], cold: ColdTopic) -> list[FaultyRange]:
    """Returns the ranges, none of them on both sides of a log start: below it the log cannot give the rows again."""
    lows = {number: low for number, low, *_ in cold.partitions}
    found = []
    for each in faults:
        low = lows.get(each.partition, 0)
        if each.start < low < each.end:
            found += [each._replace(end=low), each._replace(start=low)]
        else:
            found.append(each)
    return found


def leave_lost_records(faults: Sequence[FaultyRange], newest: ColdTopic) -> list[FaultyRange]:
    """Returns the faults without extra rows where the log has lost records by now, by compaction or retention."""
    cleaned = cleaned_ranges(newest)
    lost = {number: [(0, low), *cleaned.get(number, ())] for number, low, *_ in newest.partitions}
    found = []
    for each in faults:
        start = each.start
        for low, high in lost.get(each.partition, ()) if each.kind == "extra" else ():
            if start < min(low, each.end):
                found.append(each._replace(start=start, end=min(low, each.end)))
            start = max(start, high)
        if start < each.end:
            found.append(each._replace(start=start))
    return found


def is_kept_once(fault: FaultyRange, log_start_offset: int) -> bool:
    """True for duplicates of rows that the log cannot give again: one of them stays."""
    return fault.kind == KEPT_ONCE or (fault.kind == "duplicate" and fault.end <= log_start_offset)


def _expired_gaps(cold: ColdTopic, ends: Mapping[int, int], comparison: Comparison) -> list[Gap]:
    """Returns the offsets that are in neither the table nor the log, because they expired."""
    left = explain_erased(find_gaps([comparison], ends, GAPS_MAX), comparison.erased)[1]
    return [gap for gap in explain_holes(left, cold) if gap.end <= cold.partitions[gap.partition].log_start_offset]


def plan_missing_splits(
    cold: ColdTopic, partition: ColdPartition, missing: Sequence[Range], tasks: int, split_bytes: int | None = None
) -> list[tuple[Split, Sequence[Range]]]:
    """Returns splits of the segments that hold missing offsets, each with the ranges in it, in order. Pure."""
    ranges = sorted(missing)
    segments = [
        entry
        for entry in partition.entries
        if any(low < entry.next_offset and entry.base_offset < high for low, high in ranges)
    ]
    plan: list[tuple[Split, Sequence[Range]]] = []
    first = 0
    for i in range(len(segments)):
        if i + 1 < len(segments) and segments[i].next_offset == segments[i + 1].base_offset:
            continue
        run, first = segments[first : i + 1], i + 1
        low = max(run[0].base_offset, partition.log_start_offset)
        high = min(run[-1].next_offset, partition.readable_end_offset)
        part = partition._replace(entries=tuple(run))
        for split in splits(cold._replace(partitions=(part,)), {part.partition: (low, high)}, tasks, split_bytes):
            inside = [(max(a, split.start), min(b, split.end)) for a, b in ranges if a < split.end and split.start < b]
            if inside:
                plan.append((split, inside))
    return plan


def _expected_ends(cold: ColdTopic, at: Snapshot) -> dict[int, int]:
    """Returns the offset up to which each partition has to equal the log.

    It is the partition's identifier, or the end of its rows if that is higher. Raises `Refused` if the table is ahead
    of the bucket: then it may be the wrong bucket.
    """
    known = at.loaded_offsets()
    held, ends = read_ends(at, {each.partition for each in cold.partitions}), {}
    for partition in cold.partitions:
        number, cold_end = partition.partition, partition.cold_end_offset
        end = known.get(number, held.get(number, 0))
        if end > cold_end:
            raise Refused(
                Code.OFFSET_OUT_OF_RANGE,
                f"the table holds {cold.name}-{number} up to offset {end}, the bucket only up to {cold_end}: it is "
                "not the bucket that was loaded, or it lost objects",
            )
        if number in known or number in held:
            ends[number] = min(max(end, held.get(number, 0)), partition.readable_end_offset)
    return ends

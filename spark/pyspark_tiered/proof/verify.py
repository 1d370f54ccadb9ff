"""Proof that a table holds every loaded record exactly once with equal bytes, and the reason for each missing offset.

The bucket is read again and compared with one version of the table, up to the loaded bound of each partition: by sums
first, and row by row where these differ (`comparison.py`). Offsets without a row must be explained by the log itself
(`gaps.py`), or by an erasure. Rows that retention removed from the bucket can no longer be compared, and are reported
as such. Rows whose records compaction took after the load are no faults. If other writers removed rows from the table,
a missing row names their commit.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.delta import history
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.snapshot import Snapshot
from pyspark_tiered.load.native_engine import open_engine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.log.bucket import check_table, check_topic, never_loaded
from pyspark_tiered.log.plan import ColdTopic, cleaned_ranges
from pyspark_tiered.proof.comparison import Comparison, FaultyRange, read_cold_topic
from pyspark_tiered.proof.erasures import explain_erased, join_ranges, read_erasures
from pyspark_tiered.proof.gaps import PRESENT, Gap, explain_from_log, explain_gap, undecided_gaps
from pyspark_tiered.proof.last_verify import LastVerify, write_last_verify
from pyspark_tiered.proof.sums import OffsetRange
from pyspark_tiered.typed.summing import Ranges
from pyspark_tiered.typed.verify import TaskRunner, ValuesVerifyResult, verify_topic_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAULTS_MAX = 1000
"""Faults that are listed at most: the first ones are enough to find the cause."""
GAPS_MAX = 1000
TRIES = 3
"""Most repetitions of a comparison during which the log was cleaned."""


class RowFault(NamedTuple):
    """A fault of the table at one offset: missing, duplicate, changed, extra, or erased and in the table all the same.

    `why` names the commit of another writer that may have caused it. A row without partition or offset has -1 there.
    """

    kind: str
    partition: int
    offset: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Result of `verify`. `rows` were compared with the bucket; `loaded` is the bound per partition.

    `erased` counts the rows that were erased lawfully. Without faults the table is whole. `values` is the proof of the
    typed table, None if the topic has none.
    """

    table: str
    rows: int
    loaded: Mapping[int, int]
    faults: tuple[RowFault, ...]
    gaps: tuple[Gap, ...]
    erased: int = 0
    values: ValuesVerifyResult | None = None

    @property
    def ok(self) -> bool:
        """True if there are no faults: the exit code is 0."""
        return not self.faults and (self.values is None or self.values.ok)


def verify(store: str, topic: str, warehouse: str, *, spark: SparkSession | None = None) -> VerifyResult:
    """Compares the table `<warehouse>/<topic>` and the typed table beside it with the bucket, and keeps the result.

    The tasks run in this process, or in a session of Spark. Raises `Refused` if there is no such table or topic,
    `Corrupt` if the bucket cannot be read.
    """
    check_topic(store, topic)
    url = f"{spark_url(warehouse)}/{topic}"
    check_table(topic, url)

    def read_log() -> tuple[ColdTopic, Ranges]:
        newer = read_cold_topic(store, topic)
        return newer, join_ranges(read_erasures(url, newer.topic_id))

    cold = read_cold_topic(store, topic)
    with closing(NativeTable(url, topic, cold.topic_id)) as table, closing(open_engine(spark)) as runner:
        at = table.pin()
        if at.version < 0:
            raise never_loaded(topic, url)
        found = _verify_snapshot(runner, store, cold, at)
        for _ in range(TRIES):
            newer = read_cold_topic(store, topic)
            if found.ok or cleaned_ranges(newer) == cleaned_ranges(cold):
                break
            cold = newer  # compaction took records meanwhile, and their rows are no faults of the table
            found = _verify_snapshot(runner, store, cold, at)
        values = verify_topic_values(runner, store, topic, cold.topic_id, url, read_log)
    found = replace(found, values=values)
    now_ms = time.time_ns() // 1_000_000
    faults = len(found.faults) + (len(values.faults) if values is not None else 0)
    write_last_verify(url, LastVerify(now_ms, at.version, found.rows, faults))
    return found


def _verify_snapshot(runner: TaskRunner, store: str, cold: ColdTopic, at: Snapshot) -> VerifyResult:
    loaded = at.loaded_offsets()
    bounds = {number: (low, max(loaded.get(number, low), low)) for number, low, *_ in cold.partitions}
    erasures = read_erasures(at.url, cold.topic_id)
    erased = join_ranges(erasures)
    found = Comparison(runner, store, cold, at, bounds, erased)
    differences = _first_faults(found.differing_rows())
    faults = [*differences, *_first_faults(found.other_faults())]
    if len(differences) < FAULTS_MAX:
        faults += _unnamed_ranges(faults, found.unexplained_ranges)
    if faults:
        removals = history.find_row_removals(at.commits(past_marks=True)[0])
        faults = [fault._replace(why=fault.why or _likely_cause(fault, removals)) for fault in faults]
    missing = {(fault.partition, fault.offset) for fault in faults if fault.kind == "missing"}
    last_listed = differences[-1][1:3] if len(differences) == FAULTS_MAX else None  # no list of faults beyond it
    erased_gaps, holes = explain_erased(found.holes(loaded, GAPS_MAX), erased)
    gaps = [gap for gap in explain_holes(holes, cold)[:GAPS_MAX] if not _contains_missing(gap, missing)]
    gaps = [gap for gap in gaps if last_listed is None or gap[:2] <= last_listed]
    gaps = [*explain_from_log(store, cold, gaps, GAPS_MAX), *undecided_gaps(cold), *erased_gaps[:GAPS_MAX]]
    faults += [
        RowFault("missing", gap.partition, offset, gap.why)
        for gap in gaps
        if gap.why == PRESENT
        for offset in range(gap.start, min(gap.end, gap.start + FAULTS_MAX))
    ]
    gaps = sorted(gap for gap in gaps if gap.why != PRESENT)
    count = sum(each.rows for each in erasures)
    return VerifyResult(at.url, found.table.rows, loaded, tuple(sorted(faults)[:FAULTS_MAX]), tuple(gaps), count)


def _unnamed_ranges(faults: Sequence[RowFault], ranges: Sequence[OffsetRange]) -> list[RowFault]:
    """Returns a fault for each range whose sums differ and in which no row was found: a difference is never silent."""
    return [
        RowFault("changed", number, start, f"the sums of offsets {start} to {end - 1} differ")
        for number, start, end in ranges
        if not any(fault.partition == number and start <= fault.offset < end for fault in faults)
    ]


def _first_faults(found: Iterable[FaultyRange]) -> list[RowFault]:
    """Returns the first offsets at fault, each for itself."""
    each_offset = (RowFault(each.kind, each.partition, at) for each in found for at in range(each.start, each.end))
    return list(islice(each_offset, FAULTS_MAX))


def _likely_cause(fault: RowFault, removals: Sequence[history.RowRemoval]) -> str:
    """Returns the last commit of other writers that removed rows from the file that held this one."""
    candidates = [each for each in removals if each.may_have_removed(fault.partition, fault.offset)]
    return candidates[-1].description if candidates and fault.kind in ("missing", "changed") else ""


def _contains_missing(gap: Gap, missing: Collection[tuple[int, int]]) -> bool:
    return any(partition == gap.partition and gap.start <= offset < gap.end for partition, offset in missing)


def explain_holes(holes: Sequence[OffsetRange], cold: ColdTopic) -> list[Gap]:
    """Returns the holes split at the log start of their partition, with the reason on each side of it.

    The caller takes out offsets that the comparison found missing: they are faults.
    """
    lows = {number: low for number, low, *_ in cold.partitions}
    return [gap for hole in holes for gap in explain_gap(*hole, lows.get(hole.partition, 0))]

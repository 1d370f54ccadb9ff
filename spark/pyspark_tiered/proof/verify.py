"""Proof that a table holds every loaded record exactly once with equal bytes, and the reason for each missing offset.

The bucket is read again and compared with one version of the table, up to the loaded bound of each partition: by sums
first, and row by row where these differ (`comparison.py`). Offsets without a row must be explained by the log itself
(`gaps.py`), or by an erasure. Rows that retention removed from the bucket can no longer be compared, and are reported
as such. Rows whose records compaction took after the load are no faults. If other writers removed rows from the table,
a missing row names their commit.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.delta import history
from pyspark_tiered.delta.delta_commit import DeltaTable
from pyspark_tiered.delta.delta_log import TableSnapshot
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.failures import translate_failure
from pyspark_tiered.log.bucket import check_table, check_topic, never_loaded
from pyspark_tiered.log.plan import ColdTopic, cleaned_ranges
from pyspark_tiered.proof import compare
from pyspark_tiered.proof.comparison import Comparison
from pyspark_tiered.proof.erasures import explain_erased, join_ranges, read_erasures
from pyspark_tiered.proof.gaps import PRESENT, Gap, explain_from_log, explain_gap, undecided_gaps
from pyspark_tiered.proof.last_verify import LastVerify, write_last_verify
from pyspark_tiered.proof.sums import OffsetRange, find_holes
from pyspark_tiered.session import session
from pyspark_tiered.spark_engine import SparkEngine
from pyspark_tiered.typed.summing import Ranges
from pyspark_tiered.typed.verify import ValuesVerifyResult, verify_topic_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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

    Raises `Refused` if there is no such table or topic, `Corrupt` if the bucket cannot be read.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    check_topic(store, topic)
    url = f"{spark_url(warehouse)}/{topic}"
    check_table(topic, url)
    running = spark or session()

    def read_log() -> tuple[ColdTopic, Ranges]:
        newer = compare.read_cold_topic(store, topic)
        return newer, join_ranges(read_erasures(url, newer.topic_id))

    cold = compare.read_cold_topic(store, topic)
    at = DeltaTable(running, url, topic, cold.topic_id).snapshot()
    if at.version < 0:
        raise never_loaded(topic, url)
    try:
        found = _verify_snapshot(running, store, cold, at)
        for _ in range(TRIES):
            newer = compare.read_cold_topic(store, topic)
            if found.ok or cleaned_ranges(newer) == cleaned_ranges(cold):
                break
            cold = newer  # compaction took records meanwhile, and their rows are no faults of the table
            found = _verify_snapshot(running, store, cold, at)
        values = verify_topic_values(SparkEngine(running), store, topic, cold.topic_id, url, read_log)
        found = replace(found, values=values)
    except (Py4JError, PySparkException) as failure:
        raise translate_failure(f"could not verify {topic}", failure) from failure
    now_ms = time.time_ns() // 1_000_000
    faults = len(found.faults) + (len(values.faults) if values is not None else 0)
    write_last_verify(url, LastVerify(now_ms, at.version, found.rows, faults))
    return found


def _verify_snapshot(spark: SparkSession, store: str, cold: ColdTopic, at: TableSnapshot) -> VerifyResult:
    loaded = at.loaded_offsets()
    bounds = {number: (low, max(loaded.get(number, low), low)) for number, low, *_ in cold.partitions}
    erasures = read_erasures(at.url, cold.topic_id)
    erased = join_ranges(erasures)
    found = Comparison(spark, store, cold, at, bounds, erased)
    differences = _collect_faults(found.differing_rows())
    faults = [
        *differences,
        *_collect_faults(found.erased_rows()),
        *_collect_faults(found.expired_duplicates()),
        *_collect_faults(found.unknown_rows()),
    ]
    if len(differences) < FAULTS_MAX:
        faults += _unnamed_ranges(faults, found.unexplained_ranges)
    if faults:
        removals = history.find_row_removals(at.commits(past_marks=True)[0])
        faults = [fault._replace(why=fault.why or _likely_cause(fault, removals)) for fault in faults]
    missing = {(fault.partition, fault.offset) for fault in faults if fault.kind == "missing"}
    last_listed = differences[-1][1:3] if len(differences) == FAULTS_MAX else None  # no list of faults beyond it
    holes = find_holes(found.runs, loaded) if found.table.has_all_runs else query_holes(at.rows(), loaded)
    erased_gaps, holes = explain_erased(holes, erased)
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


def _collect_faults(rows: DataFrame | None) -> list[RowFault]:
    if rows is None:
        return []
    found = rows.orderBy("partition", "offset").limit(FAULTS_MAX).collect()
    return [RowFault(row["kind"], row["partition"], row["offset"]) for row in found]


def _likely_cause(fault: RowFault, removals: Sequence[history.RowRemoval]) -> str:
    """Returns the last commit of other writers that removed rows from the file that held this one."""
    candidates = [each for each in removals if each.may_have_removed(fault.partition, fault.offset)]
    return candidates[-1].description if candidates and fault.kind in ("missing", "changed") else ""


def _contains_missing(gap: Gap, missing: Collection[tuple[int, int]]) -> bool:
    return any(partition == gap.partition and gap.start <= offset < gap.end for partition, offset in missing)


def query_holes(rows: DataFrame, ends: Mapping[int, int]) -> list[OffsetRange]:
    """Returns the holes between the table's offsets, and at its ends, for a table of too many runs to list all."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    rows = rows.where("partition IS NOT NULL AND offset IS NOT NULL")
    order = Window.partitionBy("partition").orderBy("offset")
    jumps = (
        rows.select("partition", "offset", (f.lag("offset", default=-1).over(order) + 1).alias("start"))
        .where("start < offset")
        .orderBy("partition", "offset")
        .limit(GAPS_MAX)
        .collect()
    )
    last = {
        row["partition"]: row["last"] + 1
        for row in rows.groupBy("partition").agg(f.max("offset").alias("last")).collect()
    }
    holes = [OffsetRange(row["partition"], row["start"], row["offset"]) for row in jumps]
    holes += [
        OffsetRange(number, last.get(number, 0), end) for number, end in ends.items() if last.get(number, 0) < end
    ]
    return sorted(holes)


def explain_holes(holes: Sequence[OffsetRange], cold: ColdTopic) -> list[Gap]:
    """Returns the holes split at the log start of their partition, with the reason on each side of it.

    The caller takes out offsets that the comparison found missing: they are faults.
    """
    lows = {number: low for number, low, *_ in cold.partitions}
    return [gap for hole in holes for gap in explain_gap(*hole, lows.get(hole.partition, 0))]

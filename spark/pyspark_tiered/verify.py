"""Proof that a table holds every loaded record exactly once, with equal bytes, and why each missing offset is missing.

The bucket is read again and compared row by row with one version of the table, up to the loaded bound of each
partition.
Offsets without a row must be explained by the log itself; what retention took from the bucket can no longer be compared
and is said to be so. Where others took rows out of the table, a missing row names their commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered import compare, history
from pyspark_tiered.bucket import check_topic
from pyspark_tiered.delta_commit import DeltaTable
from pyspark_tiered.delta_log import Snapshot
from pyspark_tiered.failures import in_words
from pyspark_tiered.plan import ColdTopic
from pyspark_tiered.session import session, spark_url
from tiered.errors import Code, Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FAULTS_MAX = 1000
"""No more are listed: the first ones tell the story."""
GAPS_MAX = 1000


class Fault(NamedTuple):
    """What is wrong with the table at one offset: missing, duplicate, changed, extra. `why` names the commit of others
    that may have done it. A row without partition or offset has -1 there."""

    kind: str
    partition: int
    offset: int
    why: str = ""


class Gap(NamedTuple):
    """Offsets `[start, end)` without a row, and why that is right."""

    partition: int
    start: int
    end: int
    why: str


@dataclass(frozen=True, slots=True)
class Verified:
    """`rows` were compared with the bucket; `loaded` is the bound per partition; no faults: the table is whole."""

    table: str
    rows: int
    loaded: Mapping[int, int]
    faults: tuple[Fault, ...]
    gaps: tuple[Gap, ...]

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return not self.faults


def verify(store: str, topic: str, warehouse: str, *, spark: SparkSession | None = None) -> Verified:
    """Compares the table `<warehouse>/<topic>` with the bucket. `Refused` when there is no such table or topic,
    `Corrupt` when the bucket cannot be read."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    check_topic(store, topic)
    running = spark or session()
    url = f"{spark_url(warehouse)}/{topic}"
    cold = compare.cold(store, topic)
    at = DeltaTable(running, url, topic, cold.topic_id).snapshot()
    if at.version < 0:
        raise Refused(Code.INVALID_REQUEST, f"{topic} was never loaded: there is no table at {url}")
    try:
        return _verified(running, store, cold, at)
    except (Py4JError, PySparkException) as failure:
        raise in_words(f"could not verify {topic}", failure) from failure


def _verified(spark: SparkSession, store: str, cold: ColdTopic, at: Snapshot) -> Verified:
    loaded = at.identifiers()
    bounds = {number: (low, max(loaded.get(number, low), low)) for number, low, _, _ in cold.partitions}
    rows = at.rows()
    kept = compare.alive(rows, cold)
    found = _faults(compare.compared(compare.expected(spark, store, cold, bounds), kept))
    faults = [*found, *_faults(compare.doubled_below(rows, cold)), *_faults(compare.strangers(rows, cold))]
    if faults:
        takers = history.takers(at.commits(past_marks=True)[0])
        faults = [fault._replace(why=_why(fault, takers)) for fault in faults]
    missing = {(fault.partition, fault.offset) for fault in faults if fault.kind == "missing"}
    listed = found[-1][1:3] if len(found) == FAULTS_MAX else None  # what is missing behind it nobody has said
    gaps = [gap for gap in gaps_of(rows, cold, loaded) if not _holds(gap, missing)]
    gaps = [gap for gap in gaps if listed is None or gap[:2] <= listed]
    return Verified(at.url, kept.count(), loaded, tuple(sorted(faults)[:FAULTS_MAX]), tuple(gaps))


def _faults(rows: DataFrame) -> list[Fault]:
    found = rows.orderBy("partition", "offset").limit(FAULTS_MAX).collect()
    return [Fault(row["kind"], row["partition"], row["offset"]) for row in found]


def _why(fault: Fault, takers: Sequence[history.Taker]) -> str:
    """The last commit of others that took rows out of the file where this one was."""
    by = [taker for taker in takers if taker.may_have_taken(fault.partition, fault.offset)]
    return by[-1].what if by and fault.kind in ("missing", "changed") else ""


def _holds(gap: Gap, missing: Collection[tuple[int, int]]) -> bool:
    return any(partition == gap.partition and gap.start <= offset < gap.end for partition, offset in missing)


def gaps_of(rows: DataFrame, cold: ColdTopic, loaded: Mapping[int, int]) -> list[Gap]:
    """Where offsets jump in the table, and at its ends; what the comparison found missing is no gap but a fault."""
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
    holes = [(row["partition"], row["start"], row["offset"]) for row in jumps]
    holes += [(number, last.get(number, 0), end) for number, end in loaded.items() if last.get(number, 0) < end]
    lows = {number: low for number, low, _, _ in cold.partitions}
    return [gap for hole in sorted(holes) for gap in explained(*hole, lows.get(hole[0], 0))]


def explained(partition: int, start: int, end: int, log_start: int) -> Sequence[Gap]:
    """A hole in the table, cut at the log start: below it retention was first, above it the log has no record."""
    expired, empty = (start, min(end, log_start)), (max(start, log_start), end)
    reasons = ((expired, "expired before it was loaded"), (empty, "no record in the log has this offset"))
    return [Gap(partition, low, high, why) for (low, high), why in reasons if low < high]

"""Proof that a table holds every loaded record exactly once, with equal bytes, and why each missing offset is missing.

The bucket is read again and compared with the table row by row (by 128 bits of hash over all columns), up to the loaded
bound of each partition.
Offsets without a row must be explained by the log itself; what retention took from the bucket can no longer be compared
and is said to be so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered import source, table
from pyspark_tiered.bucket import cold_topic
from pyspark_tiered.delta_commit import DeltaTable
from pyspark_tiered.plan import ColdTopic
from pyspark_tiered.session import session, spark_url
from tiered.bucket import open_bucket
from tiered.errors import Code, Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FAULTS_MAX = 1000
"""No more are listed: the first ones tell the story."""
GAPS_MAX = 1000
SEEDS = (1, 2)


class Fault(NamedTuple):
    """What is wrong with the table at one offset: missing, duplicate, changed, extra."""

    kind: str
    partition: int
    offset: int


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
    """Compares the table `<warehouse>/<topic>` with the bucket. `Refused` when there is no such table or topic."""
    running = spark or session()
    url = f"{spark_url(warehouse)}/{topic}"
    cold = asyncio.run(_cold(store, topic))
    delta = DeltaTable(running, url, topic, cold.topic_id)
    if not delta.exists():
        raise Refused(Code.INVALID_REQUEST, f"{topic} was never loaded: there is no table at {url}")
    loaded = delta.loaded()
    starts = {number: low for number, low, _, _ in cold.partitions}
    rows = running.read.format("delta").load(url)
    found = _faults(_compared(_expected(running, store, cold, loaded), _kept(rows, starts)))
    faults = [*found, *_duplicates_below(rows, starts), *_beyond(rows, loaded)]
    missing = {(fault.partition, fault.offset) for fault in faults if fault.kind == "missing"}
    gaps = [gap for gap in _gaps(rows, cold, loaded) if not _holds(gap, missing)]
    return Verified(url, _kept(rows, starts).count(), loaded, tuple(sorted(faults)[:FAULTS_MAX]), tuple(gaps))


async def _cold(store: str, topic: str) -> ColdTopic:
    async with open_bucket(store) as bucket:
        return await cold_topic(bucket, topic)


def _expected(spark: SparkSession, store: str, cold: ColdTopic, loaded: Mapping[int, int]) -> DataFrame:
    """The rows that the table must have, read from the bucket, under the table's column names."""
    lows = {str(number): low for number, low, _, _ in cold.partitions}
    highs = {str(number): max(loaded.get(number, low), low) for number, low, _, _ in cold.partitions}
    reader = (
        spark.read.format("tiered")
        .schema(source.SCHEMA)
        .option("store", store)
        .option("topic", cold.name)
        .option("startingOffsets", json.dumps({cold.name: lows}))
        .option("endingOffsets", json.dumps({cold.name: highs}))
    )
    rows = reader.load().withColumnRenamed("timestampType", "timestamp_type")
    return rows.selectExpr(*(_cast(name) for name in table.COLUMNS))


def _cast(name: str) -> str:
    return f"CAST({name} AS tinyint) AS {name}" if name == "timestamp_type" else name


def _kept(rows: DataFrame, starts: Mapping[int, int]) -> DataFrame:
    """The table's rows that the bucket still has, too."""
    alive = " OR ".join(f"(partition = {number} AND offset >= {low})" for number, low in starts.items())
    return rows.where(alive or "false")


def _compared(expected: DataFrame, actual: DataFrame) -> DataFrame:
    """One row for each offset at fault, with its kind. Every row of both sides meets its like in one shuffle, as two
    hashes of all its columns: 128 bits stand for the bytes."""
    from pyspark.sql import functions as f

    content = [f.col(name) for name in table.COLUMNS if name not in ("partition", "offset")]
    sides = expected.withColumn("side", f.lit(0)).unionByName(actual.withColumn("side", f.lit(1)))
    hashed = sides.select(
        "partition", "offset", "side", *(f.xxhash64(f.lit(seed), *content).alias(f"h{seed}") for seed in SEEDS)
    )
    differ = [f.min(f"h{seed}") != f.max(f"h{seed}") for seed in SEEDS]
    counted = hashed.groupBy("partition", "offset").agg(
        f.sum(1 - f.col("side")).alias("wanted"),
        f.sum("side").alias("there"),
        reduce(or_, differ).alias("differs"),
    )
    kind = (
        f.when(f.col("there") == 0, "missing")
        .when(f.col("wanted") == 0, "extra")
        .when(f.col("there") > 1, "duplicate")
        .when(f.col("differs"), "changed")
    )
    return counted.select(kind.alias("kind"), "partition", "offset").where("kind IS NOT NULL")


def _faults(rows: DataFrame) -> list[Fault]:
    found = rows.orderBy("partition", "offset").limit(FAULTS_MAX).collect()
    return [Fault(row["kind"], row["partition"], row["offset"]) for row in found]


def _duplicates_below(rows: DataFrame, starts: Mapping[int, int]) -> list[Fault]:
    """Doubled rows among those that retention took from the bucket."""
    expired = " OR ".join(f"(partition = {number} AND offset < {low})" for number, low in starts.items())
    twice = rows.where(expired or "true").groupBy("partition", "offset").count().where("count > 1")
    return _faults(twice.selectExpr("'duplicate' AS kind", "partition", "offset"))


def _beyond(rows: DataFrame, loaded: Mapping[int, int]) -> list[Fault]:
    """Rows of partitions that the topic does not have, or that were never loaded."""
    known = ", ".join(map(str, loaded)) or "-1"
    return _faults(rows.where(f"partition NOT IN ({known})").selectExpr("'extra' AS kind", "partition", "offset"))


def _holds(gap: Gap, missing: Collection[tuple[int, int]]) -> bool:
    return any(partition == gap.partition and gap.start <= offset < gap.end for partition, offset in missing)


def _gaps(rows: DataFrame, cold: ColdTopic, loaded: Mapping[int, int]) -> list[Gap]:
    """Where offsets jump in the table, and at its ends; what the comparison found missing is no gap but a fault."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

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

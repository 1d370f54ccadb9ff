"""Compares the rows of a table with those of the log: offsets that are missing, duplicate, changed or extra.

Each row becomes two hashes with different seeds, 128 bits. The hashed form can be read back in one way only: first
which fields are NULL, then the number of headers and which of their parts are NULL, then each field that is there, with
its length. So a value that moved to another column, a NULL that became empty and a header that was split differently
all change the hash.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from pyspark_tiered import source
from pyspark_tiered.delta import table_form
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.log.bucket import cold_topic
from pyspark_tiered.log.plan import ColdPartition, ColdTopic
from pyspark_tiered.proof.sums import is_inside
from tiered.offline.bucket import open_bucket

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame, SparkSession

SEEDS = (1, 2)
FIELDS = ("timestamp", "timestamp_type", "key", "value", "headers")
"""Content of a row, beside partition and offset."""
KEPT_ONCE = "kept once"
"""Fault of an offset with equal rows whose record compaction took: one of them stays, because the log has no other."""
HEADER_NULLS = (
    "CASE WHEN headers IS NOT NULL THEN transform(headers, "
    "h -> CAST(h IS NULL AS int) + 2 * CAST(h.key IS NULL AS int) + 4 * CAST(h.value IS NULL AS int)) END"
)


def read_cold_topic(store: str, topic: str) -> ColdTopic:
    """Reads the cold part of a topic as it is now, with all segments."""

    async def read() -> ColdTopic:
        async with open_bucket(store) as bucket:
            return await cold_topic(bucket, topic)

    return asyncio.run(read())


def expected_rows(spark: SparkSession, store: str, topic: ColdTopic, bounds: Mapping[int, Range]) -> DataFrame:
    """Returns the rows that the bucket has in these bounds, under the table's column names."""
    starts = {str(each.partition): bounds.get(each.partition, _nothing(each))[0] for each in topic.partitions}
    ends = {str(each.partition): bounds.get(each.partition, _nothing(each))[1] for each in topic.partitions}
    reader = (
        spark.read.format("tiered")
        .schema(source.SCHEMA)
        .option("store", store)
        .option("topic", topic.name)
        .option("startingOffsets", json.dumps({topic.name: starts}))
        .option("endingOffsets", json.dumps({topic.name: ends}))
    )
    rows = reader.load().withColumnRenamed("timestampType", "timestamp_type")
    return rows.selectExpr(*(_cast_column(name) for name in table_form.COLUMNS))


def _nothing(partition: ColdPartition) -> Range:
    return partition.log_start_offset, partition.log_start_offset


def _cast_column(name: str) -> str:
    return f"CAST({name} AS tinyint) AS {name}" if name == "timestamp_type" else name


def without_ranges(rows: DataFrame, ranges: Mapping[int, Sequence[Range]]) -> DataFrame:
    """Returns the rows that lie in none of these ranges of their partition, which are in order."""
    return rows.mapInArrow(_range_filter(ranges, inside=False), rows.schema) if ranges else rows


def find_erased_rows(rows: DataFrame, erased: Mapping[int, Sequence[Range]]) -> DataFrame:
    """Returns the rows in the erased ranges, as faults. The ranges are in order."""
    spans = " OR ".join(
        f"(partition = {number} AND offset >= {each[0][0]} AND offset < {each[-1][1]})"
        for number, each in erased.items()
    )
    placed = rows.where(spans or "false").select("partition", "offset")
    inside = placed.mapInArrow(_range_filter(erased, inside=True), placed.schema)
    return inside.selectExpr("'erased' AS kind", "partition", "offset")


def _range_filter(
    ranges: Mapping[int, Sequence[Range]], *, inside: bool
) -> Callable[[Iterable[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    def run(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        for batch in batches:
            partitions, offsets = batch.column("partition").to_numpy(), batch.column("offset").to_numpy()
            held = np.zeros(batch.num_rows, dtype=np.bool_)
            for number in np.unique(partitions).tolist():
                held |= (partitions == number) & is_inside(offsets, ranges.get(number, ()))
            yield batch.filter(pa.array(held == inside))

    return run


def hashes() -> list[Column]:
    """Returns the columns `h1` and `h2` of a row."""
    from pyspark.sql import functions as f

    nulls = reduce(lambda bits, name: bits * 2 + f.col(name).isNull().cast("int"), FIELDS, f.lit(0))
    # -1 stands for no array at all; every header then has its mask before the first field begins.
    shape = [nulls, f.coalesce(f.size("headers"), f.lit(-1)), f.expr(HEADER_NULLS)]
    content = [*shape, *(f.col(name) for name in FIELDS)]
    return [f.xxhash64(f.lit(seed), *content).alias(f"h{seed}") for seed in SEEDS]


def compare_rows(
    log_rows: DataFrame,
    table_rows: DataFrame,
    cleaned: Mapping[int, Sequence[Range]] | None = None,
    *,
    only_equal: bool = False,
) -> DataFrame:
    """Returns one row (kind, partition, offset) for each offset at fault.

    One shuffle brings the hashes of both sides together. A row in a `cleaned` range was loaded before compaction took
    its record, so the log need not have it. `only_equal`: duplicates of such a row are named `KEPT_ONCE`, and left out
    if their content differs.
    """
    from pyspark.sql import functions as f

    hashed = [
        rows.select("partition", "offset", f.lit(side).alias("side"), *hashes())
        for side, rows in enumerate((log_rows, table_rows))
    ]
    differ = [f.min(f"h{seed}") != f.max(f"h{seed}") for seed in SEEDS]
    counted = (
        hashed[0]
        .unionByName(hashed[1])
        .groupBy("partition", "offset")
        .agg(
            f.sum(1 - f.col("side")).alias("wanted"),
            f.sum("side").alias("there"),
            reduce(or_, differ).alias("differs"),
        )
    )
    compacted = f.expr(_range_condition(cleaned or {})) & (f.col("wanted") == 0)
    doubled = f.when(~f.col("differs"), KEPT_ONCE) if only_equal else f.lit("duplicate")
    kind = (
        f.when(f.col("there") == 0, "missing")
        .when(compacted & (f.col("there") == 1), None)
        .when(compacted, doubled)
        .when(f.col("wanted") == 0, "extra")
        .when(f.col("there") > 1, "duplicate")
        .when(f.col("differs"), "changed")
    )
    return counted.select(kind.alias("kind"), "partition", "offset").where("kind IS NOT NULL")


def _range_condition(ranges: Mapping[int, Sequence[Range]]) -> str:
    """Returns the SQL condition of the rows in these ranges of their partition."""
    return (
        " OR ".join(
            f"(partition = {number} AND offset >= {low} AND offset < {high})"
            for number, each in ranges.items()
            for low, high in each
        )
        or "false"
    )


def find_expired_duplicates(rows: DataFrame, topic: ColdTopic, only_equal: bool = False) -> DataFrame:
    """Returns duplicate rows among those that retention removed from the bucket, as faults.

    `only_equal`: only duplicates with equal content.
    """
    from pyspark.sql import functions as f

    expired = " OR ".join(f"(partition = {number} AND offset < {low})" for number, low, *_ in topic.partitions)
    hashed = rows.where(expired or "false").select("partition", "offset", *hashes())
    same = [f.min(f"h{seed}") == f.max(f"h{seed}") for seed in SEEDS]
    spans = hashed.groupBy("partition", "offset").agg(f.count("*").alias("count"), reduce(and_, same).alias("same"))
    twice = spans.where("count > 1 AND same" if only_equal else "count > 1")
    return twice.selectExpr("'duplicate' AS kind", "partition", "offset")


def find_unknown_rows(rows: DataFrame, topic: ColdTopic) -> DataFrame:
    """Returns rows of partitions that the topic does not have, as faults. -1 stands for NULL."""
    known = ", ".join(str(partition.partition) for partition in topic.partitions) or "-1"
    condition = f"partition IS NULL OR offset IS NULL OR partition NOT IN ({known})"
    return rows.where(condition).selectExpr(
        "'extra' AS kind", "coalesce(partition, -1) AS partition", "coalesce(offset, -1L) AS offset"
    )

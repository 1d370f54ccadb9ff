"""SQL over the loaded topics of a warehouse by Spark. Each table has its topic's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.failures import first_line
from pyspark_tiered.query.output import QueryResult
from pyspark_tiered.session import session
from tiered.errors import Code, Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


def sql(warehouse: str, query: str, *, spark: SparkSession | None = None) -> QueryResult:
    """Runs one query. Names that are no plain SQL names need backticks. Raises `Refused` with Spark's message."""
    from pyspark.errors import PySparkException

    running = spark or session()
    for name, url in tables(running, warehouse).items():
        running.read.format("delta").load(url).createOrReplaceTempView(f"`{name}`")
    try:
        found = running.sql(query)
        return QueryResult(tuple(found.columns), tuple(tuple(row) for row in _collect_rows(found)))
    except PySparkException as failure:
        raise Refused(Code.INVALID_REQUEST, first_line(failure)) from failure


def _collect_rows(found: DataFrame) -> list[Row]:
    """Returns all rows.

    If a time is outside of Python's years 1 to 9999, columns with times become Spark's text for them.
    """
    from pyspark.sql import functions as f

    try:
        return found.collect()
    except (ValueError, OverflowError):
        kinds = [field.dataType.simpleString() for field in found.schema.fields]
        # By place: a query may name two columns alike.
        plain = found.toDF(*(f"c{i}" for i in range(len(kinds))))
        timed = ["timestamp" in kind or "date" in kind for kind in kinds]
        cells = [f.col(f"c{i}").cast("string") if times else f.col(f"c{i}") for i, times in enumerate(timed)]
        return plain.select(*cells).collect()


def tables(spark: SparkSession, warehouse: str) -> dict[str, str]:
    """Returns topic names and table URLs of a warehouse: its folders that hold a Delta log."""
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(spark_url(warehouse))
    files = folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    if not files.exists(folder):
        raise Refused(Code.INVALID_REQUEST, f"there is no warehouse at {spark_url(warehouse)}")
    children = [status.getPath() for status in files.listStatus(folder) if status.isDirectory()]
    return {
        child.getName(): str(child.toString())
        for child in children
        if files.exists(jvm.org.apache.hadoop.fs.Path(child, "_delta_log"))
    }

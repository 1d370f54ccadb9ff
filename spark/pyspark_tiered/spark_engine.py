"""A load by Spark: tasks of a session convert, and Delta's own transaction commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from pyspark_tiered.delta.delta_commit import DeltaTable
from pyspark_tiered.delta.table_form import ConversionResult, Range
from pyspark_tiered.failures import translate_failure
from pyspark_tiered.load.convert import convert
from pyspark_tiered.load.rounds import FilePlan
from pyspark_tiered.log.plan import Split
from pyspark_tiered.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


class SparkEngine:
    """An engine of a load in a Spark session."""

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._spark = spark or session()

    @property
    def tasks(self) -> int:
        """Returns how many files are converted at once."""
        return int(self._spark.sparkContext.defaultParallelism)

    def close(self) -> None:
        """Does nothing: the session belongs to the caller."""

    def open_table(self, url: str, topic: str, topic_id: str) -> DeltaTable:
        """Opens a topic's table."""
        return DeltaTable(self._spark, url, topic, topic_id)

    def convert(self, store: str, url: str, files: Sequence[FilePlan], null_timestamps: bool) -> list[ConversionResult]:
        """Converts each file in one Spark task. Raises `Unavailable` for failures that are not in the log."""
        return convert_files(self._spark, store, url, [(splits, None) for splits in files], null_timestamps)

    def connect(self, url: str) -> None:
        """Returns no connection: the JVM has its own."""

    def run_tasks(self, what: str, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Runs each task as one of Spark's. Raises `Unavailable` or `Corrupt` if one fails; `what` begins the error."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            return list(self._spark.sparkContext.parallelize(tasks, max(len(tasks), 1)).map(work).collect())
        except (Py4JError, PySparkException) as failure:
            raise translate_failure(what, failure) from failure


def convert_files(
    spark: SparkSession,
    store: str,
    url: str,
    files: Sequence[tuple[Sequence[Split], Sequence[Range] | None]],
    null_timestamps: bool,
) -> list[ConversionResult]:
    """Converts the splits of each file, or some ranges in them, in one Spark task each.

    Raises `Unavailable` for failures that are not in the log.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    tasks = spark.sparkContext.parallelize(files, max(len(files), 1))
    try:
        return tasks.map(lambda each: convert(store, each[0], url, null_timestamps, each[1])).collect()
    except (Py4JError, PySparkException) as failure:
        raise translate_failure(f"could not convert {url}", failure) from failure

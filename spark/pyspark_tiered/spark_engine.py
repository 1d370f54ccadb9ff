"""A load by Spark: tasks of a session convert. The package's own writer commits, as without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from pyspark_tiered.failures import translate_failure
from pyspark_tiered.load.convert import ConversionTask, convert
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.load.rounds import ConversionResult
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

    def open_table(self, url: str, topic: str, topic_id: str) -> NativeTable:
        """Opens a topic's table."""
        return NativeTable(url, topic, topic_id)

    def convert(self, what: str, tasks: Sequence[ConversionTask]) -> list[ConversionResult]:
        """Runs each task as one of Spark's. Raises `Unavailable` for failures that are not in the log."""
        return self.run_tasks(what, convert, tasks)

    def connect(self, url: str) -> None:
        """Returns no connection: each table has its own."""

    def run_tasks(self, what: str, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Runs each task as one of Spark's. Raises `Unavailable` or `Corrupt` if one fails; `what` begins the error."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            return list(self._spark.sparkContext.parallelize(tasks, max(len(tasks), 1)).map(work).collect())
        except (Py4JError, PySparkException) as failure:
            raise translate_failure(what, failure) from failure

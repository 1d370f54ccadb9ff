"""State and history of a table from Delta's log. Only this file and `delta_commit` touch Delta's Scala classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_tiered import history, table
from pyspark_tiered.history import FileExtent, TableCommit
from tiered.errors import Code, Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITS_MAX = 1000
"""Commits that are read at most in a log without a mark. A table of today's loader has few since its last mark."""
UNACCOUNTED_MAX = 1000
"""Partitions with rows that no identifier covers: no more are listed."""


class UnaccountedRows(NamedTuple):
    """Rows of a partition that no transaction identifier covers. Partition None: rows without partition or offset."""

    partition: int | None
    first: int | None
    last: int | None


class TableSnapshot:
    """A table at one version. Version -1: there is no table."""

    def __init__(self, spark: SparkSession, log: Any, url: str, topic_id: str) -> None:
        jvm: Any = spark._jvm
        none = getattr(jvm.scala, "None$").__getattr__("MODULE$")
        self.handle = log.update(False, none, none)
        self.version = int(self.handle.version())
        self.url = url
        self._spark = spark
        self._log = log
        self._topic_id = topic_id

    def loaded_offsets(self) -> dict[int, int]:
        """Returns the next offset per partition, from the transaction identifiers."""
        if self.version < 0:
            return {}
        jvm: Any = self._spark._jvm
        transactions = dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(self.handle.transactions()))
        return table.loaded_offsets(transactions, self._topic_id)

    def rows(self) -> DataFrame:
        """Returns the table's rows, in the columns that a load writes. Columns that a user added are left out."""
        return self.all_columns().select(*table.COLUMNS)

    def all_columns(self) -> DataFrame:
        """Returns the table's rows with all columns."""
        return self._spark.read.format("delta").option("versionAsOf", self.version).load(self.url)

    def rows_of(self, files: Any) -> DataFrame:
        """Returns the rows in these files (a Scala Seq of add actions), with all columns."""
        from pyspark.sql import DataFrame

        jvm: Any = self._spark._jvm
        none = getattr(jvm.scala, "None$").__getattr__("MODULE$")
        return DataFrame(self._log.createDataFrame(self.handle, files, False, none), self._spark)

    def extents(self) -> list[FileExtent]:
        """Returns the bounds of the table's files, by their statistics: one entry for each range of partitions."""
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as f

        files = DataFrame(self.handle.allFiles().toDF(), self._spark)
        number = "CAST(get_json_object(stats, '$.{0}Values.{1}') AS BIGINT) AS {2}"
        spans = files.selectExpr(
            number.format("min", "partition", "first"),
            number.format("max", "partition", "last"),
            number.format("max", "offset", "offset"),
        )
        # A file without statistics takes them from its whole group.
        most = f.when(f.max(f.col("offset").isNull()), None).otherwise(f.max("offset"))
        found = spans.groupBy("first", "last").agg(most.alias("offset")).collect()
        return [FileExtent(row["first"], row["last"], row["offset"]) for row in found]

    def find_unaccounted_rows(self, loaded: Mapping[int, int]) -> list[UnaccountedRows]:
        """Returns rows of partitions without an identifier, or at or above its bound. Reads no other files."""
        from pyspark.sql import functions as f

        beyond_bounds = " OR ".join(
            f"(partition = {number} AND offset >= {end})" for number, end in sorted(loaded.items())
        )
        known = ", ".join(map(str, sorted(loaded))) or "-1"
        condition = f"partition IS NULL OR offset IS NULL OR partition NOT IN ({known}) OR {beyond_bounds or 'false'}"
        spans = self.all_columns().where(condition).groupBy("partition")
        found = spans.agg(f.min("offset").alias("first"), f.max("offset").alias("last"))
        return [UnaccountedRows(*row) for row in found.orderBy("partition").limit(UNACCOUNTED_MAX).collect()]

    def commits(self, above: int | None = None, past_marks: bool = False) -> tuple[list[TableCommit], bool]:
        """Returns commits up to this version, in order, and whether the log reaches back far enough.

        The commits are those after `above`, or after the version that the newest mark found sound. With `past_marks`
        they are as many as the log still has.
        """
        found: list[TableCommit] = []
        floor = -1 if above is None else above
        version = self.version
        while version > floor and len(found) < COMMITS_MAX:
            text = self._commit_file(version)
            if text is None:
                break
            each = history.parse_commit(version, text, self._topic_id)
            found.append(each)
            if each.mark is not None and "checked" in each.mark and not past_marks:
                floor = max(floor, int(each.mark["checked"]))
                past_marks = True
            version -= 1
        return found[::-1], version <= floor

    def _commit_file(self, version: int) -> str | None:
        """Returns the lines of a commit; None if Delta has deleted the file."""
        from py4j.protocol import Py4JJavaError

        jvm: Any = self._spark._jvm
        path = jvm.org.apache.spark.sql.delta.util.FileNames.unsafeDeltaFile(self._log.logPath(), version)
        try:
            return str(self._log.store().read(path, self._log.newDeltaHadoopConf()).mkString("\n"))
        except Py4JJavaError as failure:
            if "NotFound" not in str(failure.java_exception.getClass().getSimpleName()):
                raise
            return None


def check_table_topic(metadata: Any, url: str, topic: str, topic_id: str) -> None:
    """Raises `Refused` unless the table holds this topic."""
    found = {key: metadata.configuration().get(key) for key in (table.TOPIC_ID, table.TOPIC_NAME)}
    identity, name = (str(value.get()) if value.isDefined() else "" for value in found.values())
    if identity != topic_id:
        content = f"topic {name} with id {identity}" if identity else "something else"
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {url} holds {content}, not topic {topic} with id {topic_id}: "
            "load into another warehouse, or move the old table away",
        )
